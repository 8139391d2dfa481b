"""Processes of a container on one card: container_budget.c and process_turns.c of shim/src/time,
called directly."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_uint64
from typing import Any

import pytest

from .slot import BUILD
from .test_token_bucket import FULL, MS, US, Terms, window

SECOND = 1_000 * MS
SPAN = 5 * SECOND


@pytest.fixture
def pure(layout: dict[str, Any]) -> ctypes.CDLL:
    library = ctypes.CDLL(str(BUILD / "tests" / "libpure.so"))
    library.pure_relieve.restype = c_uint64
    library.pure_reach.restype = c_int64
    library.pure_lives.restype = ctypes.c_bool
    return library


def contend(pure: ctypes.CDLL, terms: Terms, piece: int) -> tuple[list[int], int]:
    """The work of two processes that always have some, and the longest time that one waited."""
    did, waits = (c_uint64 * 2)(), (c_uint64 * 2)()
    pure.pure_contend(byref(terms), c_uint64(piece), c_uint64(SPAN), did, waits)
    return list(did), max(waits)


@pytest.mark.parametrize("piece", [200 * US, 1 * MS, 5 * MS])
@pytest.mark.parametrize(
    ("rate", "word"),
    [(5000, window(100_000, 0, 50_000)), (9500, window(100_000, 0, 95_000)), (9000, 0), (3000, 0)],
)
def test_two_that_always_have_work_share_what_the_container_has(
    pure: ctypes.CDLL, rate: int, word: int, piece: int
) -> None:
    did, longest_wait = contend(pure, Terms(rate, word, 0, piece), piece)
    assert sum(did) == pytest.approx(SPAN * rate / FULL, rel=0.05)
    assert min(did) > 0.2 * sum(did)
    assert longest_wait < 200 * MS


@pytest.mark.parametrize("percent", [22, 30, 37, 43])
def test_pieces_that_do_not_fit_a_window_fit_several(pure: ctypes.CDLL, percent: int) -> None:
    piece = 5 * MS
    terms = Terms(2 * percent * 100, window(100_000, 0, percent * 1000), 0, piece)
    did, _ = contend(pure, terms, piece)
    assert sum(did) == pytest.approx(SPAN * percent / 100, abs=3 * piece)


@pytest.mark.parametrize("scribbled", [0, -100 * MS, -(1 << 63), 100 * MS])
@pytest.mark.parametrize("length", [21 * MS, 22 * MS, 22_900 * US])
def test_work_reaches_over_its_windows_by_no_more_than_it_is_short(
    pure: ctypes.CDLL, length: int, scribbled: int
) -> None:
    piece = 2 * MS
    terms = Terms(FULL, window(50_000, 0, length // US), 0, piece)
    over = pure.pure_reach(byref(terms), c_uint64(piece), c_uint64(SPAN), c_int64(scribbled))
    assert over < 2 * piece


@pytest.mark.parametrize("word", [window(100_000, 0, 30_000), 0])
@pytest.mark.parametrize("pieces", [2, 4, 6])
def test_what_two_had_on_the_card_at_once_is_charged_once(
    pure: ctypes.CDLL, word: int, pieces: int
) -> None:
    windows, piece = 50, 4 * MS
    terms = Terms(3000, word, 0, piece)
    times = (c_uint64(100 * MS), c_uint64(piece))
    charged = pure.pure_relieve(byref(terms), *times, pieces, windows)
    assert charged == pytest.approx(windows * (pieces + 1) * piece, rel=0.01)


# A thread may be held up between reading the clock and using what it read.
LATE = [0, 50 * US, 5 * MS]


@pytest.mark.parametrize("late", LATE)
def test_a_thread_that_is_late_does_not_change_how_busy_a_card_is_shown(
    pure: ctypes.CDLL, late: int
) -> None:
    assert pure.pure_percent(c_uint64(late)) == 100


@pytest.mark.parametrize("late", LATE)
def test_a_thread_that_is_late_does_not_shorten_the_containers_longest_piece(
    pure: ctypes.CDLL, late: int
) -> None:
    pure.pure_longest.restype = c_uint64
    assert pure.pure_longest(c_uint64(late)) == 50 * MS


@pytest.mark.parametrize("late", LATE)
def test_a_thread_that_is_late_does_not_take_the_agent_for_dead(
    pure: ctypes.CDLL, late: int
) -> None:
    assert pure.pure_lives(c_int64(-late), 0)


@pytest.mark.parametrize(("after", "lives"), [(SECOND - 1, True), (SECOND, False)])
def test_an_agent_without_a_heartbeat_for_a_second_is_dead(
    pure: ctypes.CDLL, after: int, lives: bool
) -> None:
    """From then on nothing would stop a borrower for its owner, so it stops by itself."""
    assert pure.pure_lives(c_int64(after), 0) is lives


@pytest.mark.parametrize("ms", [500, 60_000])
def test_the_limits_file_may_set_another_time(pure: ctypes.CDLL, ms: int) -> None:
    assert pure.pure_lives(c_int64(ms * MS - 1), ms)
    assert not pure.pure_lives(c_int64(ms * MS), ms)
