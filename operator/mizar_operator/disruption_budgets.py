"""The PodDisruptionBudgets that prevent the eviction of shadow pods in use."""

from __future__ import annotations

from contextlib import suppress

from mizar_core.names import BUDGET_NAME, FIELD_MANAGER_OPERATOR
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from mizar_kube.kinds import BUDGET, Ref
from mizar_kube.logs import get_logger
from mizar_operator.manifests import budget

log = get_logger(__name__)


class DisruptionBudgets:
    """One budget per namespace, from the first use of a shadow pod until there is none left."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known = set[str]()

    async def ensure(self, namespace: str) -> None:
        """Create the namespace's budget if there is none. Where that is forbidden, shadow pods do
        without: their marks still keep autoscalers away. Raises KubeError when the API server does
        not answer."""
        if namespace in self._known:
            return
        try:
            await self._client.create(budget(namespace), field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            pass
        except (Forbidden, Invalid) as refused:
            log.warning("the PodDisruptionBudget is refused", namespace=namespace, error=refused)
        self._known.add(namespace)

    async def drop(self, namespace: str) -> None:
        """Remove the namespace's budget. Raises KubeError."""
        self._known.discard(namespace)
        with suppress(NotFound):
            await self._client.delete(Ref(BUDGET, BUDGET_NAME, namespace))
