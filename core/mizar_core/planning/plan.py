"""The planner: decides, in rounds, which actions the state of the cluster in a snapshot requires.

Pure: no I/O, no clock, no randomness.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from mizar_core.planning.actions import (
    EvictShare,
    Plan,
    ShadowAction,
)
from mizar_core.planning.changed_limits import recarve
from mizar_core.planning.creation_checks import next_move
from mizar_core.planning.default_quotas import grant_default_quotas
from mizar_core.planning.demand import DemandOutcome, keep_warm, meet_all_demand
from mizar_core.planning.device_users import mark_in_use
from mizar_core.planning.draft import Draft
from mizar_core.planning.events import SCHEDULING, post_decisions, posted_from, waiting_events
from mizar_core.planning.evict_share_pods import RETRY_AFTER, evict, evict_who_cannot_start
from mizar_core.planning.lifecycle import advance, finish_drains
from mizar_core.planning.postponed import next_turn
from mizar_core.planning.preempt_idle import looks_again_at, preempt_idle
from mizar_core.planning.preemption_gates import open_gates
from mizar_core.planning.reap import SpareDevices, idle_until, reap, retire_surplus
from mizar_core.planning.refused_nodes import next_check
from mizar_core.planning.replacement import replace_idle
from mizar_core.planning.scheduler_simulation import node_seen_by
from mizar_core.planning.shadow_stage import (
    ShadowStage,
    agent_expected_by,
    drain_unanswered_at,
    failed_until,
    retried_at,
)
from mizar_core.planning.snapshot import Key, Snapshot
from mizar_core.planning.statuses import (
    quota_counts,
    write_pools,
    write_quotas,
    write_shadows,
)

ROUNDS_MAX = 10
"""The most rounds of one plan: two are enough unless the steps of the plan disagree. The operator
logs and counts the shadow pods that the last round still changed."""


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """The plan for a snapshot at the time `now`. It is the same for any order of the snapshot's
    parts, and empty once it is applied."""
    with _garbage_collection_paused():
        return _plan(snapshot, now)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: planning makes very many small objects and no reference cycles, and
    the collector would search the whole process for cycles every few thousand objects, which takes
    longer the larger the cluster is."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _plan(snapshot: Snapshot, now: datetime) -> Plan:
    draft = Draft(snapshot, now)
    outcomes, unsettled = _decide(draft)
    mark_in_use(draft)
    recarve(draft)
    evict(draft)
    stranded = evict_who_cannot_start(draft)
    grant_default_quotas(draft)
    gates = open_gates(draft, outcomes)
    post_decisions(draft, snapshot)
    waiting, due = _report_waiting(draft, outcomes)
    write_shadows(draft)
    quotas = write_quotas(draft, quota_counts(draft, outcomes), outcomes)
    write_pools(draft)
    return Plan(
        tuple(draft.actions),
        _due(draft, outcomes, [*due, *gates.due, *stranded]),
        quotas,
        waiting=waiting,
        held_back=frozenset(draft.held_back),
        free=_free(outcomes),
        attempts=tuple(draft.attempts),
        refused_nodes=draft.refused_nodes,
        silent_nodes=dict.fromkeys(draft.silence.nodes, draft.now),
        heard_nodes=draft.silence.heard,
        freed=gates.freed,
        unsettled=unsettled,
    )


def _decide(draft: Draft) -> tuple[dict[str, DemandOutcome], frozenset[Key]]:
    """Plan in rounds until one adds no action, so that planning again would add none. Also returns
    the shadow pods of which the last permitted round still changed something.

    A second round finds work only where a drain makes room in a quota for cancelling another.
    """
    for _ in range(ROUNDS_MAX):
        planned = len(draft.actions)
        outcomes = _round(draft)
        if len(draft.actions) == planned:
            return outcomes, frozenset()
    last = (one for one in draft.actions[planned:] if isinstance(one, ShadowAction))
    return outcomes, frozenset(one.shadow for one in last)


def _round(draft: Draft) -> dict[str, DemandOutcome]:
    advance(draft)
    retire_surplus(draft)
    keep_warm(draft, [one for one in draft.entitlements if not draft.waiting(one.resource)])
    outcomes = meet_all_demand(draft)
    # Share pods that wait come first, since they need shadow pods on certain nodes; a quota that
    # denies them one keeps nothing warm until then.
    denials = (one for made in outcomes.values() for one in made.denials.values())
    owing = {one.entitlement.shape for one in denials if one.entitlement is not None}
    keep_warm(draft, [one for one in draft.entitlements if one.shape not in owing])
    finish_drains(draft)
    spare = SpareDevices(draft, outcomes)
    for resource, outcome in outcomes.items():
        reap(draft, resource, outcome, spare)
    preempt_idle(draft, outcomes, spare)
    replace_idle(draft, outcomes, spare)
    return outcomes


def _report_waiting(
    draft: Draft, outcomes: dict[str, DemandOutcome]
) -> tuple[dict[tuple[str, ...], list[str]], list[datetime]]:
    """Post why each share pod waits. Returns the UIDs of those that wait, by namespace and reason,
    and when further events may be posted."""
    waiting, later = defaultdict[tuple[str, ...], list[str]](list), list[datetime]()
    for resource, outcome in outcomes.items():
        for share, event in waiting_events(draft, resource, outcome):
            waiting[share.namespace, str(event.reason) if event else SCHEDULING].append(share.uid)
            if event is None:
                continue
            if (at := posted_from(share, event)) > draft.now:
                later.append(at)
            else:
                draft.post(event)
    return waiting, later


def _free(outcomes: dict[str, DemandOutcome]) -> dict[tuple[str, str], int]:
    """How many devices of a (resource, node) are free, where any are."""
    return {
        (resource, node): room.free
        for resource, outcome in outcomes.items()
        for node, room in outcome.placement.devices.items()
        if room.free
    }


def _due(
    draft: Draft, outcomes: dict[str, DemandOutcome], others: list[datetime]
) -> datetime | None:
    """The next moment at which time alone changes the plan. `others`: moments that are known
    already."""
    times: list[datetime | None] = [*others, looks_again_at(draft)]
    if any(isinstance(one, EvictShare) for one in draft.actions):
        times.append(draft.now + RETRY_AFTER)
    for shadow, stage in draft.in_order():
        if stage is ShadowStage.READY:
            times.append(idle_until(draft, shadow))
        elif stage in (ShadowStage.STARTING, ShadowStage.DRAINING):
            times += [agent_expected_by(shadow), drain_unanswered_at(shadow)]
            times.append(failed_until(shadow))
            times.append(node_seen_by(draft, shadow))
        else:
            times += [draft.stranded_at(shadow), retried_at(shadow)]
    for resource, outcome in outcomes.items():
        times.extend(next_check(draft, resource, outcome.placement.devices))
        if outcome.postponed:
            times.append(next_turn(draft.now))
        if outcome.awaits_move:
            times.append(next_move(draft.now))
    return min((time for time in times if time is not None and time > draft.now), default=None)
