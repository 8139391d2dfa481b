"""Creates a ShadowPod and its pod; takes over objects that an earlier try created. If the API
server refuses one, for example because of a ResourceQuota, apply_result.py notes that for the next
plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mizar_core.names import FIELD_MANAGER_OPERATOR, LABEL_SHADOW_POD
from mizar_core.planning.actions import CreateShadow
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import Key, ShadowView
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Conflict
from mizar_kube.kinds import POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator import manifests, object_views
from mizar_operator.caches import Caches
from mizar_operator.snapshot_index import SnapshotIndex


class NameTaken(Conflict):
    """An object of the name exists, and the operator did not create it."""


class ShadowCreator:
    """Creates shadow pods, and writes the API server's answers into the caches at once. Raises
    KubeError; NameTaken if an object of the same name is not the operator's."""

    def __init__(
        self, client: KubeClient, caches: Caches, pod_settings: manifests.PodSettings
    ) -> None:
        self._client = client
        self._caches = caches
        self._pod_settings = pod_settings
        self._under_way: set[Key] = set()

    def is_under_way(self, shadow: Key) -> bool:
        """Whether the shadow pod is being created now, so that its pod may exist in a moment even
        if no read shows it. Two plans can deal with the same shadow pod: plans for two pools may
        run at the same time, and a ShadowPod whose pool is deleted passes from one to the other."""
        return shadow in self._under_way

    async def create(self, index: SnapshotIndex, action: CreateShadow) -> None:
        """Create the ShadowPod, then its pod."""
        with self._noted(action.shadow):
            made = await self._create_or_get(manifests.shadow_pod(action), SHADOW_POD)
            self._caches.shadows.observe(made)
            shadow = index.add_created(object_views.shadow_view(made), action.resource)
            await self._create_pod(index, shadow, action.needs)

    async def create_pod(self, index: SnapshotIndex, shadow: ShadowView, needs: Needs) -> None:
        """Create the pod of a ShadowPod, unless that is being deleted by now."""
        now = self._caches.shadows.get(shadow.name, shadow.namespace)
        if now is None or now.uid != shadow.uid or now.deleting:
            return
        with self._noted((shadow.namespace, shadow.name)):
            await self._create_pod(index, shadow, needs)

    @contextmanager
    def _noted(self, shadow: Key) -> Iterator[None]:
        self._under_way.add(shadow)
        try:
            yield
        finally:
            self._under_way.discard(shadow)

    async def _create_pod(self, index: SnapshotIndex, shadow: ShadowView, needs: Needs) -> None:
        pool, quota = index.pools[shadow.pool], index.quotas[shadow.quota_key]
        wanted = manifests.pod(shadow, pool, quota, self._pod_settings, needs)
        self._caches.note_created(await self._create_or_get(wanted, POD), wanted)

    async def _create_or_get(self, wanted: Object, kind: Kind) -> Object:
        """The object as created now, or by an earlier try of the operator."""
        try:
            return await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            meta = wanted["metadata"]
            found = await self._client.get(Ref(kind, meta["name"], meta["namespace"]))
            _check_ours(found, wanted)
            return found


def _check_ours(found: Object, wanted: Object) -> None:
    """Raise NameTaken unless the object of the wanted name was created by the operator for the same
    owner. Anybody may name an owner, but the chart's policies keep the label of shadow pods for the
    operator."""
    owners = [one["uid"] for one in found["metadata"].get("ownerReferences") or ()]
    same_owner = wanted["metadata"]["ownerReferences"][0]["uid"] in owners
    if not same_owner or _label(found) != _label(wanted):
        name = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        raise NameTaken(
            f"{found['kind']} {name} exists already, and the operator did not create it"
        )


def _label(obj: Object) -> str | None:
    label: str | None = (obj["metadata"].get("labels") or {}).get(LABEL_SHADOW_POD)
    return label
