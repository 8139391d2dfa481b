"""The PodDisruptionBudgets that prevent the eviction of shadow pods in use."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, NamedTuple

from mizar_core.names import BUDGET_NAME, FIELD_MANAGER_OPERATOR
from mizar_core.planning.snapshot import Key, Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import (
    AlreadyExists,
    Conflict,
    KubeError,
    NotFound,
    Unavailable,
    is_refusal,
)
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import BUDGET, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.store import is_newer
from mizar_operator import manifests
from mizar_operator.caches import Caches
from mizar_operator.live_objects import find
from mizar_operator.manifests import LABEL_MANAGED_BY
from mizar_operator.pod_views import HolderPod

log = get_logger(__name__)

LOOKED_AT_EVERY_S: Final = 240.0
"""Seconds until a budget is checked again: the watch may have missed its deletion."""
TRIED_AGAIN_S: Final = 60.0
"""Seconds until a budget that could not be written is tried again: a ResourceQuota, a policy or a
webhook that refused it may allow it by then."""
LOWERED_EVERY_S: Final = 60.0
"""Seconds between two lowerings of budgets. Monitoring commonly reports a budget whose number is
not reached for a quarter of an hour."""
LATE_MARK_S: Final = 90.0
"""Seconds for which a mark counts whose write got no answer: it may still take effect."""
WRITES_MOST: Final = 3
"""Maximum number of attempts to write a budget that other clients change at the same time."""
RAISED_BY: Final = 8
"""A budget is raised to the number of pods that is needed and an eighth of that (this is the
divisor), so that very many shadow pods of a namespace that come into use one after the other do not
cause as many writes."""
AT_ONCE: Final = 16
"""Maximum number of budgets that are read or written concurrently."""
KEPT_AT_ONCE: Final = 64
"""The most budgets that are each looked for, raised and lowered before a plan is applied, which
waits for them; the others follow with the next plans."""
FOREIGN: Final = 2**31
"""Stands for the number of pods of a budget of the same name that another client made, which is
never changed: greater than any real number."""


class Budget(NamedTuple):
    """A budget: how many pods it demands, and its resource version."""

    namespace: str
    demanded: int
    version: str


class DisruptionBudgets:
    """One budget per namespace, from the first use of a shadow pod until the namespace has no
    shadow pod.

    Its minAvailable is at least the number of pods that are marked as in use, so that it permits no
    eviction of one. It is raised before a pod is marked, to somewhat more than is needed
    (RAISED_BY), and lowered to the number of marked pods some time later. `holders`: the shadow
    pods' pods. `clock` counts seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        holders: Informer[HolderPod],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self._marked: defaultdict[str, set[str]] = defaultdict(set)
        self._marking: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._known: dict[str, Budget] = {}
        self._errors: dict[str, KubeError] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._looked_at: dict[str, float] = {}
        self._lowered_at: float | None = None
        self._limit = asyncio.Semaphore(AT_ONCE)
        holders.on_change(self._note)

    @asynccontextmanager
    async def marking(self, shadow: Key) -> AsyncIterator[None]:
        """Inside, the pod of this shadow pod may be marked as in use, since the namespace's budget
        counts it. If the API server refuses the budget, the pod may be marked all the same: its
        annotations still keep autoscalers away. Raises KubeError if the API server does not
        answer."""
        namespace, name = shadow
        marking, late = self._marking[namespace], False
        marking[name] = math.inf
        try:
            await self._raise(namespace)
            try:
                yield
            except (Unavailable, asyncio.CancelledError):
                late = True
                raise
        finally:
            if late:
                marking[name] = self._clock() + LATE_MARK_S
            else:
                marking.pop(name, None)

    async def keep(self, snapshot: Snapshot) -> None:
        """Every LOOKED_AT_EVERY_S, check that each namespace with shadow pods that are marked as in
        use has its budget, and create missing ones. Raise those that demand too little, and every
        LOWERED_EVERY_S lower those that demand too much. Raises nothing: a budget that cannot be
        read or written delays nothing else."""
        await self._each(self._look, self._due(snapshot)[:KEPT_AT_ONCE])
        known = list(self._known.values())
        low = [one.namespace for one in known if one.demanded < self._needed(one.namespace)]
        await self._each(self._raise, low[:KEPT_AT_ONCE])
        now = self._clock()
        if self._lowered_at is None:
            self._lowered_at = now
        if now - self._lowered_at < LOWERED_EVERY_S:
            return
        high = [
            one.namespace for one in known if self._needed(one.namespace) < one.demanded < FOREIGN
        ]
        await self._each(self._lower, high[:KEPT_AT_ONCE])
        if len(high) <= KEPT_AT_ONCE:
            self._lowered_at = now

    def deleted(self, namespace: str) -> None:
        """Record that the namespace's budget was deleted: `keep` looks for it at once."""
        self._known.pop(namespace, None)
        self._looked_at.pop(namespace, None)

    def found(self, budget: Budget) -> bool:
        """Record a budget as the watch reports it. Returns whether it demands less than it did."""
        known = self._known.get(budget.namespace)
        if known is not None and not is_newer(budget.version, known.version):
            return False
        self._known[budget.namespace] = budget
        return known is not None and budget.demanded < known.demanded

    async def drop(self, namespace: str) -> None:
        """Remove the namespace's budget, if it is the operator's. Raises KubeError."""
        self.deleted(namespace)
        self._errors.pop(namespace, None)
        found = await find(self._client, _ref(namespace))
        if found is None:
            return
        if not _is_ours(found):
            log.warning("the PodDisruptionBudget was not made by the operator", namespace=namespace)
            return
        await self._delete(namespace, found["metadata"]["uid"])

    def _note(self, before: HolderPod | None, now: HolderPod | None) -> None:
        """A listener to changes of shadow pods' pods: keeps the set of those that are marked."""
        if before is not None:
            namespace, name = before.key
            self._marked[namespace].discard(name)
        if now is not None and now.view.in_use and not now.view.deleting:
            namespace, name = now.key
            self._marked[namespace].add(name)

    def _needed(self, namespace: str) -> int:
        """How many of the namespace's shadow pods are marked as in use, or may be in a moment."""
        now, marking = self._clock(), self._marking[namespace]
        for name in [name for name, until in marking.items() if until <= now]:
            marking.pop(name, None)
        return len(self._marked[namespace].union(marking))

    async def _each(self, do: Callable[[str], Awaitable[None]], namespaces: Iterable[str]) -> None:
        """Do this for each of the namespaces, some at the same time; errors are logged."""

        async def one(namespace: str) -> None:
            async with self._limit:
                try:
                    await do(namespace)
                except Exception as error:
                    log.warning(
                        "no PodDisruptionBudget can be kept", namespace=namespace, error=error
                    )

        await asyncio.gather(*map(one, namespaces))

    def _due(self, snapshot: Snapshot) -> list[str]:
        """The namespaces whose budgets must be looked for."""
        now, looked_at = self._clock(), self._looked_at
        return [
            one
            for one in sorted({*self._errors, *_in_use(snapshot)})
            if one not in looked_at
            or now - looked_at[one] >= (TRIED_AGAIN_S if one in self._errors else LOOKED_AT_EVERY_S)
        ]

    async def _look(self, namespace: str) -> None:
        self._looked_at[namespace] = self._clock()
        found = None
        async with self._locks[namespace]:
            with self._noted(namespace):
                found = await find(self._client, _ref(namespace))
            self._known.pop(namespace, None)
            if found is not None:
                self._known[namespace] = _budget(found)
        await self._raise(namespace)

    async def _raise(self, namespace: str) -> None:
        """Have the budget demand as many pods as needed, or more. A caller that waited for a write
        that failed shares its outcome: another one would most likely take as long."""
        before = self._errors.get(namespace)
        async with self._locks[namespace]:
            error = self._errors.get(namespace)
            if error is not None and error is not before:
                if is_refusal(error):
                    return
                raise error
            needed, known = self._needed(namespace), self._known.get(namespace)
            if needed == 0 or (known is not None and known.demanded >= needed):
                return
            self._looked_at[namespace] = self._clock()
            with self._noted(namespace):
                self._known[namespace] = await self._written(needed, namespace)

    async def _lower(self, namespace: str) -> None:
        """Have the budget demand no more pods than needed, unless it was changed meanwhile."""
        async with self._locks[namespace]:
            found = await find(self._client, _ref(namespace))
            if found is None:
                self._known.pop(namespace, None)
                return
            self._known[namespace], needed = _budget(found), self._needed(namespace)
            if needed < self._known[namespace].demanded < FOREIGN:
                version = self._known[namespace].version
                with self._noted(namespace), suppress(Conflict):
                    self._known[namespace] = await self._patch(namespace, needed, version)

    @contextmanager
    def _noted(self, namespace: str) -> Iterator[None]:
        """Note that the budget is not known any more if writing it fails. Raises KubeError, except
        where the API server refuses it."""
        try:
            yield
        except KubeError as error:
            self._known.pop(namespace, None)
            self._errors[namespace] = error
            if not is_refusal(error):
                raise
            log.warning("the PodDisruptionBudget is refused", namespace=namespace, error=error)
        else:
            self._errors.pop(namespace, None)

    async def _written(self, needed: int, namespace: str) -> Budget:
        """Write the budget, unless it demands enough. It is never lowered here: the caches may not
        have all marks yet for which an earlier operator has raised it. If another client changes it
        at the same time, it is read and written again. Raises KubeError."""
        pods = needed + needed // RAISED_BY
        for _ in range(WRITES_MOST):
            if (known := self._known.get(namespace)) is None:
                with suppress(AlreadyExists):
                    return await self._create(namespace, pods)
                if (found := await find(self._client, _ref(namespace))) is None:
                    continue
                known = _budget(found)
            if known.demanded >= needed:
                return known
            try:
                return await self._patch(namespace, pods, known.version)
            except (Conflict, NotFound):
                self._known.pop(namespace, None)
        raise Conflict(f"the PodDisruptionBudget of {namespace} changes again and again")

    async def _create(self, namespace: str, pods: int) -> Budget:
        made = manifests.budget(namespace, pods)
        return _budget(await self._client.create(made, field_manager=FIELD_MANAGER_OPERATOR))

    async def _patch(self, namespace: str, pods: int, version: str) -> Budget:
        change: Object = {"spec": manifests.budget(namespace, pods)["spec"]}
        if version:
            change["metadata"] = {"resourceVersion": version}
        return _budget(await self._client.patch_merge(_ref(namespace), change))

    async def _delete(self, namespace: str, uid: str) -> None:
        try:
            await self._client.delete(_ref(namespace), uid=uid)
        except NotFound:
            log.info("the PodDisruptionBudget is gone already", namespace=namespace)


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
    """Pass what the watch reports to the budgets. When one is deleted or demands less, call `add`
    with the keys of its namespace's shadow pods, so that it is corrected."""

    def changed(before: Budget | None, now: Budget | None) -> None:
        if now is not None and not budgets.found(now):
            return
        one = now or before
        assert one is not None
        if now is None:
            budgets.deleted(one.namespace)
        for key in sorted(caches.keys_of_namespace(one.namespace)):
            add(key)

    watched.on_change(changed)


def _budget(found: Object) -> Budget:
    meta = found["metadata"]
    return Budget(str(meta["namespace"]), _demanded_by(found), str(meta.get("resourceVersion", "")))


def _demanded_by(found: Object) -> int:
    """How many pods the budget demands; FOREIGN if it is not the operator's, 0 if that is no
    number."""
    least = found["spec"].get("minAvailable")
    if not _is_ours(found):
        return FOREIGN
    return least if isinstance(least, int) else 0


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
