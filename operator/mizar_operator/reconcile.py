"""The reconcile loop: gather, plan and apply, for one key of the queue at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from mizar_core.planning import Plan, Snapshot, plan
from mizar_core.planning.actions import LetPreempt
from mizar_core.planning.planning_errors import IsolatedPlan, Planner, plan_isolated
from mizar_core.planning.snapshot import Key
from mizar_kube.logs import bound, get_logger
from mizar_kube.work_queue import WorkQueue
from mizar_operator.apply import Applier
from mizar_operator.apply_result import Result
from mizar_operator.gather import Gatherer
from mizar_operator.metrics import Metrics
from mizar_operator.reconcile_state import ReconcileState
from mizar_operator.runtime_classes import BELIEVED_S

log = get_logger(__name__)

DUE_SLACK_S = 0.1
"""Seconds added to the time of the next plan, since the clocks of the API server and of nodes write
whole seconds."""
STATUSES_LATE_S = 2.0
"""Seconds for which statuses may be postponed while more changes arrive."""
UNSETTLED_EVERY_S = 60.0
"""Least seconds between two log lines about plans whose steps disagree: each such plan may cause
the next one at once."""
UNSETTLED_MOST = 10
"""The most shadow pods that a log line about such a plan names."""


T = TypeVar("T")

Step = Callable[[], IsolatedPlan | None]
"""A step of a plan; the last one returns the plan."""

RunsStep = Callable[[Step], Awaitable[IsolatedPlan | None]]
"""Runs a step and returns its result: in the event loop or in a thread."""


async def run_here(step: Callable[[], T]) -> T:
    """Run the step in the event loop, which does nothing else meanwhile."""
    return step()


async def run_in_thread(step: Callable[[], T]) -> T:
    """Run the step in a thread, so that the Lease is renewed however long it takes. The input of a
    plan does not change meanwhile: the caches replace objects and never modify them. The thread of
    a cancelled step continues to its end, unless the process ends before."""
    return await asyncio.to_thread(step)


class Reconciler:
    """Reconciles the keys of the queue. `now` is the time of day, `clock` counts seconds, `runs`
    runs the steps of a plan."""

    def __init__(
        self,
        gatherer: Gatherer,
        applier: Applier,
        queue: WorkQueue[str],
        metrics: Metrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        planner: Planner = plan,
        runs: RunsStep = run_here,
    ) -> None:
        self._gatherer = gatherer
        self._applier = applier
        self._queue = queue
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._planner = planner
        self._runs = runs
        self._planning = asyncio.Lock()
        self._rounds = itertools.count(1)
        self._unsettled_told_at = float("-inf")

    async def reconcile(self, key: str) -> None:
        """Run one round for the key: gather, plan, apply. Raises the round's first error, after
        everything else is done."""
        names = bound(pool=self._gatherer.pools_of(key), round=next(self._rounds))
        with names, self._metrics.counting_failure():
            await self._round(key)

    async def _round(self, key: str) -> None:
        memory = self._gatherer.state(key)
        with self._timed("gather"):
            snapshot = await self._gatherer.gather(key)
        memory.note_gated((one.uid for one in snapshot.shares if one.gated), self._now())
        with self._timed("plan"):
            planned = await self._plan(snapshot, memory)
        self._show(key, snapshot, planned)
        with self._timed("apply"):
            result = await self._applier.apply(
                snapshot, planned.actions, lambda: self._has_news(key, memory)
            )
        self._metrics.applied(snapshot, result)
        memory.note_status_writes(result.postponed, self._clock())
        memory.posted_events.note(result.announced)
        memory.unanswered |= result.unanswered
        memory.note_names_taken(result.names_taken, self._clock())
        memory.note_free(planned.free, self._now())
        self._gatherer.note_freed(planned.freed, self._now())
        memory.note_attempts(planned.attempts, self._clock())
        memory.note_refused_nodes(planned.refused_nodes, self._clock())
        memory.note_silent_nodes(planned.silent_nodes, self._clock())
        memory.note_heard_nodes(planned.heard_nodes)
        self._requeue(key, memory, planned, result)
        if snapshot.missing_classes:
            self._queue.add(key, after=BELIEVED_S + DUE_SLACK_S)
        if result.errors:
            raise result.errors[0]

    def _has_news(self, key: str, memory: ReconcileState) -> bool:
        """Whether more changes of the key wait, so that statuses would be outdated when written;
        False again after STATUSES_LATE_S, so that they are written eventually."""
        since = memory.statuses_late_since
        late = since is not None and self._clock() - since > STATUSES_LATE_S
        return self._queue.has_news(key) and not late

    async def _plan(self, snapshot: Snapshot, memory: ReconcileState) -> Plan:
        """The plan without the objects that planning fails for, which are noted for a while."""
        for kind, count in self._gatherer.unreadable().items():
            self._metrics.unreadable.labels(kind).set(count)
        unreadable = self._gatherer.excluded(snapshot)
        known = {**memory.excluded_now(self._clock()), **unreadable}
        steps = plan_isolated(snapshot, self._now(), known, self._planner)
        isolated = await self._run_in_steps(steps)
        for name in sorted(isolated.excluded.keys() - known.keys()):
            error = isolated.excluded[name][1]
            self._metrics.planning_errors.labels(name.what).inc()
            log.error(
                "excluded from the plan",
                kind=name.what,
                namespace=name.key[0],
                name=name.key[1],
                exc_info=error,
            )
        failed = {name: why for name, why in isolated.excluded.items() if name not in unreadable}
        memory.exclude(failed, self._clock())
        self._tell_unsettled(isolated.plan.unsettled)
        return isolated.plan

    def _tell_unsettled(self, shadows: Collection[Key]) -> None:
        """Count and log the shadow pods about which the steps of a plan disagree."""
        if not shadows:
            return
        self._metrics.planning_errors.labels("ShadowPod").inc(len(shadows))
        if self._clock() - self._unsettled_told_at >= UNSETTLED_EVERY_S:
            self._unsettled_told_at = self._clock()
            names = sorted(map("/".join, shadows))[:UNSETTLED_MOST]
            log.error("the steps of the plan disagree", shadow=", ".join(names))

    async def _run_in_steps(self, steps: Generator[None, None, IsolatedPlan]) -> IsolatedPlan:
        """Run the steps of a plan and let other tasks run between them, and beside them where they
        run in a thread. Two steps never run at once: they would only compete for the interpreter,
        and each turns the garbage collector off and on."""
        while True:
            async with self._planning:
                found = await self._runs(lambda: _next(steps))
            if found is not None:
                return found
            await asyncio.sleep(0)

    def _requeue(self, key: str, memory: ReconcileState, planned: Plan, result: Result) -> None:
        now = self._clock()
        for uid in result.used:
            memory.contested.record(uid, now)
        for action in result.failed:
            if isinstance(action, LetPreempt):
                memory.unopenable.record(action.uid, now)
        self._metrics.refusals(result.refused_quotas)
        for offer, message in sorted(result.refused.items()):
            memory.refused.record(offer, now, message)
        if result.used or result.refused or result.names_taken:
            # The next plan does not rely on objects that could not be deleted or created.
            self._queue.add(key)
        if (wait := memory.next_try(now)) is not None:
            self._queue.add(key, after=wait + DUE_SLACK_S)
        if planned.due is not None:
            wait = (planned.due - self._now()).total_seconds()
            self._queue.add(key, after=max(DUE_SLACK_S, wait + DUE_SLACK_S))
        if (wait_s := memory.posted_events.next(planned.held_back)) is not None:
            self._queue.add(key, after=wait_s + DUE_SLACK_S)

    def _show(self, key: str, snapshot: Snapshot, planned: Plan) -> None:
        self._metrics.planned(key, snapshot, planned)
        if planned.actions:
            kinds = [type(one).__name__ for one in planned.actions]
            counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
            log.info("planned", actions=counts)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._metrics.reconcile.labels(step).observe(self._clock() - start)


def _next(steps: Generator[None, None, IsolatedPlan]) -> IsolatedPlan | None:
    """Run the next step; returns the plan once there is none."""
    try:
        next(steps)
    except StopIteration as done:
        found: IsolatedPlan = done.value
        return found
    return None
