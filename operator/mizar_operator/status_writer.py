"""Writes the statuses of ShadowPods, quotas and pools by server-side apply."""

from __future__ import annotations

from typing import Any

from mizar_core.models import GPUPoolStatus, GPUQuotaStatus
from mizar_core.names import FIELD_MANAGER_OPERATOR, ConditionType
from mizar_core.planning.actions import WriteShadowStatus
from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, NotFound
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, SHADOW_POD, Kind, Object, Ref
from mizar_operator.caches import Caches
from mizar_operator.kopf_store import KopfStore
from mizar_operator.live_objects import is_there


class StatusWriter:
    """Writes statuses by server-side apply, and the answers into the caches. Writes only to the
    object with the given UID. If that object is gone or another one has its name, which is not an
    error, the caches forget it, since Kopf may have missed its deletion until its next list."""

    def __init__(
        self, client: KubeClient, caches: Caches, field_manager: str = FIELD_MANAGER_OPERATOR
    ) -> None:
        self._client = client
        self._caches = caches
        self._field_manager = field_manager

    async def write_shadow(self, action: WriteShadowStatus, uid: str) -> None:
        """Write the phase and the condition Scheduled of a ShadowPod. Raises KubeError."""
        condition = action.scheduled.to_dict()
        status: Object = {"conditions": [condition]}
        if action.phase is not None:
            status["phase"] = action.phase
        await self.write(SHADOW_POD, action.shadow, uid, status)

    async def write(self, kind: Kind, key: Key, uid: str, status: Object) -> None:
        """Write the field manager's fields of a status; those of others stay as they are. Raises
        KubeError."""
        namespace, name = key
        meta = {"name": name, "namespace": namespace, "uid": uid}
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {field: value for field, value in meta.items() if value},
            "status": status,
        }
        try:
            written = await self._client.apply(
                body, field_manager=self._field_manager, subresource="status"
            )
        except NotFound:
            self._store(kind).forget(name, namespace, uid)
            return
        except Conflict:
            if await is_there(self._client, Ref(kind, name, namespace or None), uid):
                raise
            self._store(kind).forget(name, namespace, uid)
            return
        self._store(kind).observe(written)

    def _store(self, kind: Kind) -> KopfStore[Any]:
        if kind == GPU_POOL:
            return self._caches.pools
        return self._caches.quotas if kind == GPU_QUOTA else self._caches.shadows


def without_spot(status: GPUQuotaStatus) -> Object:
    """A quota's status without what the namespace borrows, which has a separate field manager."""
    return {key: value for key, value in status.to_dict().items() if key != "spot"}


def without_lending(status: GPUPoolStatus) -> Object:
    """A pool's status without what it lends, which has a separate field manager."""
    found = status.to_dict()
    found["cards"].pop("lent", None)
    found["conditions"] = [
        one for one in found["conditions"] if one["type"] != ConditionType.LENDING
    ]
    return found
