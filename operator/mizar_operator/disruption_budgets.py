"""The PodDisruptionBudgets that prevent the eviction of shadow pods in use."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from mizar_core.names import BUDGET_NAME, FIELD_MANAGER_OPERATOR
from mizar_core.planning.snapshot import Key, Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, KubeError, NotFound, is_refusal
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import BUDGET, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator import manifests
from mizar_operator.caches import Caches
from mizar_operator.live_objects import find
from mizar_operator.manifests import LABEL_MANAGED_BY
from mizar_operator.pod_views import HolderPod

log = get_logger(__name__)

LOOKED_AT_EVERY_S: Final = 240.0
"""Seconds until a budget is checked again: a ResourceQuota or policy that refused it may allow it
by then. A deleted budget is checked as soon as the watch reports it."""
LOWERED_EVERY_S: Final = 60.0
"""Seconds between two lowerings of budgets. Monitoring commonly reports a budget whose number is
not reached for a quarter of an hour."""
RAISED_BY: Final = 8
"""A budget is raised by an eighth more than is needed, so that very many shadow pods of a namespace
that come into use one after the other do not cause as many writes."""
LOOKS_AT_ONCE: Final = 16
"""Budgets that are read at the same time."""
FOREIGN: Final = 2**31
"""Counts as the number of a budget of this name that is somebody else's, which is left alone: more
than any budget can demand."""


class DisruptionBudgets:
    """One budget per namespace, from the first use of a shadow pod until the namespace has no
    shadow pod.

    It demands as many pods as are marked as in use, so that it allows no eviction of one, and is
    met. It is raised before a pod is marked, and lowered some time after a mark is gone. `holders`:
    the shadow pods' pods. `clock` counts seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        holders: Informer[HolderPod],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._holders = holders
        self._clock = clock
        self._demanded: dict[str, int] = {}
        self._marking: defaultdict[str, set[str]] = defaultdict(set)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._looked_at: dict[str, float] = {}
        self._lowered_at = clock()
        self._limit = asyncio.Semaphore(LOOKS_AT_ONCE)

    @asynccontextmanager
    async def marking(self, shadow: Key) -> AsyncIterator[None]:
        """Inside, the pod of this shadow pod may be marked as in use: the namespace's budget counts
        it. If the API server refuses the budget, shadow pods have none: their annotations still
        keep autoscalers away. Raises KubeError when the API server does not answer."""
        namespace, name = shadow
        self._marking[namespace].add(name)
        try:
            await self._demand_enough(namespace)
            yield
        finally:
            self._marking[namespace].discard(name)

    async def keep(self, snapshot: Snapshot) -> None:
        """Every LOOKED_AT_EVERY_S, look whether the namespaces of shadow pods that are marked as in
        use have their budgets, and create those that are missing. Every LOWERED_EVERY_S, lower the
        budgets that demand more than there are. Raises nothing: a budget that cannot be read or
        written holds nothing up."""
        await asyncio.gather(*(self._look(one) for one in _in_use(snapshot) if self._is_due(one)))
        if self._clock() - self._lowered_at >= LOWERED_EVERY_S:
            self._lowered_at = self._clock()
            marked = self._marked()
            high = [one for one, demanded in self._demanded.items() if demanded > marked[one]]
            await asyncio.gather(*map(self._lower, high))

    def look_again(self, namespace: str) -> None:
        """Look for the namespace's budget at the next call of `keep`, since it was deleted, or
        demands less than it did."""
        self._demanded.pop(namespace, None)
        self._looked_at.pop(namespace, None)

    def found(self, namespace: str, demanded: int) -> None:
        """Take in what the watch says of a namespace's budget: how many pods it demands."""
        if demanded < self._demanded.setdefault(namespace, demanded):
            self.look_again(namespace)

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

    async def _demand_enough(self, namespace: str) -> None:
        async with self._locks[namespace]:
            needed = len(self._marked_in(namespace))
            if self._demanded.get(namespace, -1) < needed:
                await self._demand(namespace, needed + needed // RAISED_BY)

    async def _lower(self, namespace: str) -> None:
        async with self._limit, self._locks[namespace]:
            needed, demanded = len(self._marked_in(namespace)), self._demanded.get(namespace, 0)
            if needed < demanded < FOREIGN:
                try:
                    await self._demand(namespace, needed)
                except KubeError as error:
                    log.warning(
                        "the PodDisruptionBudget stays too high", namespace=namespace, error=error
                    )

    async def _demand(self, namespace: str, pods: int) -> None:
        """Have the namespace's budget demand so many pods; create it if it is missing."""
        self._looked_at[namespace] = self._clock()
        try:
            self._demanded[namespace] = await self._written(namespace, pods)
        except KubeError as error:
            self._demanded.pop(namespace, None)
            if not is_refusal(error):
                raise
            log.warning("the PodDisruptionBudget is refused", namespace=namespace, error=error)

    async def _written(self, namespace: str, pods: int) -> int:
        """Write the budget; returns how many pods it demands then. One that an earlier operator
        made is not lowered: the copies may not have all of its marks yet."""
        if namespace not in self._demanded:
            with suppress(AlreadyExists):
                return await self._create(namespace, pods)
            found = await find(self._client, _ref(namespace))
            if found is not None and (demanded := _demanded_by(found)) >= pods:
                return demanded
        with suppress(NotFound):
            change = {"spec": manifests.budget(namespace, pods)["spec"]}
            await self._client.patch_merge(_ref(namespace), change)
            return pods
        return await self._create(namespace, pods)

    async def _create(self, namespace: str, pods: int) -> int:
        made = manifests.budget(namespace, pods)
        await self._client.create(made, field_manager=FIELD_MANAGER_OPERATOR)
        return pods

    def _marked_in(self, namespace: str) -> set[str]:
        """The names of the namespace's shadow pods that are marked as in use, or are about to
        be."""
        found = (key for key, one in self._holders.items() if key[0] == namespace and _counts(one))
        return self._marking[namespace].union(name for _, name in found)

    def _marked(self) -> Counter[str]:
        """How many shadow pods are marked as in use, by namespace."""
        return Counter(key[0] for key, one in self._holders.items() if _counts(one))

    def _is_due(self, namespace: str) -> bool:
        since = self._looked_at.get(namespace)
        return since is None or self._clock() - since >= LOOKED_AT_EVERY_S

    async def _look(self, namespace: str) -> None:
        self._looked_at[namespace] = self._clock()
        try:
            async with self._limit:
                found = await find(self._client, _ref(namespace))
            self._demanded.pop(namespace, None)
            if found is not None:
                self._demanded[namespace] = _demanded_by(found)
            await self._demand_enough(namespace)
        except KubeError as error:
            log.warning("no PodDisruptionBudget can be kept", namespace=namespace, error=error)

    async def _delete(self, namespace: str, uid: str) -> None:
        try:
            await self._client.delete(_ref(namespace), uid=uid)
        except NotFound:
            log.info("the PodDisruptionBudget is gone already", namespace=namespace)


Budget = tuple[str, int]
"""The namespace of a budget, and how many pods it demands."""


def watch(client: KubeClient, timing: Timing | None = None) -> Informer[Budget]:
    """A watch of Mizar's budgets. No plan depends on it."""
    watched = Watched(BUDGET, field_selector=f"metadata.name={BUDGET_NAME}")
    return Informer(client, watched, _budget, timing)


def follow(
    watched: Informer[Budget],
    budgets: DisruptionBudgets,
    caches: Caches,
    add: Callable[[str], None],
) -> None:
    """Tell the budgets what they demand. When one is deleted, have it looked for again, and call
    `add` with the keys of its namespace's shadow pods."""

    def changed(before: Budget | None, now: Budget | None) -> None:
        if now is not None:
            budgets.found(*now)
        elif before is not None:
            budgets.look_again(before[0])
            for key in sorted(caches.keys_of_namespace(before[0])):
                add(key)

    watched.on_change(changed)


def _budget(found: Object) -> Budget:
    return str(found["metadata"]["namespace"]), _demanded_by(found)


def _demanded_by(found: Object) -> int:
    """How many pods the budget demands; FOREIGN if it is not the operator's, 0 if that is no
    number."""
    least = found["spec"].get("minAvailable")
    if not _is_ours(found):
        return FOREIGN
    return least if isinstance(least, int) else 0


def _counts(holder: HolderPod) -> bool:
    """Whether the budget counts the pod."""
    return holder.view.in_use and not holder.view.deleting


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
