"""The API server in memory with a history: every change is kept until a compaction, for watches."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mizar_kube.errors import Forbidden, Gone
from mizar_kube.kinds import EVENT, LEASE, POD, Kind, Object, Ref, ref_of
from simulation.selectors import Selector
from stateful.memory_api import Id, MemoryApi, id_of

TERMINATING = "unable to create new content in namespace because it is being terminated"
UNNOTICED = (EVENT.plural, LEASE.plural)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an object at a time of the loop. The objects must not be changed; `text` is the
    newer one as JSON, or the last one before a deletion."""

    version: int
    at: float
    deleted: bool
    before: Object | None
    after: Object
    text: str

    def told_as(self, selector: Selector) -> str | None:
        """The type of event that a watch with the selector gets; None for no event."""
        was = self.before is not None and selector(self.before)
        now = not self.deleted and selector(self.after)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else None


class HistoryApi(MemoryApi):
    """See the module. A write that changes nothing is no change, as on a real API server."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted = 0
        self.forbidden: set[str] = set()
        """Namespaces that pods cannot be created in, for want of a ResourceQuota."""
        self.unchangeable: set[str] = set()
        """Namespaces in which a policy refuses every patch of a pod."""
        self.ending: set[str] = set()
        """Namespaces that are being deleted, in which nothing can be created."""
        self._changes: defaultdict[str, list[Change]] = defaultdict(list)
        self._bodies: dict[Id, tuple[str, Object]] = {}
        self._waiters: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)

    async def create(self, obj: Object, **more: Any) -> Object:
        """As KubeClient.create."""
        if obj["kind"] == "Pod" and obj["metadata"]["namespace"] in self.forbidden:
            raise Forbidden("exceeded quota (simulated)", status=403)
        if obj["metadata"].get("namespace") in self.ending:
            raise Forbidden(TERMINATING, status=403)
        return await super().create(obj, **more)

    async def patch_merge(self, ref: Ref, patch: Object, **more: Any) -> Object:
        """As KubeClient.patch_merge."""
        if ref.kind == POD and ref.namespace in self.unchangeable:
            raise Forbidden("a policy denied the request (simulated)", status=403)
        return await super().patch_merge(ref, patch, **more)

    def touch(self, obj: Object) -> Object:
        """The object has changed; without a difference nothing happens."""
        key = id_of(ref_of(obj))
        if self.objects.get(key) is not obj:
            return obj
        version = obj["metadata"].pop("resourceVersion", "")
        body, before = json.dumps(obj), self._bodies.get(key)
        if before is not None and before[0] == body:
            obj["metadata"]["resourceVersion"] = version
            return obj
        super().touch(obj)
        self._record(obj, before[1] if before else None, deleted=False)
        self._bodies[key] = body, self._changes[key[0]][-1].after
        return obj

    def remove(self, obj: Object) -> None:
        """The object is gone."""
        key = id_of(ref_of(obj))
        if key not in self.objects:
            return
        super().remove(obj)
        _, before = self._bodies.pop(key)
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._record(obj, before, deleted=True)

    def since(self, kind: Kind, version: int) -> Iterator[Change]:
        """The changes of a kind after the version. Raises Gone when they are forgotten."""
        if version < self.compacted:
            raise Gone(f"too old resource version: {version} ({self.compacted})", status=410)
        return self.after(kind, version)

    def after(self, kind: Kind, version: int) -> Iterator[Change]:
        """The same for a watch that goes on: it gets all changes."""
        changes = self._changes[kind.plural]
        start = len(changes)
        while start and changes[start - 1].version > version:
            start -= 1
        yield from changes[start:]

    def compact(self) -> None:
        """Forget the past: open watches go on, and a new one must list first."""
        self.compacted = self.version

    async def changed(self, plural: str = "") -> None:
        """Wait for the next change of a kind, or of any that somebody acts on."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[plural].append(waiter)
        await waiter

    def _record(self, obj: Object, before: Object | None, *, deleted: bool) -> None:
        key, text = id_of(ref_of(obj)), json.dumps(obj)
        at = asyncio.get_running_loop().time()
        change = Change(self.version, at, deleted, before, json.loads(text), text)
        self._changes[key[0]].append(change)
        self._wake(key[0])
        if key[0] not in UNNOTICED:
            self.poke()

    def poke(self) -> None:
        """Wake everybody that waits for a change."""
        self._wake("")

    def _wake(self, plural: str) -> None:
        for one in self._waiters.pop(plural, ()):
            if not one.done():
                one.set_result(None)
