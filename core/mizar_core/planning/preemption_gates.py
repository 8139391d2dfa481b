"""Scheduling gates of share pods that may preempt others.

The scheduler preempts a share pod of lower priority as soon as no device is free, although a shadow
pod on a free card would be ready a moment later. So the webhook gives pods that may preempt a gate.
It is opened when devices are free for the pod, or when no shadow pod is on its way for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from mizar_core.planning.actions import LetPreempt
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.scheduling import Availability
from mizar_core.planning.snapshot import ShareView

OPENED_AFTER = timedelta(seconds=60)
"""How long after its creation a pod's gate is opened even if its devices are still on their way."""
ON_THEIR_WAY = (Availability.COMING, Availability.POSTPONED)


def open_gates(draft: Draft, outcomes: Mapping[str, DemandOutcome]) -> None:
    """Plan to open the gates of all pods whose devices are free, or not on their way."""
    closed = {one.uid for one in waiting_behind_gates(draft, outcomes)}
    opened = {one.uid: one for one in _gated(draft) if one.uid not in closed}
    for uid, share in sorted(opened.items()):
        draft.actions.append(LetPreempt(share.key, uid))


def waiting_behind_gates(
    draft: Draft, outcomes: Mapping[str, DemandOutcome]
) -> Iterable[ShareView]:
    """The pods whose gates stay closed, since devices are on their way."""
    for share in _gated(draft):
        outcome = outcomes.get(share.resource)
        found = outcome.placement.assignments.get(share.uid) if outcome else None
        coming = found is not None and found.availability in ON_THEIR_WAY
        if coming and draft.now < opens_at(share):
            yield share


def opens_at(share: ShareView) -> datetime:
    """When a pod's gate is opened at the latest."""
    return share.created + OPENED_AFTER


def _gated(draft: Draft) -> Iterable[ShareView]:
    return (one for one in draft.shares if one.gated)
