"""The loan of a card under every order of events: never beside an owner that works or disagrees."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mizar_core.models import Spot
from mizar_core.names import SpotEvictionReason
from mizar_nodeagent.spot.loan import (
    FLAPPING_S,
    REMEMBERED,
    REST_MAX_S,
    REST_TIMES,
    WITH_NOTICE,
    CardFacts,
    CardLoan,
)
from mizar_nodeagent.spot.loan import CardState as State
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, PodIdentity, Source
from support.effort import effort

CARD = "GPU-1"
IDLE_S = 10
OWNERS = tuple(PodIdentity("team-a", f"owner-{number}", f"uid-{number}") for number in range(2))
owners = st.sampled_from(OWNERS)
sources = st.sampled_from(Source)
LOSSES = (
    SpotEvictionReason.OWNER_ALIVE,
    SpotEvictionReason.OWNER_GONE,
    SpotEvictionReason.DEVICE_LOST,
    SpotEvictionReason.DRAIN,
)
OFTEN = {
    *(f"taken back: {why}" for why in (SpotEvictionReason.OWNER_BACK, *LOSSES)),
    "Withheld to Busy",
    "Withheld to Reclaiming",
    "Busy to Lendable",
    "Busy to Resting",
    "Busy to Reclaiming",
    "Resting to Busy",
    "Resting to Lendable",
    "Lendable to Lent",
    "Lent to Reclaiming",
    "Reclaiming to Busy",
    "Reclaiming to Withheld",
}
"""What must occur among REACHING runs of the machine."""
REACHING = 60


class Loans(RuleBasedStateMachine):
    """A card, its owners, and a pod that borrows the card whenever it may. `reached`: what happened
    in any of the runs."""

    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.loan = CardLoan(CARD)
        self.facts: dict[str, Any] = {"complete": False, "rule": Spot(idle_after_seconds=IDLE_S)}
        self.agree: dict[PodIdentity, bool] = {}
        self.works: set[PodIdentity] = set()
        self.seen: dict[PodIdentity, set[Source]] = {}
        self.idle_at: dict[PodIdentity, float] = {}
        self.taken: list[float] = []

    # ---- what happens ----

    @rule(who=owners, agrees=st.sampled_from([True, True, False]))
    def comes(self, who: PodIdentity, agrees: bool) -> None:
        self._tell(Activity.ALIVE, who, agrees=agrees)
        if who not in self.agree:
            self.seen[who] = set()
        self.agree[who] = agrees

    @rule(who=owners)
    def goes(self, who: PodIdentity) -> None:
        self._tell(Activity.GONE, who)
        self.agree.pop(who, None)
        self.works.discard(who)

    @precondition(lambda self: self.agree)
    @rule(who=owners, source=sources)
    def wakes(self, who: PodIdentity, source: Source) -> None:
        self._tell(Activity.BUSY, who, source)
        if who in self.agree:
            self.works.add(who)
            self.seen[who].add(source)

    @rule(who=st.sampled_from([OWNERS, OWNERS, OWNERS[:1], OWNERS[1:]]))
    def sleep(self, who: tuple[PodIdentity, ...]) -> None:
        for one in who:
            for source in Source:
                self._tell(Activity.IDLE, one, source)
                if one in self.agree:
                    self.seen[one].add(source)
            self.idle_at[one] = self.now
            self.works.discard(one)

    @rule(who=owners, after=st.sampled_from([0.0, IDLE_S, REST_TIMES * IDLE_S]))
    def takes_it_back(self, who: PodIdentity, after: float) -> None:
        """Nothing prevents it, so the card is lent, and one owner comes back."""
        if self._lends(after):
            self.wakes(who, Source.USAGE)
            assert self.loan.state is State.RECLAIMING
            self.is_returned()

    @rule(who=owners, why=st.sampled_from(LOSSES))
    def is_lent_and_lost(self, who: PodIdentity, why: SpotEvictionReason) -> None:
        """The card is lent, and something else than its owners ends that."""
        if self._lends(REST_MAX_S):
            self._lose(why, who)
            assert self.loan.reason is why

    def _lends(self, after: float) -> bool:
        """Whether the card is lent, so much later than nothing prevents it and its owners sleep."""
        self._know(complete=True, rule=Spot(idle_after_seconds=IDLE_S), problem="")
        self._know(borrowed=False, revoked=False)
        for one in OWNERS:
            self.comes(one, True)
        self.sleep(OWNERS)
        self.time_passes(IDLE_S)
        self.time_passes(after)
        if self.loan.state is State.LENDABLE:
            self.is_borrowed()
        return self.loan.state is State.LENT

    def _lose(self, why: SpotEvictionReason, who: PodIdentity) -> None:
        match why:
            case SpotEvictionReason.OWNER_ALIVE:
                self.comes(who, False)
            case SpotEvictionReason.OWNER_GONE:
                for one in OWNERS:
                    self.goes(one)
            case SpotEvictionReason.DEVICE_LOST:
                self._know(problem="it is gone")
            case SpotEvictionReason.DRAIN:
                self._know(rule=None)

    @rule(seconds=st.sampled_from([0.5, IDLE_S, IDLE_S, 60, REST_MAX_S, FLAPPING_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._step()

    @rule(complete=st.sampled_from([True, True, True, False]))
    def all_is_seen(self, complete: bool) -> None:
        self._know(complete=complete)

    @rule(enabled=st.sampled_from([True, True, False]))
    def the_rules_change(self, enabled: bool) -> None:
        self._know(rule=Spot(idle_after_seconds=IDLE_S) if enabled else None)

    @rule(problem=st.sampled_from(["", "", "", "it is gone"]))
    def the_card_fails(self, problem: str) -> None:
        self._know(problem=problem)

    @precondition(lambda self: self.loan.state is State.LENDABLE)
    @rule()
    def is_borrowed(self) -> None:
        self._know(borrowed=True)
        assert self.loan.state is State.LENT

    @precondition(lambda self: self.loan.state in (State.LENT, State.RECLAIMING))
    @rule()
    def is_returned(self) -> None:
        self._know(borrowed=False, revoked=False)
        assert self.loan.state not in (State.LENT, State.RECLAIMING)

    @precondition(lambda self: self.loan.state not in (State.LENDABLE, State.LENT))
    @rule()
    def is_borrowed_too_late(self) -> None:
        """By what the kubelet knew a moment ago; the agent itself may have just started."""
        self._know(borrowed=True)

    @rule(remembers=st.sampled_from([True, True, False]))
    def the_agent_starts_anew(self, remembers: bool) -> None:
        """The agent starts with its checkpoint, or without."""
        taking_back = self.loan.state is State.RECLAIMING
        self.loan = CardLoan(CARD, taken_back=self.loan.taken_back if remembers else ())
        self.taken = self.taken if remembers else []
        self.facts["revoked"] = taking_back
        for who, agrees in self.agree.items():
            self._hear(Activity.ALIVE, who, agrees=agrees)
            self.seen[who] = set()
        self.works.clear()
        self._know(complete=False)

    # ---- what must hold ----

    @invariant()
    def nobody_works_beside_a_borrower(self) -> None:
        if self.loan.state.healthy:
            assert not self.works

    @invariant()
    def whoever_did_not_agree_lends_nothing(self) -> None:
        if self.loan.state.healthy and self.facts["complete"]:
            assert self.agree and all(self.agree.values())
            assert self.facts["rule"] and not self.facts.get("problem")

    @invariant()
    def what_is_lendable_was_quiet_for_long_and_seen_by_all(self) -> None:
        if self.loan.state is State.LENDABLE:
            assert self.facts["complete"]
            for who in self.agree:
                assert self.seen[who] == set(Source)
                assert self.now - self.idle_at[who] >= IDLE_S

    @invariant()
    def what_was_taken_back_often_rests_but_not_for_ever(self) -> None:
        lately = [at for at in self.taken if self.now - at < FLAPPING_S]
        assert len(self.loan.taken_back) >= min(len(lately), REMEMBERED)
        if self.loan.state is State.LENDABLE and len(lately) > 1:
            assert self.now - lately[-1] >= 2 * IDLE_S
        if self.loan.state is State.RESTING:
            assert len(self.taken) > 1
            # Where the rules were not known when it was taken back, the default idle time counted.
            idle_s = max(IDLE_S, Spot().idle_after_seconds)
            assert self.now - self.taken[-1] < min(REST_TIMES * idle_s, REST_MAX_S)

    @invariant()
    def all_that_may_be_lent_is_lent_again(self) -> None:
        """The card is lent once all owners sleep, within a bounded time."""
        loan, facts = self.loan, CardFacts(**{**self.facts, "borrowed": False})
        later = self.now + 1
        for who in self.agree:
            for source in Source:
                loan = loan.heard(OwnerEvent(Activity.IDLE, who, frozenset({CARD}), later, source))
        loan = loan.stepped(facts, later).stepped(facts, later + REST_MAX_S + IDLE_S)
        permitted = facts.complete and facts.rule and not facts.problem
        lends = permitted and self.agree and all(self.agree.values())
        assert loan.state is (State.LENDABLE if lends else State.WITHHELD)

    @invariant()
    def a_reclaim_has_a_reason(self) -> None:
        assert (self.loan.reason is not None) == (self.loan.state is State.RECLAIMING)

    @invariant()
    def a_notice_is_given_only_while_nothing_forbids_it(self) -> None:
        if self.loan.reason in WITH_NOTICE:
            assert self.loan.refusal(CardFacts(**self.facts)) in (None, *WITH_NOTICE)

    @invariant()
    def it_says_when_it_will_be_lendable(self) -> None:
        facts = CardFacts(**self.facts)
        within = self.loan.wakes_in(facts, self.now)
        if within is not None and not self.loan.refusal(facts) and facts.complete:
            before = self.loan.stepped(facts, self.now + within * 0.999)
            assert before.state in (State.BUSY, State.RESTING)
            at_last = before.stepped(facts, self.now + within * 1.001)
            assert at_last.state is State.LENDABLE
        if self.loan.state in (State.BUSY, State.RESTING) and self.loan.sleeps_since is not None:
            assert within is not None

    # ---- how ----

    def _tell(self, activity: Activity, who: PodIdentity, source: Any = None, **more: Any) -> None:
        self._hear(activity, who, source, **more)
        self._step()

    def _hear(self, activity: Activity, who: PodIdentity, source: Any = None, **more: Any) -> None:
        event = OwnerEvent(activity, who, frozenset({CARD}), self.now, source, **more)
        self.loan = self.loan.heard(event)

    def _note(self, what: str) -> None:
        event(what)
        self.reached[what] += 1

    def _know(self, **facts: Any) -> None:
        self.facts |= facts
        self._step()

    def _step(self) -> None:
        before = self.loan.state
        self.loan = self.loan.stepped(CardFacts(**self.facts), self.now)
        if self.loan.state is not before:
            self._note(f"{before} to {self.loan.state}")
        if self.loan.reason is not None and before is not State.RECLAIMING:
            self._note(f"taken back: {self.loan.reason}")
        by_owners = (SpotEvictionReason.OWNER_BACK, SpotEvictionReason.OWNER_ALIVE)
        is_new = self.loan.state is not before and not self.facts.get("revoked")
        if is_new and self.loan.reason in by_owners:
            self.taken.append(self.now)
        # Whatever its owners do meanwhile, a borrower that must go goes, and one that comes too
        # late gets nothing.
        if self.facts.get("borrowed") and before in (State.RECLAIMING, State.BUSY, State.RESTING):
            assert self.loan.state is State.RECLAIMING


Loans.TestCase.settings = effort(60, quick=5)
TestLoans = Loans.TestCase


def test_the_runs_reach_all_that_happens_to_a_loan() -> None:
    """The runs are the same each time, so that only a change of the code makes a difference."""
    Loans.reached.clear()
    run_state_machine_as_test(
        Loans, settings=settings(effort(60), max_examples=REACHING, derandomize=True, database=None)
    )  # type: ignore[no-untyped-call]
    assert not OFTEN - Loans.reached.keys(), Loans.reached
