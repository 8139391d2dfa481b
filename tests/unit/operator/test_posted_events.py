"""A waiting pod gets a new message soon, and the same one again before API servers forget it."""

from mizar_core.names import EventReason
from mizar_core.planning.actions import EmitEvent
from mizar_operator.posted_events import SUBJECT_S, TOGETHER_S, WORDING_S, PostedEvents

HOUR = 3600.0
"""How long API servers keep events, unless they are configured otherwise."""


def _event(
    message: str, uid: str = "uid-a", reason: EventReason = EventReason.NO_CARD_FREE
) -> EmitEvent:
    return EmitEvent("Pod", ("team-a", "p"), uid, "Warning", reason, message)


class Waiting:
    """A pod that waits, and an operator that plans whenever it is asked to. `told`: the words, each
    with its second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.posted_events = PostedEvents(lambda: self.now)
        self.told: list[tuple[float, str]] = []

    def plan(self, *events: EmitEvent) -> float | None:
        """Make one plan with these words; returns in how many seconds another is wanted."""
        announced = self.posted_events.known({"uid-a"})
        posted = [one for one in events if not one.is_announced(announced)]
        self.told += [(self.now, one.message) for one in posted]
        self.posted_events.note(posted)
        late = {one.subject for one in events if one.is_held_back(announced)}
        return self.posted_events.next(late)


def test_what_still_holds_is_told_again_before_its_event_expires() -> None:
    pod = Waiting()
    for second in range(0, int(HOUR), 10):
        pod.now = second
        assert pod.plan(_event("a")) is None
    assert pod.told == [(0.0, "a"), (WORDING_S, "a")]
    assert WORDING_S < HOUR


def test_new_words_are_told_within_five_minutes() -> None:
    """It is posted at once if the last message is that old already."""
    pod = Waiting()
    pod.plan(_event("a"))
    pod.now = 100
    assert pod.plan(_event("b")) == SUBJECT_S - 100
    pod.now = SUBJECT_S
    assert pod.plan(_event("b")) is None
    pod.now = 1000
    pod.plan(_event("c"))
    assert pod.told == [(0.0, "a"), (300.0, "b"), (1000.0, "c")]


def test_words_that_were_given_up_are_news_when_they_hold_again() -> None:
    """An object's newest event is never wrong for longer than five minutes."""
    pod = Waiting()
    for second, words in ((0, "a"), (SUBJECT_S, "b"), (2 * SUBJECT_S, "a")):
        pod.now = second
        pod.plan(_event(words))
    assert [words for _, words in pod.told] == ["a", "b", "a"]


def test_words_that_change_all_the_time_cost_an_event_in_five_minutes() -> None:
    """Two that take turns, and a count that grows."""
    for said in (lambda second: f"{second % 20}", lambda second: f"waits {second} s"):
        pod = Waiting()
        for second in range(0, int(HOUR), 10):
            pod.now = second
            pod.plan(_event(said(second)))
        assert len(pod.told) <= HOUR / SUBJECT_S
        assert len(pod.posted_events) == 1


def test_another_reason_is_told_at_once() -> None:
    pod = Waiting()
    pod.plan(_event("a"))
    pod.plan(_event("b", reason=EventReason.NO_NODE_FITS))
    assert [words for _, words in pod.told] == ["a", "b"]


def test_two_sentences_of_one_plan_are_both_remembered() -> None:
    pod = Waiting()
    for second in range(0, int(WORDING_S), 10):
        pod.now = second
        pod.plan(_event("a"), _event("b"))
    assert pod.told == [(0.0, "a"), (0.0, "b")]


def test_a_plan_for_many_words_that_are_held_back() -> None:
    """The time of each pod ends at another moment; there is no plan for each of them."""
    pod = Waiting()
    for millisecond in range(100):
        pod.now = millisecond / 1000
        pod.posted_events.note([_event("a", f"uid-{millisecond}")])
    late = {_event("b", f"uid-{one}").subject for one in range(100)}
    pod.now = SUBJECT_S - TOGETHER_S
    assert pod.posted_events.next(late) == TOGETHER_S
    pod.now = SUBJECT_S + 0.01
    assert pod.posted_events.next(late) == TOGETHER_S
    assert pod.posted_events.next([]) is None


def test_what_is_gone_is_forgotten() -> None:
    posted_events = PostedEvents(lambda: 0.0)
    gone, stays = _event("a"), _event("a", "uid-b")
    posted_events.note([gone, stays])
    kept = {stays.subject, stays.wording}
    assert posted_events.known({"uid-b"}) == kept
    assert posted_events.known({"uid-a", "uid-b"}) == kept
    assert len(posted_events) == 1


def test_ten_thousand_waiting_pods_are_remembered_once_each() -> None:
    """However often their words change, and none is forgotten so early that it is told too soon:
    33 events a second in all, of words that change with every plan."""
    pods = [f"uid-{number}" for number in range(10_000)]
    waiting = frozenset(pods)
    now, told = 0.0, 0
    posted_events = PostedEvents(lambda: now)
    for second in range(0, 2 * int(SUBJECT_S), 60):
        now = second
        announced = posted_events.known(waiting)
        said = [_event(f"0/5 nodes, {second} s", uid) for uid in pods]
        posted = [one for one in said if not one.is_announced(announced)]
        posted_events.note(posted)
        told += len(posted)
        assert len(posted_events) == len(pods)
    assert told == 2 * len(pods)
