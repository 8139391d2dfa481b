"""The loan of one card: a state machine that decides, from what detectors report of the card's
owners, whether the card may be lent.

Pure. `heard` applies an event; `stepped` applies the time and other facts about the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mizar_core.models import Spot
from mizar_core.names import SpotEvictionReason
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, PodIdentity, Source

FLAPPING_S: Final = 600.0
"""If the owners of a card take it back more than once within these seconds, it rests before it is
lent again. The time for which it rests does not count as part of them."""
REST_TIMES: Final = 8
"""The largest number of the rule's idle times that a rest lasts: a card's first rest lasts two of
them, the next one four, and so on, doubling each time."""
REST_MAX_S: Final = 600.0
"""Longest rest, in seconds."""
REMEMBERED: Final = 4
"""How many of the last times that a card was taken back are kept: more would not prolong rests."""
BY_OWNERS: Final = (SpotEvictionReason.OWNER_BACK, SpotEvictionReason.OWNER_ALIVE)
"""Reasons for taking a card back that count towards a rest: its owners came back."""

WITH_NOTICE: Final = (SpotEvictionReason.OWNER_BACK, SpotEvictionReason.DRAIN)
"""Reasons for which a borrower gets its notice. For all others, the card has an owner that did not
agree to a notice, has no owner, or cannot be used."""


class CardState(StrEnum):
    """State of a card's loan."""

    WITHHELD = "Withheld"
    """Not lent: the card has no owner, an owner did not agree, no rule lends it, it has a fault, or
    not all facts about it are known yet."""
    BUSY = "Busy"
    """Not lent: an owner works, has worked within the rule's idle time, or is not known to be
    idle."""
    RESTING = "Resting"
    """Not lent: its owners are idle, but have taken it back too often recently."""
    LENDABLE = "Lendable"
    """The card's owners are idle, and no pod borrows it."""
    LENT = "Lent"
    """A pod borrows the card, and no owner is known to work."""
    RECLAIMING = "Reclaiming"
    """The card is being taken back from its borrower, which still holds it."""

    @property
    def healthy(self) -> bool:
        """Whether the card's spot device is reported as healthy, and thus offered."""
        return self in (CardState.LENDABLE, CardState.LENT)


@dataclass(frozen=True)
class OwnerView:
    """The last reports about one owner of the card. `agrees`: whether it agreed to lend the card.
    `idle_since`: for each source that last reported it idle, since when (monotonic seconds).
    `busy`: the sources that last reported it busy. A source in neither has reported nothing yet."""

    agrees: bool
    idle_since: Mapping[Source, float] = field(default_factory=dict)
    busy: frozenset[Source] = frozenset()

    @property
    def sleeps_since(self) -> float | None:
        """Since when every source reports the owner idle (monotonic seconds); None if one reports
        it busy or has reported nothing yet."""
        if self.busy or len(self.idle_since) < len(Source):
            return None
        return max(self.idle_since.values())

    def heard(self, event: OwnerEvent) -> OwnerView:
        """The view after a BUSY or IDLE event; the same object if nothing changes, as is usual."""
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
    """Facts about the card, apart from its owners.

    `complete`: pods, claims, cards and rules have all been read since the agent started. `rule`:
    the settings by which the card is lent; None if it is not lent. `problem`: why the card cannot
    be used; empty if it can. `borrowed`: a pod holds the spot device, or was just allocated it.
    `revoked`: an earlier agent began to take the card back from that pod. `blind`: the card is
    borrowed, and work of its owners would not be detected. `counted`: the borrower's eviction was
    counted, so that its reason stays.
    """

    complete: bool = False
    rule: Spot | None = None
    problem: str = ""
    borrowed: bool = False
    revoked: bool = False
    blind: bool = False
    counted: bool = False


@dataclass(frozen=True)
class CardLoan:
    """The loan of one card.

    `reason`: why the card is being taken back; None in other states. `since`: when the state began
    (monotonic seconds). `lenders`: the owners when the card was last lent or lendable.
    `taken_back`: the recent times at which owners took the card back (monotonic seconds), each
    shifted later by all rests since then. So none expires during a rest, and the last one is the
    end of the latest rest.
    """

    uuid: str
    state: CardState = CardState.WITHHELD
    reason: SpotEvictionReason | None = None
    since: float = -math.inf
    owners: Mapping[PodIdentity, OwnerView] = field(default_factory=dict)
    lenders: tuple[PodIdentity, ...] = ()
    taken_back: tuple[float, ...] = ()

    @property
    def whose(self) -> tuple[PodIdentity, ...]:
        """The card's owners, or those that lent it if it has none any more; empty if none is
        known."""
        return tuple(sorted(self.owners)) or self.lenders

    @property
    def title(self) -> str:
        """The card and its owners, or those that lent it if it has none any more, for messages."""
        if whose := self.whose:
            return f"card {self.uuid} of {', '.join(map(str, whose))}"
        why = "its owner is not known: this node agent has seen none since it started"
        return f"card {self.uuid} ({why})"

    @property
    def sleeps_since(self) -> float | None:
        """Since when all owners have been idle (monotonic seconds); None if one of them is not
        known to be idle, or the card has no owner."""
        times = [one.sleeps_since for one in self.owners.values()]
        known = [one for one in times if one is not None]
        return max(known) if known and len(known) == len(times) else None

    def heard(self, event: OwnerEvent) -> CardLoan:
        """The loan after a detector's event; the same object if the event changes nothing, such as
        an event about a pod that does not own the card."""
        known = self.owners.get(event.target)
        found = _heard(known, event)
        if found is known:
            return self
        owners = {pod: one for pod, one in self.owners.items() if pod != event.target}
        return replace(self, owners=owners if found is None else owners | {event.target: found})

    def stepped(self, facts: CardFacts, now: float) -> CardLoan:
        """The loan at the time `now` (monotonic seconds), given these facts."""
        lately = self._lately(now)
        found = self if lately == self.taken_back else replace(self, taken_back=lately)
        state = found._borrowed(facts) if facts.borrowed else found._free(facts, now)
        if state.healthy:
            found = found._with_lenders()
        if state is found.state:
            return found._with_last_reason(facts)
        if state is not CardState.RECLAIMING:
            return replace(found, state=state, since=now, reason=None)
        # Without a refusal, the borrower was allocated the card after it was withdrawn.
        reason = found.refusal(facts) or SpotEvictionReason.OWNER_BACK
        # A reclaim that an earlier agent began is in `taken_back` already.
        counts = reason in BY_OWNERS and not facts.revoked
        taken = found._taken_once_more(facts, now) if counts else found.taken_back
        return replace(found, state=state, since=now, reason=reason, taken_back=taken)

    def _with_lenders(self) -> CardLoan:
        owners = tuple(sorted(self.owners))
        return self if owners in ((), self.lenders) else replace(self, lenders=owners)

    def _with_last_reason(self, facts: CardFacts) -> CardLoan:
        """The loan, with a reason that permits no notice in place of one that does, for example if
        the owner that came back is gone by now. The reason is revised only until the eviction is
        counted."""
        if self.reason not in WITH_NOTICE or facts.counted:
            return self
        reason = self.refusal(facts)
        if reason is SpotEvictionReason.DRAIN and self._has_newcomer:
            reason = SpotEvictionReason.OWNER_ALIVE
        return self if reason in (None, *WITH_NOTICE) else replace(self, reason=reason)

    @property
    def _has_newcomer(self) -> bool:
        """Whether an owner came after the card was lent, and does not agree to lend it. Earlier
        owners do not count: those that a rule made agree no longer do so when no rule lends the
        card any more."""
        late = self.owners.keys() - self.lenders if self.lenders else ()
        return any(not self.owners[pod].agrees for pod in late)

    def refusal(self, facts: CardFacts) -> SpotEvictionReason | None:
        """Why no pod may borrow the card, however long its owners have been idle; None if a pod
        may.

        Until the facts are complete, work of an owner is the only reason. Owners whose work would
        not be detected count as working.
        """
        if facts.complete and (why := self._objection(facts)):
            return why
        works = facts.blind or any(one.busy for one in self.owners.values())
        return SpotEvictionReason.OWNER_BACK if works else None

    def wakes_in(self, facts: CardFacts, now: float) -> float | None:
        """Seconds until the state changes without any event; None if it never does."""
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
        """`taken_back` with `now` added, and all times shifted by the rest that begins."""
        rest = self._next_rest(facts.rule or Spot())
        return tuple(at + rest for at in (*self.taken_back, now)[-REMEMBERED:])

    def _next_rest(self, rule: Spot) -> float:
        if not self.taken_back:
            return 0.0
        times = min(1 << len(self.taken_back), REST_TIMES)
        return min(times * rule.idle_after_seconds, REST_MAX_S)


def _heard(known: OwnerView | None, event: OwnerEvent) -> OwnerView | None:
    """The owner after the event; None if it does not hold the card."""
    if event.activity is Activity.GONE:
        return None
    if event.activity is Activity.ALIVE:
        return replace(known or OwnerView(False), agrees=event.agrees)
    return known.heard(event) if known is not None else None
