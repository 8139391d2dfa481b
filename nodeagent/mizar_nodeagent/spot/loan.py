"""The loan of one card: from what detectors tell of its owners to whether it may be lent.

Pure. `heard` takes events in, `stepped` moves on with time and with what is known of the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mizar_core.models import Spot
from mizar_core.names import SpotEvictionReason
from mizar_nodeagent.spot.events import Activity, OwnerEvent, PodIdentity, Source

FLAPPING_S: Final = 600.0
"""A card that was taken back more than once in so long, but for the time for which it rested, rests
before it is lent again."""
REST_TIMES: Final = 8
"""It rests twice its idle time, then four times, and so many times at most."""
REST_MAX_S: Final = 600.0
"""Longest rest."""
REMEMBERED: Final = 4
"""More times that it was taken back make no rest longer."""
BY_OWNERS: Final = (SpotEvictionReason.OWNER_BACK, SpotEvictionReason.OWNER_ALIVE)
"""Only these count for a rest: owners that come back."""


class CardState(StrEnum):
    """What may happen to a card."""

    WITHHELD = "Withheld"
    """Nobody owns it, an owner did not agree, its pool lends nothing, it is broken, or not
    everything about it has been seen yet."""
    BUSY = "Busy"
    """An owner works, or has worked until lately."""
    RESTING = "Resting"
    """Its owners sleep, but it was taken back too often of late."""
    LENDABLE = "Lendable"
    """Its owners sleep, and nobody has borrowed it."""
    LENT = "Lent"
    RECLAIMING = "Reclaiming"
    """Its borrower has to go, and is not gone yet."""

    @property
    def healthy(self) -> bool:
        """Whether the spot device is offered."""
        return self in (CardState.LENDABLE, CardState.LENT)


@dataclass(frozen=True)
class OwnerView:
    """One owner of the card. `idle_since`: by source, since when it has been idle (monotonic
    seconds). `busy`: the sources that saw it work last. A source in neither has not seen it yet."""

    agrees: bool
    idle_since: Mapping[Source, float] = field(default_factory=dict)
    busy: frozenset[Source] = frozenset()

    @property
    def sleeps_since(self) -> float | None:
        """None while it works, and until every source has seen it."""
        if self.busy or len(self.idle_since) < len(Source):
            return None
        return max(self.idle_since.values())

    def heard(self, event: OwnerEvent) -> OwnerView:
        """With what a source saw of it; the same object if that is nothing new, as mostly."""
        source = event.source
        assert source is not None
        if self._is_known(event, source):
            return self
        others = {one: at for one, at in self.idle_since.items() if one is not source}
        if event.activity is Activity.BUSY:
            return replace(self, idle_since=others, busy=self.busy | {source})
        return replace(self, idle_since=others | {source: event.at}, busy=self.busy - {source})

    def _is_known(self, event: OwnerEvent, source: Source) -> bool:
        if event.activity is Activity.BUSY:
            return source in self.busy
        return source not in self.busy and self.idle_since.get(source) == event.at


@dataclass(frozen=True)
class CardFacts:
    """What is known of the card beside its owners.

    `complete`: pods, claims, cards and rules have all been seen since the agent started. `rule`:
    by which it is lent; None if it is not. `problem`: why nobody should use it. `borrowed`: a pod
    holds its spot device, or has just been given it. `revoked`: an earlier agent has begun to take
    it back from that pod. `blind`: it is borrowed, and nothing would tell that an owner works.
    """

    complete: bool = False
    rule: Spot | None = None
    problem: str = ""
    borrowed: bool = False
    revoked: bool = False
    blind: bool = False


@dataclass(frozen=True)
class CardLoan:
    """A card and its borrower. `reason`: why it is being taken back. `since`: when the state began
    (monotonic seconds). `taken_back`: when its owners took it back of late, each put off by the
    rests since then: so nothing is forgotten while it rests, and the last is the end of its rest.
    """

    uuid: str
    state: CardState = CardState.WITHHELD
    reason: SpotEvictionReason | None = None
    since: float = -math.inf
    owners: Mapping[PodIdentity, OwnerView] = field(default_factory=dict)
    taken_back: tuple[float, ...] = ()

    @property
    def sleeps_since(self) -> float | None:
        """Since when all owners have been idle; None if one is not, or there are none."""
        times = [one.sleeps_since for one in self.owners.values()]
        known = [one for one in times if one is not None]
        return max(known) if known and len(known) == len(times) else None

    def heard(self, event: OwnerEvent) -> CardLoan:
        """With what a detector told of an owner; the same object if that changes nothing, as other
        pods' events do."""
        known = self.owners.get(event.target)
        found = _heard(known, event)
        if found is known:
            return self
        owners = {pod: one for pod, one in self.owners.items() if pod != event.target}
        return replace(self, owners=owners if found is None else owners | {event.target: found})

    def stepped(self, facts: CardFacts, now: float) -> CardLoan:
        """The card at this moment."""
        lately = self._lately(now)
        found = self if lately == self.taken_back else replace(self, taken_back=lately)
        state = found._borrowed(facts) if facts.borrowed else found._free(facts, now)
        if state is found.state:
            return found
        if state is not CardState.RECLAIMING:
            return replace(found, state=state, since=now, reason=None)
        # One that came although its card was not offered any more came too late.
        reason = found.refusal(facts) or SpotEvictionReason.OWNER_BACK
        # What an earlier agent has begun is in the history already.
        counts = reason in BY_OWNERS and not facts.revoked
        taken = found._taken_once_more(facts, now) if counts else found.taken_back
        return replace(found, state=state, since=now, reason=reason, taken_back=taken)

    def refusal(self, facts: CardFacts) -> SpotEvictionReason | None:
        """Why nobody may borrow the card, however long its owners sleep; None if somebody may.

        While not everything has been seen, only that an owner works is certain. One that cannot be
        watched counts as one that does.
        """
        if facts.complete and (why := self._objection(facts)):
            return why
        works = facts.blind or any(one.busy for one in self.owners.values())
        return SpotEvictionReason.OWNER_BACK if works else None

    def wakes_in(self, facts: CardFacts, now: float) -> float | None:
        """Seconds until time alone changes the state; None if it never does."""
        slept = self.sleeps_since
        if facts.borrowed or facts.rule is None or slept is None:
            return None
        at = max(slept + facts.rule.idle_after_seconds, self._rests_until)
        return at - now if at > now else None

    def _objection(self, facts: CardFacts) -> SpotEvictionReason | None:
        if facts.problem:
            return SpotEvictionReason.DEVICE_LOST
        if not self.owners:
            return SpotEvictionReason.OWNER_GONE
        if facts.rule is None:
            return SpotEvictionReason.DRAIN
        if not all(one.agrees for one in self.owners.values()):
            return SpotEvictionReason.OWNER_ALIVE
        return None

    def _borrowed(self, facts: CardFacts) -> CardState:
        late = self.state in (CardState.RECLAIMING, CardState.BUSY, CardState.RESTING)
        goes = late or facts.revoked or self.refusal(facts)
        return CardState.RECLAIMING if goes else CardState.LENT

    def _free(self, facts: CardFacts, now: float) -> CardState:
        if facts.rule is None or not facts.complete or self._objection(facts):
            return CardState.WITHHELD
        slept = self.sleeps_since
        if slept is None or now - slept < facts.rule.idle_after_seconds:
            return CardState.BUSY
        return CardState.RESTING if now < self._rests_until else CardState.LENDABLE

    def _lately(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.taken_back if now - at < FLAPPING_S)

    @property
    def _rests_until(self) -> float:
        return self.taken_back[-1] if self.taken_back else -math.inf

    def _taken_once_more(self, facts: CardFacts, now: float) -> tuple[float, ...]:
        """`taken_back` with this moment, all of it put off by the rest that begins."""
        rest = self._next_rest(facts.rule or Spot())
        return tuple(at + rest for at in (*self.taken_back, now)[-REMEMBERED:])

    def _next_rest(self, rule: Spot) -> float:
        if not self.taken_back:
            return 0.0
        times = min(1 << len(self.taken_back), REST_TIMES)
        return min(times * rule.idle_after_seconds, REST_MAX_S)


def _heard(known: OwnerView | None, event: OwnerEvent) -> OwnerView | None:
    """The owner after the event; None if it holds the card no more, or never did."""
    if event.activity is Activity.GONE:
        return None
    if event.activity is Activity.ALIVE:
        return replace(known or OwnerView(False), agrees=event.agrees)
    return known.heard(event) if known is not None else None
