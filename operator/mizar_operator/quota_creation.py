"""Creates a pool's default quota in a namespace that has no quota."""

from __future__ import annotations

from mizar_core.models import GPUPool
from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_core.planning.actions import CreateQuota
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Forbidden
from mizar_kube.kinds import GPU_QUOTA, Object, Ref
from mizar_operator import manifests
from mizar_operator.caches import Caches


class QuotaCreator:
    """Creates default quotas, and writes the API server's answers into the caches at once. Raises
    KubeError; Forbidden if a quota of another pool has the name."""

    def __init__(self, client: KubeClient, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def create(self, action: CreateQuota, pool: GPUPool) -> None:
        """Create the quota, or find that it is there."""
        wanted = manifests.default_quota(action, pool)
        try:
            made = await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            namespace, name = action.quota
            made = await self._client.get(Ref(GPU_QUOTA, name, namespace))
            _check_same_pool(made, action.pool)
        self._caches.quotas.observe(made)


def _check_same_pool(found: Object, pool: str) -> None:
    """Raise Forbidden unless the quota belongs to the pool, whoever created it."""
    if (other := found["spec"]["pool"]) != pool:
        name = found["metadata"]["name"]
        raise Forbidden(
            f"there is a GPUQuota {name} already, of pool {other}: give that one another name"
        )
