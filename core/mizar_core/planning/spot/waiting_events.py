"""The events that say why spot pods wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from mizar_core.names import EventReason
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.spot.accounts import Accounts
from mizar_core.planning.spot.next_borrowers import Room, queues
from mizar_core.planning.spot.schedulers import Schedulers
from mizar_core.planning.spot.snapshot import UNHEARD_AFTER, SpotSnapshot, SpotView
from mizar_core.quantities import counted

_MINUTES = f"{UNHEARD_AFTER.seconds // 60} minutes"


def waiting_events(
    snapshot: SpotSnapshot,
    left: Sequence[SpotView],
    room: Room,
    accounts: Accounts,
    in_use: Counter[str],
    schedulers: Schedulers,
) -> Iterator[EmitEvent]:
    """An event for each pod whose turn it is not yet."""
    queue = queues(left)
    for name, pods in queue.items():
        for place, spot in enumerate(pods):
            why = (
                _not_installed(snapshot)
                or _unopenable(snapshot, spot)
                or _over_quota(spot, accounts, in_use)
                or _unheard(spot, schedulers)
                or _no_card(spot, room, _before(queue, name, place, accounts, in_use))
            )
            yield _event(spot, why)


def unheard_events(snapshot: SpotSnapshot, now: datetime) -> Iterator[EmitEvent]:
    """An event for each pod whose turn has come and about which its scheduler reports nothing."""
    for spot in sorted(snapshot.spots, key=lambda one: one.key):
        if spot.is_unheard(now):
            yield _event(
                spot,
                f"its turn has come, but for {_MINUTES} the scheduler {spot.scheduler} has found no"
                " node for it and reported nothing new: its card may be given to another pod",
            )


def _event(spot: SpotView, message: str) -> EmitEvent:
    return EmitEvent(
        kind="Pod",
        about=spot.key,
        uid=spot.uid,
        type="Normal",
        reason=EventReason.SPOT_WAITING,
        message=message,
    )


def _unheard(spot: SpotView, schedulers: Schedulers) -> str:
    if schedulers.takes(spot):
        return ""
    return (
        f"waits: the scheduler {spot.scheduler} has reported nothing since the turn of another spot"
        f" pod came {_MINUTES} ago"
    )


def _not_installed(snapshot: SpotSnapshot) -> str:
    if snapshot.enabled:
        return ""
    return "waits until cards are lent again: the chart's value spot.enabled is false"


def _unopenable(snapshot: SpotSnapshot, spot: SpotView) -> str:
    if not (refusal := snapshot.refusal(spot)):
        return ""
    whose = "its gate" if spot.uid in snapshot.unopenable else "gates in its namespace"
    return f"the API server does not let {whose} be opened: {refusal}"


def _over_quota(spot: SpotView, accounts: Accounts, in_use: Counter[str]) -> str:
    have, most = in_use[spot.namespace], accounts.most(spot.namespace)
    if have + spot.cards <= most:
        return ""
    return (
        f"waits for other spot pods to end: namespace {spot.namespace} borrows {have} of the"
        f" {counted(most, 'card')} that spot.max of its GPUQuotas allows"
    )


def _no_card(spot: SpotView, room: Room, before: int) -> str:
    turn = f"{counted(before, 'spot pod')} ahead of it" if before else "it is next"
    if room.has_place(spot):
        kept = f"what is left of the quotas of namespace {spot.namespace} is kept for a pod"
        return f"waits for its turn: {kept} that wants several cards; {turn}"
    if room.total:
        where = "but no node where it can run has enough of them"
        return f"waits: {counted(room.total, 'card')} could be lent, {where}; {turn}"
    if room.free_cards:
        return f"waits for its turn: free cards are kept for pods that want several; {turn}"
    return f"waits for its turn: no card of a sleeping owner is free; {turn}"


def _before(
    queue: Mapping[str, Sequence[SpotView]],
    name: str,
    place: int,
    accounts: Accounts,
    in_use: Counter[str],
) -> int:
    """How many pods have their turn before the one at `place` of its namespace, if namespaces take
    turns one by one."""
    own = accounts.figure(name, in_use[name]), name
    return place + sum(
        min(len(pods), place + ((accounts.figure(other, in_use[other]), other) < own))
        for other, pods in queue.items()
        if other != name
    )
