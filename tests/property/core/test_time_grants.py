"""How the time of one card is divided: no container gets more than its share, and no window
overlaps another's."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from mizar_core.quantities import WHOLE_CARD
from mizar_core.time_grants import (
    CHANGE_US,
    PERIOD_FAR_US,
    PERIOD_MAX_US,
    PERIOD_MIN_US,
    PERIODS_US,
    PIECES,
    WINDOW_MIN_US,
    WINDOW_PIECES,
    Sharer,
    TimeGrant,
    Window,
    allowed_share,
    consecutive_windows,
    grants,
)
from support.windows import window_of

periods = st.integers(PERIOD_MIN_US, PERIOD_FAR_US)
windows = st.builds(
    lambda period, start, length: Window(
        1 + length % (period - start % period), start % period, period
    ),
    periods,
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 20),
)
time_grants = st.builds(
    TimeGrant,
    st.integers(0, WHOLE_CARD),
    st.booleans(),
    st.integers(0, 1 << 20),
    st.none() | windows,
)
sharers = st.builds(
    Sharer,
    name=st.text("abcd", min_size=1, max_size=4),
    mode=st.sampled_from(["None", "Hard", "Soft", "Weighted"]),
    share=st.integers(0, WHOLE_CARD),
    priority=st.integers(0, 2),
    busy=st.booleans(),
    longest_ns=st.integers(0, 1 << 40) | st.integers(0, 10_000_000),
    grant=time_grants,
    need=st.none() | st.integers(0, WHOLE_CARD),
)  # fmt: skip
cards = st.lists(sharers, max_size=8, unique_by=lambda one: one.name)


def _is_paused(one: Sharer, granted: Mapping[str, TimeGrant]) -> bool:
    """Whether the container may launch nothing, and so takes nothing from the others."""
    return granted[one.name].paused


def _wanting_all(card: list[Sharer]) -> list[Sharer]:
    return [one for one in card if one.wants_all and one.mode != "None"]


@given(cards, st.randoms())
def test_the_order_of_the_containers_does_not_matter(card: list[Sharer], random: object) -> None:
    shuffled = list(card)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert grants(shuffled) == grants(card)


@given(cards)
def test_a_grant_is_repeated(card: list[Sharer]) -> None:
    granted = grants(card)
    again = [replace(one, grant=granted.get(one.name, TimeGrant())) for one in card]
    assert grants(again) == granted


@given(cards)
def test_windows_do_not_overlap_and_lie_within_one_period(card: list[Sharer]) -> None:
    found = sorted(
        (one.window for one in grants(card).values() if one.window), key=lambda one: one.start
    )
    assert len({one.period for one in found}) <= 1
    for before, after in pairwise(found):
        assert before.start + before.length <= after.start
    for one in found:
        assert one.length > 0 and one.start >= 0 and one.start + one.length <= one.period
        assert one.period in PERIODS_US


@given(cards, st.integers(0, 10**9), st.integers(0, 10**9))
def test_any_second_holds_as_much_of_a_window_as_any_other(
    card: list[Sharer], first: int, second: int
) -> None:
    for one in grants(card).values():
        if one.window:
            held = {
                _inside(one.window, at + 1_000_000) - _inside(one.window, at)
                for at in (first, second)
            }
            assert max(held) - min(held) <= 10


def _inside(window: Window, until: int) -> int:
    """Microseconds in windows from 0 on, where a period begins."""
    whole, rest = divmod(until, window.period)
    return whole * window.length + min(max(0, rest - window.start), window.length)


@given(cards)
def test_only_several_that_are_hungry_have_windows_and_then_each_has_one(
    card: list[Sharer],
) -> None:
    granted = grants(card)
    working = {one.name for one in _wanting_all(card) if not granted[one.name].paused}
    having = {name for name, one in granted.items() if one.window}
    assert having == (working if len(working) > 1 else set())


@given(cards)
def test_windows_are_as_long_as_rates_are_high(card: list[Sharer]) -> None:
    granted = grants(card)
    working = [one for one in _wanting_all(card) if granted[one.name].window]
    total = sum(allowed_share(one, granted[one.name]) for one in working)
    for one in working:
        window = granted[one.name].window
        assert window
        exact = window.period * allowed_share(one, granted[one.name]) / total
        changes = len(working) * CHANGE_US
        assert abs(window.length - exact) <= len(working) + min(changes, window.period / 50)


@given(cards)
def test_a_period_holds_many_pieces_of_work(card: list[Sharer]) -> None:
    granted = grants(card)
    longest = max(
        (one.longest_ns for one in card if granted.get(one.name, TimeGrant()).window), default=0
    )
    for one in granted.values():
        if one.window:
            assert one.window.period >= min(PERIOD_MAX_US, PIECES * longest // 1000)


@given(cards)
def test_no_window_is_short_unless_the_period_is_the_longest(card: list[Sharer]) -> None:
    found = [one.window for one in grants(card).values() if one.window]
    for window in found:
        least = WINDOW_MIN_US - len(found) * CHANGE_US
        assert window.length >= least or window.period >= PERIOD_MAX_US


@given(cards)
def test_the_shortest_window_holds_two_long_pieces_if_it_can(card: list[Sharer]) -> None:
    granted = grants(card)
    having = [one for one in card if granted.get(one.name, TimeGrant()).window]
    longest = max((one.longest_ns for one in having), default=0) // 1000
    for one in having:
        window = granted[one.name].window
        assert window
        wide = window.length >= WINDOW_PIECES * longest * 49 / 50 - len(having) - 1
        assert wide or window.period == PERIOD_FAR_US


@given(cards)
def test_nobody_is_above_what_its_mode_gives(card: list[Sharer]) -> None:
    granted = grants(card)
    assert granted.keys() == {one.name for one in card if one.mode != "None"}
    for one in card:
        if one.mode == "Hard":
            assert allowed_share(one, granted[one.name]) == one.share
            assert granted[one.name].paused == (one.share == 0)
        elif one.mode == "Soft":
            assert one.share <= allowed_share(one, granted[one.name]) <= WHOLE_CARD
        elif one.mode == "Weighted":
            assert (one.share > 0) <= allowed_share(one, granted[one.name]) <= WHOLE_CARD


@given(cards)
def test_no_more_is_lent_than_is_left(card: list[Sharer]) -> None:
    granted = grants(card)
    wanting = _wanting_all(card)
    lent = sum(granted[one.name].spare_share for one in wanting)
    due = sum(allowed_share(one, replace(granted[one.name], spare_share=0)) for one in wanting)
    at_work = [
        one for one in card if one.busy and one.mode != "None" and not _is_paused(one, granted)
    ]
    needs = sum(one.need or 0 for one in at_work)
    assert lent <= max(0, WHOLE_CARD - due - needs)


@given(cards)
def test_only_the_highest_priority_borrows(card: list[Sharer]) -> None:
    granted = grants(card)
    borrowers = [
        one for one in _wanting_all(card) if one.mode == "Soft" and not _is_paused(one, granted)
    ]
    top = max((one.priority for one in borrowers), default=0)
    for one in borrowers:
        assert granted[one.name].spare_share == 0 or one.priority == top


@given(cards, sharers)
def test_alone_at_work_is_at_any_time_and_soft_and_weighted_have_all(
    card: list[Sharer], one: Sharer
) -> None:
    others = [replace(other, name=f"{other.name}-other", busy=False) for other in card]
    granted = grants([*others, replace(one, busy=True)]).get(one.name)
    if granted is not None:
        assert granted.window is None
        nothing = one.mode == "Weighted" and one.share == 0
        expected = one.share if one.mode == "Hard" or nothing else WHOLE_CARD
        assert allowed_share(one, granted) == expected


@given(st.lists(sharers, min_size=2, max_size=8, unique_by=lambda one: one.name), sharers)
def test_equal_containers_have_equal_grants(card: list[Sharer], model: Sharer) -> None:
    same = [replace(model, name=one.name, busy=True, mode=model.mode) for one in card]
    granted = list(grants(same).values())
    assert len({(one.spare_share, one.paused, one.active_weight) for one in granted}) <= 1
    assert len({one.window.length for one in granted if one.window}) <= 1


@given(cards)
@example([Sharer("a", "Soft", 1), Sharer("b", "Soft", 0, busy=True, need=1)])
def test_a_container_that_needs_little_is_granted_what_it_would_have_if_it_wanted_all(
    card: list[Sharer],
) -> None:
    granted = grants(card)
    for one in card:
        if one.mode != "None" and not one.wants_all:
            others = [other for other in card if other is not one]
            awake = [*others, replace(one, busy=True, need=None)]
            assert replace(grants(awake)[one.name], window=None) == granted[one.name]


@given(cards, st.integers(0, WHOLE_CARD))
def test_containers_that_need_little_leave_the_rest_to_a_soft_one(
    card: list[Sharer], need: int
) -> None:
    soft = Sharer("~", "Soft", 5000, busy=True)
    little = [replace(one, busy=True, need=need // 8, share=max(one.share, 1)) for one in card]
    granted = grants([*little, soft])["~"]
    needs = sum(one.need or 0 for one in little if one.mode != "None")
    assert granted == TimeGrant(spare_share=max(0, WHOLE_CARD - needs - 5000))


@given(cards)
def test_a_container_without_a_share_is_paused_while_one_with_a_share_works(
    card: list[Sharer],
) -> None:
    granted = grants(card)
    for one in card:
        if one.borrows:
            assert granted[one.name].paused == any(it.busy and it.share for it in card)


@given(windows)
def test_a_word_brings_its_window_back(window: Window) -> None:
    assert window_of(window.word) == window
    assert 0 < window.word < 1 << 64


@given(st.integers(0, (1 << 64) - 1))
def test_any_word_is_a_window_or_none(word: int) -> None:
    window = window_of(word)
    if window is None:
        return
    assert window.word == word and window.start + window.length <= window.period


@given(st.lists(st.integers(1, WHOLE_CARD), min_size=1, max_size=64), periods)
def test_turns_fill_the_period(rates: list[int], period: int) -> None:
    turns = consecutive_windows(rates, period)
    assert period - len(rates) <= sum(one.length for one in turns) <= period
