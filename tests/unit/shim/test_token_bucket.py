"""The arithmetic of GPU time: shim/src/time/token_bucket.c and moments.c, called directly."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .slot import BUILD

US = 1_000
MS = 1_000_000
FULL = 10_000
LEAD = 70 * US  # bucket.c: so much too early is on time
SAVINGS = 15 * MS  # bucket.c: without a window
HANDOVER = 150 * US  # bucket.c
GAPS = 128  # moments.h
NONE, HARD, SOFT, WEIGHTED, STOPPED = range(5)  # mizar_regions.h
OWN, CONTESTED, NEIGHBOURS = range(3)  # bucket.h


class Terms(Structure):
    _fields_ = (
        ("rate", c_uint64),
        ("window", c_uint64),
        ("since", c_uint64),
        ("longest", c_uint64),
    )


class Ask(Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("now", "paid", "cost", "likely", "queue")),
        ("over", c_int64),
        ("held", c_uint64),
        ("unsure", c_bool),
    )


class Gap(Structure):
    _fields_ = (("start", c_uint64), ("to", c_uint64))


class Moments(Structure):
    _fields_ = (
        ("lock", c_uint32),
        ("next", c_uint32),
        ("until", c_uint64),
        ("gaps", Gap * GAPS),
    )


MEASURE = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_uint64, c_uint64)


@pytest.fixture(scope="module")
def pure(layout: dict[str, Any]) -> ctypes.CDLL:
    library = ctypes.CDLL(str(BUILD / "tests" / "libpure.so"))
    library.bucket_admits.restype = c_bool
    library.bucket_whose.argtypes = [POINTER(Terms), c_uint64, c_uint64]
    library.bucket_admits.argtypes = [POINTER(Terms), POINTER(Ask), POINTER(c_uint64)]
    for name, arguments in (
        ("pure_rate", [c_uint32] * 5),
        ("bucket_extra", [POINTER(Terms), POINTER(Ask), c_uint64]),
        ("bucket_spend", [POINTER(Terms), c_uint64, c_uint64, c_uint64]),
        ("bucket_correct", [POINTER(Terms), c_uint64, c_int64]),
        ("bucket_own_part", [POINTER(Terms), c_uint64, c_uint64]),
        (
            "interval_union_add",
            [POINTER(Moments), c_uint64, c_uint64, MEASURE, c_void_p, POINTER(c_uint64)],
        ),
    ):
        getattr(library, name).restype = c_uint64
        getattr(library, name).argtypes = arguments
    return library


def window(period_us: int, start_us: int, length_us: int) -> int:
    """The word of the limits file, as its header says."""
    return 1 << 60 | period_us << 40 | start_us << 20 | length_us


def admits(pure: ctypes.CDLL, terms: Terms, ask: Ask) -> tuple[bool, int]:
    again = c_uint64(0)
    return pure.bucket_admits(byref(terms), byref(ask), byref(again)), again.value


rates = st.integers(100, FULL - 1)
costs = st.integers(200 * US, 10 * MS)
times = st.integers(10**9, 10**15)


@st.composite
def windows(draw: st.DrawFn, shortest: int = 1_000) -> tuple[int, int, int]:
    """Period, start and length in microseconds; some of the period is left to others."""
    period = draw(st.integers(20_000, 100_000))
    length = draw(st.integers(shortest, period - 1_000))
    return period, draw(st.integers(0, period - 1)), length


def greedy(
    pure: ctypes.CDLL, terms: Terms, pieces: list[int], start: int, end: int, paid: int = 0
) -> list[tuple[int, int]]:
    """A container that always has work: when each piece was on the card, which the container has
    for itself."""
    now = free = start
    done = list[tuple[int, int]]()
    for number in range(10**6):
        cost = pieces[number % len(pieces)]
        ask = Ask(now, paid, cost, cost, max(0, free - now))
        good, again = admits(pure, terms, ask)
        while not good:
            assert again > now, "nobody may be told to ask again in the past"
            now = again
            if now > end:
                return done
            ask = Ask(now, paid, cost, cost, max(0, free - now))
            good, again = admits(pure, terms, ask)
        paid = pure.bucket_spend(byref(terms), paid, now, cost)
        begins = max(now, free)
        free = begins + cost
        done.append((begins, free))
    raise AssertionError("the bucket never refuses")


@given(rate=rates, pieces=st.lists(costs, min_size=1, max_size=5), start=times)
def test_a_container_that_always_has_work_gets_its_share_of_time_and_no_more(
    pure: ctypes.CDLL, rate: int, pieces: list[int], start: int
) -> None:
    span, longest = 500 * MS, max(pieces)
    terms = Terms(rate, 0, 0, longest)
    worked = sum(to - begins for begins, to in greedy(pure, terms, pieces, start, start + span))
    due = span * rate // FULL
    assert worked <= due + SAVINGS * rate // FULL + 2 * longest + LEAD
    assert worked >= due - 2 * longest


@given(
    rate=st.integers(FULL // 10, FULL - 1),
    pieces=st.lists(st.integers(200 * US, 5 * MS), min_size=1, max_size=5),
    start=times,
)
def test_by_the_middle_of_each_piece_the_container_has_had_its_share(
    pure: ctypes.CDLL, rate: int, pieces: list[int], start: int
) -> None:
    terms, had = Terms(rate, 0, 0, max(pieces)), 0
    for begins, ends in greedy(pure, terms, pieces, start, start + 300 * MS, paid=start):
        middle = (begins + ends) // 2 - start
        assert abs(had + (ends - begins) // 2 - middle * rate // FULL) <= LEAD + US
        had += ends - begins


@given(
    rate=rates,
    where=windows(shortest=4_000),
    pieces=st.lists(st.integers(200 * US, 900 * US), min_size=1, max_size=5),
    start=times,
)
def test_work_lies_in_its_window_by_half_at_least(
    pure: ctypes.CDLL, rate: int, where: tuple[int, int, int], pieces: list[int], start: int
) -> None:
    period, begin, length = (value * US for value in where)
    terms = Terms(rate, window(*where), 0, max(pieces))
    for begins, ends in greedy(pure, terms, pieces, start, start + 300 * MS):
        inside = (begins + LEAD - begin) % period
        assert inside + (ends - begins - LEAD) <= length + (ends - begins) // 2 + LEAD


@given(rate=rates, where=windows(), start=times, part=st.floats(0.26, 5))
def test_a_long_piece_begins_in_its_window_and_ends_as_it_may(
    pure: ctypes.CDLL, rate: int, where: tuple[int, int, int], start: int, part: float
) -> None:
    period, begin, length = (value * US for value in where)
    piece = int(length * part)
    terms = Terms(rate, window(*where), 0, piece)
    span = 3 * period + 3 * piece * FULL // rate
    done = greedy(pure, terms, [piece], start, start + span)
    savings = 3 * period // 2 * rate // FULL + piece
    assert done
    assert len(done) * piece <= span * rate // FULL + savings + 2 * piece
    for begins, _ in done:
        assert (begins + LEAD - begin) % period <= length + LEAD


@given(rate=rates, where=windows(), now=times, cost=st.integers(1, 1000 * MS))
def test_work_that_was_hardly_measured_may_start_in_any_window(
    pure: ctypes.CDLL, rate: int, where: tuple[int, int, int], now: int, cost: int
) -> None:
    terms = Terms(rate, window(*where), 0, cost)
    begins = now + (where[1] * US - now) % (where[0] * US)
    assert admits(pure, terms, Ask(begins, 0, cost, cost, 0, unsure=True))[0]


@given(rate=rates, paid=times, now=times, ns=costs)
def test_what_was_spent_can_be_given_back(
    pure: ctypes.CDLL, rate: int, paid: int, now: int, ns: int
) -> None:
    terms = Terms(rate, 0, 0, 0)
    spent = pure.bucket_spend(byref(terms), paid, now, ns)
    back = pure.bucket_correct(byref(terms), spent, -ns)
    assert abs(back - max(paid, now - SAVINGS)) <= 1


@given(rate=rates, paid=times, now=times, cost=costs, held=costs)
def test_what_goes_back_when_it_waits_is_not_waited_for(
    pure: ctypes.CDLL, rate: int, paid: int, now: int, cost: int, held: int
) -> None:
    terms = Terms(rate, 0, 0, cost)
    spent = paid + held * FULL // rate
    assert admits(pure, terms, Ask(now, spent, cost, cost, 0, held=held)) == admits(
        pure, terms, Ask(now, paid, cost, cost, 0)
    )


@given(word=st.integers(0, 2**64 - 1), rate=st.integers(1, FULL), now=times, cost=costs)
def test_no_window_word_is_a_trap(
    pure: ctypes.CDLL, word: int, rate: int, now: int, cost: int
) -> None:
    """Any word lets work start within two periods of the largest kind, once it is owed."""
    terms = Terms(rate, word, 0, cost)
    for _ in range(64):
        good, again = admits(pure, terms, Ask(now, 0, cost, cost, 0))
        if good:
            return
        assert now < again <= now + 2 * 1_048_576 * US
        now = again
    raise AssertionError("never admitted")


@given(where=windows(), start=times, length=st.integers(0, 300 * MS), rate=rates)
def test_ones_own_part_is_all_inside_and_half_outside(
    pure: ctypes.CDLL, where: tuple[int, int, int], start: int, length: int, rate: int
) -> None:
    terms = Terms(rate, window(*where), 0, 0)
    part = pure.bucket_own_part(byref(terms), start, start + length)
    assert length // 2 <= part <= length
    middle = start + length // 3
    halves = [(start, middle), (middle, start + length)]
    split = sum(pure.bucket_own_part(byref(terms), begin, end) for begin, end in halves)
    assert abs(split - part) <= 1


@given(where=windows(), since=times, start=st.integers(0, 300 * MS), length=st.integers(1, 10**15))
def test_what_began_before_windows_did_is_shared_by_all(
    pure: ctypes.CDLL, where: tuple[int, int, int], since: int, start: int, length: int
) -> None:
    terms = Terms(5000, window(*where), since, 0)
    before = max(0, since - 1 - start)
    part = pure.bucket_own_part(byref(terms), before, before + length)
    assert abs(part - length * where[2] // where[0]) <= 1


@given(where=windows(), cycle=st.integers(1, 10**6), first=st.integers(0, 10**5), more=times)
def test_a_container_has_the_card_from_soon_after_the_begin_of_its_window_to_its_end(
    pure: ctypes.CDLL, where: tuple[int, int, int], cycle: int, first: int, more: int
) -> None:
    period, begin, length = (value * US for value in where)
    terms = Terms(5000, window(*where), 0, 0)
    begins = cycle * period + begin
    since = first * US % length
    start, end = begins + since, begins + length
    contested = since < min(3 * MS, length // 2)
    assert pure.bucket_whose(byref(terms), start, end) == (CONTESTED if contested else OWN)
    assert pure.bucket_whose(byref(terms), start, end + more) == NEIGHBOURS
    assert pure.bucket_whose(byref(terms), begins - 1, begins) == NEIGHBOURS
    assert pure.bucket_whose(byref(Terms(5000, 0, 0, 0)), start, end + more) == OWN


@given(
    lengths=st.lists(st.tuples(st.integers(-30, 60), st.integers(0, 40)), min_size=1, max_size=12)
)
def test_a_union_of_intervals_that_come_late_counts_no_moment_twice(
    pure: ctypes.CDLL, lengths: list[tuple[int, int]]
) -> None:
    """With no more gaps than are remembered, it is the union."""
    moments, late, seen, at, counted = Moments(), c_uint64(), set[int](), 100, 0
    measure = MEASURE(lambda _, begin, end: end - begin)
    for step, length in lengths:
        at = max(1, at + step)
        part = pure.interval_union_add(byref(moments), at, at + length, measure, None, byref(late))
        assert late.value <= part
        counted += part
        seen |= set(range(at, at + length))
    first = lengths[0]
    before = set(range(1, max(1, 100 + first[0])))  # earlier than all it ever knew
    assert len(seen - before) <= counted <= len(seen)


@pytest.mark.parametrize(
    ("mode", "spare", "active", "paused", "rate"),
    [
        (NONE, 0, 0, 0, 2**64 - 1),
        (HARD, 4000, 4000, 0, 3000),
        (SOFT, 4000, 4000, 0, 7000),
        (SOFT, 9000, 0, 0, FULL),
        (WEIGHTED, 4000, 4000, 0, 7500),
        (WEIGHTED, 4000, 3000, 0, FULL),
        (HARD, 0, 0, 1, 0),
        (STOPPED, 4000, 4000, 0, 0),
    ],
)
def test_a_share_is_what_the_limits_say(
    pure: ctypes.CDLL, mode: int, spare: int, active: int, paused: int, rate: int
) -> None:
    assert pure.pure_rate(mode, 3000, spare, active, paused) == rate


@given(where=windows(), cycles=st.integers(1, 50), start=times)
def test_half_of_what_lies_outside_the_window_is_a_neighbours(
    pure: ctypes.CDLL, where: tuple[int, int, int], cycles: int, start: int
) -> None:
    period, _, length = (value * US for value in where)
    terms = Terms(5000, window(*where), 0, 0)
    inside = min(length + HANDOVER, period)
    part = pure.bucket_own_part(byref(terms), start, start + cycles * period)
    assert part == cycles * inside + cycles * (period - inside) // 2
