"""The planner for spot pods: decides which are evicted, whose turn it is to borrow cards, and the
statuses and events about lending.

Pure: no I/O, no clock, no randomness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime

from mizar_core.names import EventReason, SpotEvictionReason
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.evict_share_pods import RETRY_AFTER
from mizar_core.planning.spot.accounts import Accounts
from mizar_core.planning.spot.actions import (
    Borrowing,
    EvictSpot,
    OpenGate,
    SpotAction,
    SpotPlan,
)
from mizar_core.planning.spot.next_borrowers import Room, is_impatient, take_turns
from mizar_core.planning.spot.schedulers import Schedulers
from mizar_core.planning.spot.snapshot import GRACE_S, SpotSnapshot, SpotView
from mizar_core.planning.spot.statuses import write_lent, write_quotas
from mizar_core.planning.spot.waiting_events import unheard_events, waiting_events
from mizar_core.quantities import bounded, counted
from mizar_core.spot_rules import spot_rules


def plan_spot(snapshot: SpotSnapshot, now: datetime) -> SpotPlan:
    """The plan for a snapshot at the time `now`. It is the same for any order of the snapshot's
    parts, and opens and writes nothing more once it is applied."""
    accounts = Accounts(snapshot.quotas, now)
    surplus = list(_surplus(snapshot, accounts, now))
    reason = SpotEvictionReason.QUOTA_RECLAIM if snapshot.enabled else SpotEvictionReason.DRAIN
    evictions = [
        *_lost(snapshot),
        *(_evict(one, reason, at_once=False) for one in surplus),
    ]
    in_use = _cards_of(one for one in snapshot.spots if one.counts(now))
    room, kept = _room(snapshot, now)
    waiting = [one for one in snapshot.spots if one.waits]
    schedulers = Schedulers(snapshot, now)
    granted = list[SpotView]()
    if snapshot.enabled:
        # A card that is given to a pod whose gate stays closed would lie idle.
        able = [one for one in waiting if not snapshot.refusal(one)]
        for turn in _turns(able, snapshot.unanswered):
            granted += take_turns(turn, room, accounts, in_use, schedulers, now)
    served = {one.key for one in granted}
    left = [one for one in waiting if one.key not in served]
    lapsed = [one for one in snapshot.spots if one.has_lapsed(now)]
    borrowing = _borrowing(snapshot, accounts, in_use, [*left, *lapsed])
    events = [_reclaimed(one, reason, accounts) for one in surplus]
    events += waiting_events(snapshot, left, room, accounts, in_use, schedulers)
    events += unheard_events(snapshot, now)
    actions: list[SpotAction] = [*evictions]
    actions += [OpenGate(one.key, one.uid) for one in granted]
    actions += [one for one in events if not one.is_announced(snapshot.announced)]
    actions += write_quotas(snapshot, borrowing, now)
    actions += write_lent(snapshot, now)
    return SpotPlan(
        tuple(actions),
        _due(snapshot, now, retries=bool(evictions)),
        spot_rules(snapshot.pools if snapshot.enabled else ()).to_json(),
        borrowing,
        room.free,
        frozenset(one.subject for one in events if one.is_held_back(snapshot.announced)),
        kept,
    )


def _turns(
    able: list[SpotView], unanswered: frozenset[str]
) -> tuple[list[SpotView], list[SpotView]]:
    """First the pods whose gates may be open already: no other pod may get their cards."""
    first = [one for one in able if one.uid in unanswered]
    return first, [one for one in able if one.uid not in unanswered]


def _lost(snapshot: SpotSnapshot) -> Iterator[EvictSpot]:
    """The evictions of pods that have lost their cards according to a node agent, which has already
    posted the reason as an event."""
    for spot in sorted(snapshot.spots, key=lambda one: one.key):
        if spot.lost is not None and not spot.deleting:
            yield _evict(spot, spot.lost, at_once=True)


def _evict(spot: SpotView, reason: SpotEvictionReason, *, at_once: bool) -> EvictSpot:
    grace = min(spot.grace_s, GRACE_S)
    return EvictSpot(spot.key, spot.uid, reason, at_once=at_once, grace_s=grace)


def _cards_of(spots: Iterable[SpotView]) -> Counter[str]:
    """How many cards the pods of each namespace have, were promised or wait for."""
    cards: Counter[str] = Counter()
    for spot in spots:
        cards[spot.namespace] += spot.cards
    return cards


def _surplus(snapshot: SpotSnapshot, accounts: Accounts, now: datetime) -> Iterator[SpotView]:
    """The pods to evict because their namespace has more cards than its quotas allow, or all pods
    if nothing is lent: those with only a promise first, then the newest; but none whose cards are
    allowed once an older pod that has too many is evicted. The cards of pods that are already
    ending count as given back first, and of these pods only those that linger are evicted.
    A pod whose promise has lapsed is evicted only if it alone requests more than is allowed, or, as
    one of the newest, once it has a node."""

    def allowed(spot: SpotView) -> int:
        return accounts.most(spot.namespace) if snapshot.enabled else 0

    judged = [
        one
        for one in snapshot.spots
        if one.namespace not in snapshot.unreadable or not snapshot.enabled
    ]
    lapsed = (one for one in judged if one.has_lapsed(now) and one.cards > allowed(one))
    yield from sorted(lapsed, key=lambda one: (one.order, one.namespace))
    for spot in _beyond([one for one in judged if one.counts(now)], allowed):
        if not spot.goes or spot.lingers(now):
            yield spot


def _beyond(having: Collection[SpotView], allowed: Callable[[SpotView], int]) -> list[SpotView]:
    """The pods without which each namespace has as many cards as it is allowed, the newest
    first."""
    have, chosen, spared = _cards_of(having), list[SpotView](), set[str]()
    for spot in sorted(having, key=_last_to_go, reverse=True):
        if have[spot.namespace] > allowed(spot):
            have[spot.namespace] -= spot.cards
            chosen.append(spot)
    for spot in reversed(chosen):
        if not spot.goes and have[spot.namespace] + spot.cards <= allowed(spot):
            have[spot.namespace] += spot.cards
            spared.add(spot.uid)
    return [one for one in chosen if one.uid not in spared]


def _last_to_go(spot: SpotView) -> tuple[object, ...]:
    return spot.goes, spot.node is None, spot.seniority, spot.namespace


def _reclaimed(spot: SpotView, reason: SpotEvictionReason, accounts: Accounts) -> EmitEvent:
    allowed = counted(accounts.most(spot.namespace), "card")
    why = f"spot.max of the GPUQuotas of namespace {spot.namespace} now allows {allowed}"
    if reason == SpotEvictionReason.DRAIN:
        why = "this installation no longer lends cards: the chart's value spot.enabled is false"
    return EmitEvent(
        kind="Pod",
        about=spot.key,
        uid=spot.uid,
        type="Warning",
        reason=EventReason.SPOT_EVICTED,
        message=f"evicted ({reason}): {why}; {_losing(spot)}",
    )


def _losing(spot: SpotView) -> str:
    """What an evicted pod loses, as a clause."""
    if spot.node is None:
        return "it has no card yet"
    if spot.borrows:
        return f"it loses {spot.borrows}"
    return (
        "which card it loses, and whose, is not known: the node agent of node"
        f" {spot.node} has not told"
    )


def _room(snapshot: SpotSnapshot, now: datetime) -> tuple[Room, frozenset[str]]:
    """The room that is left for waiting pods, after the pods whose turn has already come, and the
    UIDs of those of the latter that there are cards for."""
    room, kept = Room(snapshot.nodes, snapshot.spots), set[str]()
    for spot in sorted(snapshot.spots, key=lambda one: (one.order, one.namespace)):
        if not spot.promised or spot.has_lapsed(now):
            continue
        if room.place(spot):
            kept.add(spot.uid)
        elif is_impatient(spot, now):
            room.keep(spot)
    return room, frozenset(kept)


def _borrowing(
    snapshot: SpotSnapshot, accounts: Accounts, in_use: Counter[str], left: list[SpotView]
) -> dict[str, Borrowing]:
    """What each namespace borrows, for all namespaces that borrow or may borrow."""
    waiting = _cards_of(left)
    names = {one.metadata.namespace or "" for one in snapshot.quotas if one.spec.spot}
    return {
        name: Borrowing(bounded(in_use[name]), bounded(waiting[name]), accounts.recent(name))
        for name in sorted(names | set(waiting) | set(in_use))
    }


def _due(snapshot: SpotSnapshot, now: datetime, *, retries: bool) -> datetime | None:
    """The next moment at which time alone changes the plan."""
    times = [at for one in snapshot.spots if (at := one.lapses_at()) is not None]
    if retries:
        times.append(now + RETRY_AFTER)
    return min((time for time in times if time > now), default=None)
