"""From what is there to what has to be done. Pure: no I/O, no clock, no chance."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from mizar_core.planning.actions import (
    EvictShare,
    Plan,
)
from mizar_core.planning.demand import Outcome, keep_warm, meet
from mizar_core.planning.device_users import protect
from mizar_core.planning.draft import Draft
from mizar_core.planning.events import SCHEDULING, announce, explain
from mizar_core.planning.evict import AGAIN_AFTER, evict
from mizar_core.planning.lifecycle import finish_drains, settle
from mizar_core.planning.preemption import give_way
from mizar_core.planning.reap import Spare, idle_until, reap, retire_surplus
from mizar_core.planning.recarve import recarve
from mizar_core.planning.refused_nodes import next_look
from mizar_core.planning.replacement import replace_idle
from mizar_core.planning.shadow_stage import Stage, patient_until
from mizar_core.planning.snapshot import Snapshot
from mizar_core.planning.statuses import (
    quota_figures,
    write_pools,
    write_quotas,
    write_shadows,
)

ROUNDS_MAX = 10


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """What to do now. The same for any order of the snapshot's parts; empty once applied."""
    with _without_collector():
        return _plan(snapshot, now)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A plan makes very many small objects and no cycles. To look for cycles in all of the process
    every few thousand of them would take the longer, the larger the cluster is."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _plan(snapshot: Snapshot, now: datetime) -> Plan:
    draft = Draft(snapshot, now)
    outcomes = _decide(draft)
    protect(draft)
    recarve(draft)
    evict(draft)
    announce(draft, snapshot)
    waiting = Counter[tuple[str, str]]()
    for resource, outcome in outcomes.items():
        for share, event in explain(draft, resource, outcome):
            waiting[share.namespace, str(event.reason) if event else SCHEDULING] += 1
            if event is not None:
                draft.say(event)
    write_shadows(draft)
    quotas = write_quotas(draft, quota_figures(draft, outcomes), outcomes)
    write_pools(draft)
    return Plan(
        tuple(draft.actions),
        _due(draft, outcomes),
        quotas,
        waiting=waiting,
        free=_free(outcomes),
        tries=tuple(draft.tries),
    )


def _decide(draft: Draft) -> dict[str, Outcome]:
    """Round after round until one adds nothing, so that planning again would add nothing.

    A second round finds work only where a drain makes room in a quota for cancelling another.
    """
    for _ in range(ROUNDS_MAX):
        planned = len(draft.actions)
        outcomes = _round(draft)
        if len(draft.actions) == planned:
            break
    return outcomes


def _round(draft: Draft) -> dict[str, Outcome]:
    settle(draft)
    retire_surplus(draft)
    keep_warm(draft, [one for one in draft.offers if not draft.waiting(one.resource)])
    outcomes = {resource: meet(draft, resource) for resource in draft.resources()}
    # Those who wait said first where their shadow pods have to be; what comes free is theirs.
    denials = (one for made in outcomes.values() for one in made.denials.values())
    owing = {one.offer.shape for one in denials if one.offer is not None}
    keep_warm(draft, [one for one in draft.offers if one.shape not in owing])
    finish_drains(draft)
    spare = Spare(draft, outcomes)
    for resource, outcome in outcomes.items():
        reap(draft, resource, outcome, spare)
    give_way(draft, outcomes, spare)
    replace_idle(draft, outcomes, spare)
    return outcomes


def _free(outcomes: dict[str, Outcome]) -> dict[tuple[str, str], int]:
    """How many devices of a resource are free on a node, where any are."""
    return {
        (resource, node): room.free
        for resource, outcome in outcomes.items()
        for node, room in outcome.placement.pot.items()
        if room.free
    }


def _due(draft: Draft, outcomes: dict[str, Outcome]) -> datetime | None:
    """The next moment at which time alone changes the plan."""
    times: list[datetime | None] = []
    if any(isinstance(one, EvictShare) for one in draft.actions):
        times.append(draft.now + AGAIN_AFTER)
    for shadow, stage in draft.in_order():
        if stage is Stage.READY:
            times.append(idle_until(draft, shadow))
        elif stage is Stage.STARTING:
            times.append(patient_until(shadow))
    for resource, outcome in outcomes.items():
        times.extend(next_look(draft, resource, outcome.placement.pot))
    return min((time for time in times if time is not None and time > draft.now), default=None)
