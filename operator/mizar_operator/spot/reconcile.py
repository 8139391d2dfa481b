"""The reconcile loop of spot pods: gather, plan, apply."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from mizar_core.condition import find_condition
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import SPOT_RESOURCE, ConditionType
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.snapshot import NodeView
from mizar_core.planning.spot import SpotPlan, SpotSnapshot, SpotView, plan_spot
from mizar_kube.work_queue import WorkQueue
from mizar_operator.caches import SPOT, Caches
from mizar_operator.posted_events import PostedEvents
from mizar_operator.reconcile import DUE_SLACK_S, run_here
from mizar_operator.spot.apply import SpotApplier
from mizar_operator.spot.closed_gates import ClosedGates
from mizar_operator.spot.metrics import SpotMetrics
from mizar_operator.spot.promises import Promises
from mizar_operator.spot.rules_writer import RulesWriter

RunsPlan = Callable[[Callable[[], SpotPlan]], Awaitable[SpotPlan]]
"""Makes a plan by the given function and returns it: in the event loop or in a thread."""


class SpotReconciler:
    """Reconciles the key SPOT. `enabled`: whether Mizar was installed to lend cards. `now` is the
    time of day, `clock` counts seconds, `runs` makes a plan."""

    def __init__(
        self,
        caches: Caches,
        applier: SpotApplier,
        rules: RulesWriter,
        queue: WorkQueue[str],
        metrics: SpotMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        runs: RunsPlan = run_here,
        *,
        enabled: bool,
    ) -> None:
        self._caches = caches
        self._applier = applier
        self._rules = rules
        self._queue = queue
        self._metrics = metrics
        self._now = now
        self._runs = runs
        self._enabled = enabled
        self._clock = clock
        self._posted_events = PostedEvents(clock)
        self._closed = ClosedGates()
        self._promises = Promises()

    async def reconcile(self) -> None:
        """Run one round: gather, plan, apply. Raises its first KubeError, after everything else is
        done."""
        snapshot, now = self.gather(), self._now()
        plan = await self._runs(lambda: plan_spot(snapshot, now))
        self._promises.note(plan.kept)
        self._metrics.planned(plan)
        failures = await self._applier.apply(plan.actions)
        self._closed.note(plan.actions, failures, self._clock())
        self._posted_events.note(one for one in plan.actions if isinstance(one, EmitEvent))
        self._requeue(plan)
        if not self._caches.pools.unreadable:
            look_again = await self._rules.write(plan.rules)
            if look_again is not None:
                self._queue.add(SPOT, after=look_again)
        if failures:
            raise failures[0].error

    def gather(self) -> SpotSnapshot:
        """The snapshot that the plan is made from, out of the caches."""
        spots = self._promises.dated(self._caches.spots.values(), self._now())
        uids = {one.uid for one in spots}
        self._applier.forget(uids)
        self._closed.keep_only(uids, {one.namespace for one in spots})
        return SpotSnapshot(
            enabled=self._enabled,
            pools=tuple(self._caches.pools.values()),
            quotas=tuple(self._caches.quotas.values()),
            spots=spots,
            nodes=tuple(one for one in self._caches.node_views() if lends(one)),
            announced=self._posted_events.known(uids),
            unreadable=frozenset(namespace for namespace, _ in self._caches.quotas.unreadable),
            heard=self._promises.heard,
            unopenable=self._closed.pods(self._clock()),
            closed=self._closed.namespaces(self._clock()),
            unanswered=self._closed.unanswered,
        )

    def _requeue(self, plan: SpotPlan) -> None:
        if plan.due is not None:
            wait = (plan.due - self._now()).total_seconds()
            self._queue.add(SPOT, after=max(DUE_SLACK_S, wait + DUE_SLACK_S))
        if (tried_in_s := self._closed.next(self._clock())) is not None:
            self._queue.add(SPOT, after=tried_in_s + DUE_SLACK_S)
        if (wait_s := self._posted_events.next(plan.held_back)) is not None:
            self._queue.add(SPOT, after=wait_s + DUE_SLACK_S)


def lends(node: NodeView) -> bool:
    """Whether the node has, or had, cards to lend."""
    return SPOT_RESOURCE in node.cards


def follow(caches: Caches, add: Callable[[str], None]) -> None:
    """Call `add(SPOT)` whenever something changes that lending depends on."""

    def spot(old: SpotView | None, new: SpotView | None) -> None:
        add(SPOT)

    def node(old: NodeView | None, new: NodeView | None) -> None:
        if any(one is not None and lends(one) for one in (old, new)):
            add(SPOT)

    def quota(old: GPUQuota | None, new: GPUQuota | None) -> None:
        if _of_quota(old) != _of_quota(new):
            add(SPOT)

    def pool(old: GPUPool | None, new: GPUPool | None) -> None:
        if _of_pool(old) != _of_pool(new):
            add(SPOT)

    caches.spots.on_change(spot)
    caches.nodes.on_change(node)
    caches.quotas.on_change(quota)
    caches.pools.on_change(pool)


def _of_quota(quota: GPUQuota | None) -> object:
    """The fields of a quota that lending depends on or writes, to be compared."""
    if quota is None:
        return None
    meta = quota.metadata
    return meta.uid, meta.deletion_timestamp, quota.spec.spot, quota.status.spot


def _of_pool(pool: GPUPool | None) -> object:
    """The fields of a pool that lending depends on or writes, to be compared."""
    if pool is None:
        return None
    lending = find_condition(pool.status.conditions, ConditionType.LENDING)
    return pool.metadata.uid, pool.spec, pool.status.cards.lent, lending
