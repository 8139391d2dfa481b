"""The PodDisruptionBudgets that prevent the eviction of shadow pods in use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from mizar_core.names import BUDGET_NAME, FIELD_MANAGER_OPERATOR
from mizar_core.planning.snapshot import Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, KubeError, NotFound, is_refusal
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import BUDGET, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator.caches import Caches
from mizar_operator.live_objects import find
from mizar_operator.manifests import LABEL_MANAGED_BY, budget

log = get_logger(__name__)

LOOKED_AT_EVERY_S: Final = 240.0
"""Seconds until a budget is checked again: a ResourceQuota or policy that refused it may allow it
by then. A deleted budget is checked as soon as the watch reports it."""
LOOKS_AT_ONCE: Final = 16
"""Budgets that are read at the same time."""


class DisruptionBudgets:
    """One budget per namespace, from the first use of a shadow pod until the namespace has no
    shadow pod. `clock` counts seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._there = set[str]()
        self._looked_at: dict[str, float] = {}
        self._limit = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def ensure(self, namespace: str) -> None:
        """Create the namespace's budget unless it was seen recently. If the API server refuses it,
        shadow pods have no budget: their annotations still keep autoscalers away. Raises KubeError
        when the API server does not answer."""
        if namespace not in self._there:
            await self._create(namespace)

    async def keep(self, snapshot: Snapshot) -> None:
        """Every LOOKED_AT_EVERY_S, look whether the namespaces of shadow pods that are marked as in
        use have their budgets, and create those that are missing. Raises nothing: a budget that
        cannot be read holds nothing up."""
        await asyncio.gather(*(self._look(one) for one in _in_use(snapshot) if self._is_due(one)))

    def look_again(self, namespace: str) -> None:
        """Look for the namespace's budget at the next call of `keep`, since it was deleted."""
        self._there.discard(namespace)
        self._looked_at.pop(namespace, None)

    async def drop(self, namespace: str) -> None:
        """Remove the namespace's budget, if it is the operator's. Raises KubeError."""
        self.look_again(namespace)
        found = await find(self._client, _ref(namespace))
        if found is None:
            return
        if not _is_ours(found):
            log.warning("the PodDisruptionBudget was not made by the operator", namespace=namespace)
            return
        await self._delete(namespace, found["metadata"]["uid"])

    async def _create(self, namespace: str) -> None:
        self._looked_at[namespace] = self._clock()
        try:
            with suppress(AlreadyExists):
                await self._client.create(budget(namespace), field_manager=FIELD_MANAGER_OPERATOR)
        except KubeError as error:
            if not is_refusal(error):
                raise
            log.warning("the PodDisruptionBudget is refused", namespace=namespace, error=error)
            self._there.discard(namespace)
        else:
            self._there.add(namespace)

    def _is_due(self, namespace: str) -> bool:
        since = self._looked_at.get(namespace)
        return since is None or self._clock() - since >= LOOKED_AT_EVERY_S

    async def _look(self, namespace: str) -> None:
        self._looked_at[namespace] = self._clock()
        try:
            async with self._limit:
                if await find(self._client, _ref(namespace)) is None:
                    await self._create(namespace)
                else:
                    self._there.add(namespace)
        except KubeError as error:
            log.warning("no PodDisruptionBudget can be kept", namespace=namespace, error=error)

    async def _delete(self, namespace: str, uid: str) -> None:
        try:
            await self._client.delete(_ref(namespace), uid=uid)
        except NotFound:
            log.info("the PodDisruptionBudget is gone already", namespace=namespace)


def watch(client: KubeClient, timing: Timing | None = None) -> Informer[str]:
    """A watch of Mizar's budgets that keeps the namespaces that have one. No plan depends on it."""
    watched = Watched(BUDGET, field_selector=f"metadata.name={BUDGET_NAME}")
    return Informer(client, watched, lambda one: str(one["metadata"]["namespace"]), timing)


def follow(
    watched: Informer[str], budgets: DisruptionBudgets, caches: Caches, add: Callable[[str], None]
) -> None:
    """When a budget is deleted, have it looked for again, and call `add` with the keys of its
    namespace's shadow pods."""

    def changed(before: str | None, now: str | None) -> None:
        if before is not None and now is None:
            budgets.look_again(before)
            for key in sorted(caches.keys_of_namespace(before)):
                add(key)

    watched.on_change(changed)


def _ref(namespace: str) -> Ref:
    return Ref(BUDGET, BUDGET_NAME, namespace)


def _is_ours(found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    return bool(labels.get(LABEL_MANAGED_BY) == FIELD_MANAGER_OPERATOR)


def _in_use(snapshot: Snapshot) -> Iterable[str]:
    """The namespaces of shadow pods that are marked as in use, sorted."""
    return sorted(
        {
            shadow.namespace
            for shadow in snapshot.shadows
            if shadow.pod is not None and shadow.pod.in_use and not shadow.pod.deleting
        }
    )
