"""An API server in memory, as far as the operator can tell: versions, preconditions, finalizers,
graceful deletion, status by server-side apply. Faults are put in by the tests."""

from __future__ import annotations

import itertools
import marshal
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

import jsonpatch

from mizar_kube.client import Listing
from mizar_kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from mizar_kube.kinds import POD, SHADOW_POD, Kind, Object, Ref, kind_of, ref_of

Id = tuple[str, str, str]
"""(plural, namespace, name)."""

Write = tuple[str, Ref, Object]
"""A write that is about to happen: verb, object's reference, and the object before it (for a
create: after it)."""


class Crash(BaseException):
    """The operator's process dies here."""


class MemoryApi:
    """Has the methods of KubeClient that the operator calls. `before_write` may raise anything."""

    def __init__(self) -> None:
        self.objects: dict[Id, Object] = {}
        self._by_kind: defaultdict[str, dict[Id, Object]] = defaultdict(dict)
        self._managed: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        self.before_write: Callable[[Write], None] = lambda write: None
        self._versions = itertools.count(1)
        self.version = 0
        self._uids = itertools.count(1)
        self.now = ""

    # What tests and the models of other components call; these calls have no faults.

    def all(self, kind: Kind) -> Iterator[Object]:
        """The objects themselves, not copies."""
        yield from list(self._by_kind[kind.plural].values())

    def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """The object itself, not a copy."""
        return self.objects.get((kind.plural, namespace, name))

    def put(self, obj: Object) -> Object:
        """Create the object."""
        obj = copied(obj)
        meta = obj["metadata"]
        meta.setdefault("uid", f"uid-{next(self._uids)}")
        meta.setdefault("creationTimestamp", self.now)
        meta.setdefault("generation", 1)
        obj.setdefault("status", {"phase": "Pending"} if obj["kind"] == "Pod" else {})
        self._keep(obj)
        return self.touch(obj)

    def touch(self, obj: Object) -> Object:
        """The object has changed: it gets a new version."""
        self.version = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(self.version)
        return obj

    def remove(self, obj: Object) -> None:
        """The object is gone."""
        self.version = next(self._versions)
        key = id_of(ref_of(obj))
        self.objects.pop(key, None)
        self._by_kind[key[0]].pop(key, None)

    def start_delete(self, obj: Object) -> None:
        """As DELETE does it, with background propagation."""
        meta, kind = obj["metadata"], kind_of(obj)
        running = kind == POD and obj["spec"].get("nodeName") and not has_ended(obj)
        if running or meta.get("finalizers"):
            if "deletionTimestamp" not in meta:
                meta["deletionTimestamp"] = self.now
                self.touch(obj)
        else:
            self.remove(obj)

    def collect_garbage(self) -> None:
        """Delete whatever has lost its owner."""
        uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
        for obj in list(self.objects.values()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if owners and all(owner["uid"] not in uids for owner in owners):
                self.start_delete(obj)

    # KubeClient.

    async def get(self, ref: Ref, **_: Any) -> Object:
        """As KubeClient.get."""
        return copied(self._existing(ref))

    async def list(self, kind: Kind, *, field_selector: str = "", **_: Any) -> Listing:
        """As KubeClient.list, with no selector but spec.nodeName."""
        found = list(self.all(kind))
        if field_selector:
            wanted = field_selector.removeprefix("spec.nodeName=")
            found = [one for one in found if one["spec"].get("nodeName") == wanted]
        return Listing(copied(found), str(self.version))

    async def list_pages(
        self, kind: Kind, *, cached: bool = False, **selectors: Any
    ) -> AsyncGenerator[Listing, None]:
        """As KubeClient.list_pages, in one page."""
        yield await self.list(kind, **selectors)

    async def create(self, obj: Object, **_: Any) -> Object:
        """As KubeClient.create."""
        ref = ref_of(obj)
        if id_of(ref) in self.objects:
            raise AlreadyExists(f"{ref} is there")
        self.before_write(("create", ref, obj))
        return copied(self.put(obj))

    async def patch_merge(self, ref: Ref, patch: Object, **_: Any) -> Object:
        """As KubeClient.patch_merge: metadata.uid and metadata.resourceVersion are
        preconditions."""
        obj, meta = self._existing(ref), dict(patch.get("metadata") or {})
        for field in ("uid", "resourceVersion"):
            if meta.pop(field, None) not in (None, obj["metadata"][field]):
                raise Conflict(f"{ref}: {field}")
        self.before_write(("patch", ref, obj))
        held = bool(obj["metadata"].get("finalizers"))
        _merge(obj, {**patch, "metadata": meta})
        released = held and not obj["metadata"].get("finalizers")
        if released and "deletionTimestamp" in obj["metadata"]:
            self.remove(obj)
        else:
            self.touch(obj)
        return copied(obj)

    async def replace(self, obj: Object, **_: Any) -> Object:
        """As KubeClient.replace, with the version as a precondition."""
        ref = ref_of(obj)
        known = self._existing(ref)
        if obj["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise Conflict(f"{ref} has changed")
        self.before_write(("replace", ref, known))
        return copied(self.touch(self._keep(copied(obj))))

    async def patch_json(self, ref: Ref, patch: list[Object], **_: Any) -> Object:
        """As KubeClient.patch_json."""
        obj = self._existing(ref)
        self.before_write(("patch", ref, obj))
        try:
            return copied(self.touch(self._keep(jsonpatch.apply_patch(obj, patch))))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise Invalid(f"{ref}: {error}") from error

    async def apply(self, obj: Object, *, field_manager: str = "", **_: Any) -> Object:
        """As KubeClient.apply of the operator's status; metadata.uid is a precondition."""
        ref = ref_of(obj)
        known, status = self._existing(ref), copied(obj["status"])
        if obj["metadata"].get("uid") not in (None, known["metadata"]["uid"]):
            raise Conflict(f"{ref}: uid")
        self.before_write(("apply", ref, known))
        if kind_of(obj) == SHADOW_POD:
            types = {one["type"] for one in status["conditions"]}
            others = known["status"].get("conditions") or []
            status["conditions"] += [one for one in others if one["type"] not in types]
            known["status"] |= status
        else:
            managed = self._managed[known["metadata"]["uid"]]
            managed[field_manager] = status
            known["status"] = _together(managed.values())
        return copied(self.touch(known))

    async def evict(self, ref: Ref, *, uid: str = "", **_: Any) -> Object:
        """As KubeClient.evict, where no PodDisruptionBudget is in the way."""
        obj = self._existing(ref)
        if uid not in ("", obj["metadata"]["uid"]):
            raise Conflict(f"{ref}: uid")
        self.before_write(("evict", ref, obj))
        self.start_delete(obj)
        return {}

    async def delete(
        self, ref: Ref, *, uid: str = "", resource_version: str = "", **_: Any
    ) -> Object:
        """As KubeClient.delete."""
        obj = self._existing(ref)
        for wanted, field in ((uid, "uid"), (resource_version, "resourceVersion")):
            if wanted and obj["metadata"][field] != wanted:
                raise Conflict(f"{ref}: {field}")
        self.before_write(("delete", ref, obj))
        self.start_delete(obj)
        return copied(obj)

    def _keep(self, obj: Object) -> Object:
        key = id_of(ref_of(obj))
        self.objects[key] = self._by_kind[key[0]][key] = obj
        return obj

    def _existing(self, ref: Ref) -> Object:
        obj = self.objects.get(id_of(ref))
        if obj is None:
            raise NotFound(f"no {ref}")
        return obj


def copied(value: Any) -> Any:
    """A copy of JSON; ten times faster than copy.deepcopy."""
    return marshal.loads(marshal.dumps(value))


def id_of(ref: Ref) -> Id:
    """The key of an object."""
    return ref.kind.plural, ref.namespace or "", ref.name


def has_ended(pod: Object) -> bool:
    """Whether its containers have ended for good."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _together(parts: Iterable[Object]) -> Object:
    """A status of which each field manager has a part; conditions are told apart by their type."""
    found: Object = {}
    conditions: list[Object] = []
    for part in parts:
        _merge(found, copied(part))
        conditions += part.get("conditions") or []
    return found | {"conditions": conditions} if conditions else found


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
