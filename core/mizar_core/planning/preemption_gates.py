"""Scheduling gates of share pods that may preempt others.

The scheduler preempts a share pod of lower priority as soon as no device is free, although a shadow
pod on a free card would be ready a moment later. So the webhook gives pods that may preempt a gate.
It is opened when devices are free for the pod, or when none are on their way to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from mizar_core.names import EventReason
from mizar_core.planning.actions import LetPreempt
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.events import NO_QUOTA_AFTER
from mizar_core.planning.preemption import waits_for_cards
from mizar_core.planning.scheduling import Assignment, Availability
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import ShareView

OPENED_AFTER = timedelta(seconds=60)
"""How long a gate stays closed at most, from when the operator first saw it."""
YIELDS_FOR = timedelta(seconds=10)
"""How long a gate stays closed at most so that a pod without a gate, which the scheduler considers
already, takes the free devices; the gated pod would preempt it."""
OPENED_AT_ONCE = 200
"""The most gates that a plan opens: each takes a call, and the rest of the plan follows them."""
REST_AFTER = timedelta(seconds=1)
"""How soon the next plan opens further gates."""


@dataclass(frozen=True, slots=True)
class Gates:
    """`closed`: UIDs of the pods whose gates stay closed. `due`: when time alone opens some."""

    closed: frozenset[str]
    due: tuple[datetime, ...]


def open_gates(draft: Draft, outcomes: Mapping[str, DemandOutcome]) -> Gates:
    """Plan to open the gates of all pods to which no devices are on their way. A pod that requests
    several resources waits for the devices of all of them."""
    gated = [one for one in draft.shares if one.gated]
    if not gated:
        return Gates(frozenset(), ())
    closed = dict(_closed(draft, outcomes, gated))
    opened = {one.uid: one for one in gated if one.uid not in closed}
    oldest = sorted(opened.values(), key=lambda one: (one.created, one.key))
    for share in oldest[:OPENED_AT_ONCE]:
        draft.actions.append(LetPreempt(share.key, share.uid))
    rest = oldest[OPENED_AT_ONCE:]
    due = [*closed.values(), *([draft.now + REST_AFTER] if rest else [])]
    return Gates(frozenset((*closed, *(one.uid for one in rest))), tuple(due))


def _closed(
    draft: Draft, outcomes: Mapping[str, DemandOutcome], gated: Iterable[ShareView]
) -> Iterator[tuple[str, datetime]]:
    """The UIDs of the pods whose gates stay closed, each with the time until which that holds."""
    freed, contended = _freed_cards(draft), set(_contended(outcomes))
    for share in gated:
        outcome, since = outcomes.get(share.resource), draft.gated_since.get(share.uid, draft.now)
        found = outcome.placement.assignments.get(share.uid) if outcome else None
        if found is not None and found.availability is Availability.FREE:
            until = since + YIELDS_FOR if share.resource in contended else draft.now
        elif outcome is None or found is None:
            until = draft.now
        elif _has_quota(draft, share, outcome, found):
            coming = _are_coming(draft, share, outcome, found, freed)
            until = since + OPENED_AFTER if coming else draft.now
        else:
            until = share.created + NO_QUOTA_AFTER
        if until > draft.now:
            yield share.uid, until


def _contended(outcomes: Mapping[str, DemandOutcome]) -> Iterator[str]:
    """The resources of which a pod without a gate gets devices only a moment later."""
    for resource, outcome in outcomes.items():
        assignments = outcome.placement.assignments
        waiting = (assignments.get(one.uid) for one in outcome.waiting if not one.gated)
        if any(one is not None and one.availability is Availability.COMING for one in waiting):
            yield resource


def _has_quota(draft: Draft, share: ShareView, outcome: DemandOutcome, found: Assignment) -> bool:
    """Whether a quota allows shadow pods for the pod, or one is created for it in this plan."""
    if found.availability is not Availability.NONE or share.uid in outcome.denials:
        return True
    return share.namespace in draft.granted


def _are_coming(
    draft: Draft, share: ShareView, outcome: DemandOutcome, found: Assignment, freed: set[str]
) -> bool:
    """Whether devices are on their way to the pod, or a card for them is being freed. `freed`: the
    physical resources of which cards are being freed."""
    if found.availability in (Availability.COMING, Availability.POSTPONED):
        return True
    if found.availability is Availability.BLOCKED and found.shadow is not None:
        shadow = draft.shadows[found.shadow]
        pool = draft.pools.get(shadow.pool)
        return waits_for_cards(draft, shadow) and (
            pool is not None and pool.spec.physical_resource in freed
        )
    denial = outcome.denials.get(share.uid)
    if denial is not None:
        return denial.reason is EventReason.WAITING_FOR_SHADOW
    return share.namespace in draft.granted


def _freed_cards(draft: Draft) -> set[str]:
    """The physical resources of the cards of shadow pods that are drained or deleted and that no
    pod uses."""
    going = (ShadowStage.DRAINING, ShadowStage.LEAVING)
    pools = (
        draft.pools.get(shadow.pool)
        for shadow, stage in draft.in_order()
        if stage in going and not shadow.held
    )
    return {pool.spec.physical_resource for pool in pools if pool is not None}
