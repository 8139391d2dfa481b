"""What launches are expected to take, by what earlier ones took: shim/src/time/costs.c, called
directly."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import c_bool, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .slot import BUILD

US = 1_000
MS = 1_000_000
FUNCTION, OTHER = 0x5555_0000_1000, 0x5555_0000_2000


class Kind(IntEnum):
    UNKNOWN, STEADY, VARYING, WILD = range(4)


@dataclass(frozen=True)
class Guess:
    kind: Kind
    fresh: bool
    ns: int
    likely: int


class Costs:
    """The table of one process, which begins empty."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.pure_forget()

    def learn(self, *taken: int, shape: int = 0, known: bool = True, work: int = FUNCTION) -> None:
        for ns in taken:
            self._library.costs_learn(work, shape, ns, known)

    def of(self, shape: int = 0, work: int = FUNCTION) -> Guess:
        found = (c_uint64 * 4)()
        self._library.pure_guess(work, shape, found)
        return Guess(Kind(found[0]), bool(found[1]), found[2], found[3])

    def ns(self, shape: int = 0, work: int = FUNCTION) -> int:
        return int(self._library.pure_ns(work, shape))

    def doubt(self) -> None:
        self._library.costs_doubt()


@pytest.fixture(scope="module")
def library(layout: dict[str, Any]) -> ctypes.CDLL:
    library = ctypes.CDLL(str(BUILD / "tests" / "libpure.so"))
    library.costs_learn.argtypes = [c_void_p, c_uint64, c_uint64, c_bool]
    library.pure_guess.argtypes = [c_void_p, c_uint64, c_void_p]
    library.pure_ns.argtypes = [c_void_p, c_uint64]
    library.pure_ns.restype = c_int64
    return library


@pytest.fixture
def costs(library: ctypes.CDLL) -> Iterator[Costs]:
    yield Costs(library)


def _mixed(count: int) -> Iterable[tuple[int, int]]:
    """Launches of two shapes, and what they take."""
    return [(1, 20 * US) if i % 10 else (2, 5 * MS) for i in range(count)]


def test_what_was_never_measured_is_unknown(costs: Costs) -> None:
    assert costs.of() == Guess(Kind.UNKNOWN, True, 0, 0)
    assert costs.ns() == 0


def test_work_that_varies_a_little_takes_its_mean(costs: Costs) -> None:
    costs.learn(*(150 * US + i % 5 * 25 * US for i in range(100)))
    guess = costs.of()
    assert guess.kind is Kind.STEADY
    assert guess.ns == guess.likely == costs.ns()
    assert guess.ns == pytest.approx(200 * US, rel=0.06)


def test_what_a_neighbour_adds_to_a_few_is_not_learned(costs: Costs) -> None:
    costs.learn(*(20 * US if i % 6 else 60 * US for i in range(100)))
    assert costs.of().ns == 20 * US


def test_each_shape_of_a_function_that_varies_has_its_own_cost(costs: Costs) -> None:
    for shape, ns in _mixed(200):
        costs.learn(ns, shape=shape)
    for shape, ns in ((1, 20 * US), (2, 5 * MS)):
        assert costs.of(shape) == Guess(Kind.STEADY, False, ns, ns)
        assert costs.ns(shape) == ns


def test_a_shape_that_is_new_is_taken_for_what_the_function_took(costs: Costs) -> None:
    for shape, ns in _mixed(200):
        costs.learn(ns, shape=shape)
    guess = costs.of(shape=3)
    assert (guess.kind, guess.ns) == (Kind.WILD, 5 * MS)
    assert costs.ns(shape=3) == 0


def test_a_larger_shape_that_is_new_is_taken_for_so_much_more(costs: Costs) -> None:
    small, large, larger = (_shape(1), _shape(10), _shape(250))
    for number in range(50):
        costs.learn(20 * US if number % 3 else 200 * US, shape=small if number % 3 else large)
    assert costs.of(larger) == Guess(costs.of(larger).kind, True, 5 * MS, 5 * MS)
    assert costs.ns(larger) == 0


def _shape(warps: int) -> int:
    """The shape of a launch of that many warps."""
    return warps << 32 | 1


def test_shapes_of_a_steady_function_are_all_the_same(costs: Costs) -> None:
    costs.learn(*[20 * US] * 20, shape=1)
    assert costs.ns(shape=2) == 20 * US


def test_a_slow_first_launch_does_not_make_a_function_vary(costs: Costs) -> None:
    costs.learn(200 * US, *[20 * US] * 40, shape=1)
    assert costs.ns(shape=2) == 20 * US


def test_long_ones_among_short_ones_are_not_forgotten(costs: Costs) -> None:
    for number in range(2000):
        costs.learn(10 * MS if number % 10 == 0 else 20 * US)
    assert costs.of().kind is Kind.WILD


def test_functions_do_not_share_shapes(costs: Costs) -> None:
    for shape, ns in _mixed(200):
        costs.learn(ns, shape=shape)
        costs.learn(2 * ns, shape=shape, work=OTHER)
    assert (costs.ns(1), costs.ns(1, OTHER)) == (20 * US, 40 * US)


def test_a_bound_is_news_only_if_it_is_lower(costs: Costs) -> None:
    costs.learn(*[50 * US] * 20)
    costs.learn(*[80 * US] * 5, known=False)
    assert costs.ns() == 50 * US
    costs.learn(*[30 * US] * 15, known=False)
    assert costs.ns() == 30 * US


def test_work_that_takes_longer_than_before_is_believed_in_the_end(costs: Costs) -> None:
    costs.learn(*[50 * US] * 20)
    costs.learn(*[90 * US] * 40, known=False)
    assert costs.of().likely >= 85 * US


def test_what_was_measured_seldom_is_forgotten_when_in_doubt(costs: Costs) -> None:
    costs.learn(*[70 * MS] * 100)
    costs.learn(*[20 * US] * 300, work=OTHER)
    costs.doubt()
    costs.learn(5 * MS)
    costs.learn(20 * US, work=OTHER)
    assert costs.of().ns == 5 * MS
    assert not costs.of(work=OTHER).fresh


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 40), st.booleans()), max_size=99))
def test_a_guess_is_always_one(library: ctypes.CDLL, taken: list[tuple[int, int, bool]]) -> None:
    costs = Costs(library)
    for shape, ns, known in taken:
        costs.learn(ns, shape=shape, known=known)
    for shape in range(4):
        guess = costs.of(shape)
        assert (guess.kind is Kind.UNKNOWN) == (not taken)
        assert 0 <= guess.likely <= guess.ns
        assert not taken or guess.likely > 0


def test_what_is_known_of_many_functions_stays_known(costs: Costs) -> None:
    functions = range(FUNCTION, FUNCTION + 16 * 30_000, 16)
    for work in functions:
        costs.learn(20 * US, work=work)
    assert {costs.ns(work=work) for work in functions} == {20 * US}


def test_more_functions_than_there_is_room_for_are_learned_anew(costs: Costs) -> None:
    last = FUNCTION + 16 * 3 * 65_536
    for work in range(FUNCTION, last + 1, 16):
        costs.learn(20 * US, work=work)
    assert costs.ns(work=last) == 20 * US
