"""Scheduling gates of share pods that may preempt others.

The scheduler preempts a share pod of lower priority as soon as no device is free, although a shadow
pod on a free card would be ready a moment later. So the webhook gives pods that may preempt a gate.
It is opened when devices are free for the pod, or when none are on their way to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from mizar_core.names import EventReason
from mizar_core.planning.actions import LetPreempt
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.events import NO_QUOTA_AFTER
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.preempt_idle import waits_for_cards
from mizar_core.planning.scheduler_simulation import Assignment, Availability, NodeDevices
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import ShareView

OPENED_AFTER = timedelta(seconds=60)
"""How long a gate stays closed at most, from when the operator first saw it."""
YIELDS_FOR = timedelta(seconds=10)
"""How long devices that became free are left to a pod without a gate, which the scheduler considers
already: the gated pod would preempt it."""
BLOCKED_FOR = timedelta(seconds=2)
"""How long a pod whose shadow pod finds no card waits at least, from when the operator first saw
it: the plans of other pools may give up cards for it."""
FREED_FOR = timedelta(seconds=10)
"""How long a card counts as being freed after its shadow pod has gone: the scheduler takes a moment
to give it to the next one."""
OPENED_AT_ONCE = 200
"""The most gates that a plan opens: each takes a call, and the rest of the plan follows them."""
REST_AFTER = timedelta(seconds=1)
"""How soon further gates are opened if nothing else requests a plan."""


@dataclass(frozen=True, slots=True)
class Gates:
    """`due`: when time alone opens some. `freed`: the physical resources of which cards are being
    freed now."""

    due: tuple[datetime, ...] = ()
    freed: frozenset[str] = frozenset()


def open_gates(draft: Draft, outcomes: Mapping[str, DemandOutcome]) -> Gates:
    """Plan to open the gates of all pods to which no devices are on their way. A pod that requests
    several resources waits for the devices of all of them."""
    freed = frozenset(_freed_cards(draft))
    gated = [one for one in draft.shares if one.gated and one.uid not in draft.unopenable]
    if not gated:
        return Gates(freed=freed)
    closed = dict(_closed(draft, outcomes, gated, freed))
    found = {one.uid: one for one in gated if one.uid not in closed}
    # Pods of one tenant that only ask for what they cannot get do not hold up the others.
    opened = sorted(
        found.values(), key=lambda one: (not _has_devices(outcomes, one), one.created, one.key)
    )
    for share in opened[:OPENED_AT_ONCE]:
        draft.actions.append(LetPreempt(share.key, share.uid))
    rest = [draft.now + REST_AFTER] if opened[OPENED_AT_ONCE:] else []
    return Gates((*closed.values(), *rest), freed)


def _closed(
    draft: Draft,
    outcomes: Mapping[str, DemandOutcome],
    gated: Iterable[ShareView],
    freed: Collection[str],
) -> Iterator[tuple[str, datetime]]:
    """The UIDs of the pods whose gates stay closed, each with the time until which that holds."""
    contended = dict(_contended(draft, outcomes))
    for share in gated:
        outcome, since = outcomes.get(share.resource), draft.gated_since.get(share.uid, draft.now)
        found = _assignment(outcomes, share)
        if found is None or outcome is None:
            continue
        if found.availability is Availability.FREE:
            until = contended.get(share.resource, draft.now)
        elif found.availability is Availability.BLOCKED:
            until = max(since + BLOCKED_FOR, _freed_until(draft, found, freed))
        elif _has_quota(draft, share, outcome, found):
            coming = _are_coming(draft, share, outcome, found)
            until = since + OPENED_AFTER if coming else draft.now
        else:
            until = min(share.created, since) + NO_QUOTA_AFTER
        until = min(until, since + OPENED_AFTER)
        if until > draft.now:
            yield share.uid, until


def _assignment(outcomes: Mapping[str, DemandOutcome], share: ShareView) -> Assignment | None:
    outcome = outcomes.get(share.resource)
    return outcome.placement.assignments.get(share.uid) if outcome else None


def _has_devices(outcomes: Mapping[str, DemandOutcome], share: ShareView) -> bool:
    found = _assignment(outcomes, share)
    return found is not None and found.availability is Availability.FREE


def _contended(
    draft: Draft, outcomes: Mapping[str, DemandOutcome]
) -> Iterator[tuple[str, datetime]]:
    """The resources of which a pod without a gate could take the free devices, though its own are
    on their way; each with the time until which they are left to it."""
    for resource, outcome in outcomes.items():
        rooms = {name: room for name, room in outcome.placement.devices.items() if room.free}
        # Of very many pods, most want the same.
        wanted = {(one.count, one.needs) for one in outcome.waiting if _is_due(outcome, one)}
        if any(_fits(draft, rooms, *one) for one in wanted):
            times = [draft.free_since.get((resource, name), (draft.now,))[-1] for name in rooms]
            yield resource, max(times) + YIELDS_FOR


def _is_due(outcome: DemandOutcome, share: ShareView) -> bool:
    """Whether the pod has no gate, and its devices are on their way."""
    found = outcome.placement.assignments.get(share.uid)
    return not share.gated and found is not None and found.availability is Availability.COMING


def _fits(draft: Draft, rooms: Mapping[str, NodeDevices], count: int, needs: Needs) -> bool:
    return any(
        room.free >= count and fits(needs, draft.nodes[name]) for name, room in rooms.items()
    )


def _has_quota(draft: Draft, share: ShareView, outcome: DemandOutcome, found: Assignment) -> bool:
    """Whether a quota allows shadow pods for the pod, or one is created for it in this plan."""
    if found.availability is not Availability.NONE or share.uid in outcome.denials:
        return True
    return share.namespace in draft.granted


def _are_coming(draft: Draft, share: ShareView, outcome: DemandOutcome, found: Assignment) -> bool:
    """Whether devices are on their way to the pod."""
    if found.availability in (Availability.COMING, Availability.POSTPONED):
        return True
    denial = outcome.denials.get(share.uid)
    if denial is not None:
        return denial.reason is EventReason.WAITING_FOR_SHADOW
    return share.namespace in draft.granted


def _freed_until(draft: Draft, found: Assignment, freed: Collection[str]) -> datetime:
    """Until when a card may become free for the shadow pod that the pod depends on."""
    shadow = draft.shadows[found.shadow] if found.shadow else None
    pool = draft.pools.get(shadow.pool) if shadow else None
    if shadow is None or pool is None or not waits_for_cards(draft, shadow):
        return draft.now
    if pool.spec.physical_resource in freed:
        return draft.now + OPENED_AFTER
    return draft.freed_until.get(pool.spec.physical_resource, draft.now)


def _freed_cards(draft: Draft) -> Iterator[str]:
    """The physical resources of the cards of shadow pods that are drained or deleted and that no
    pod uses, on nodes that answer."""
    going = (ShadowStage.DRAINING, ShadowStage.LEAVING)
    for shadow, stage in draft.unsettled():
        if stage not in going or shadow.held or shadow.contested:
            continue
        node, pool = draft.nodes.get(shadow.on_node or ""), draft.pools.get(shadow.pool)
        answers = node is not None and node.available and shadow.key not in draft.silence.shadows
        if pool is not None and answers:
            yield pool.spec.physical_resource
