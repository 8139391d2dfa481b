"""How often cases are repeated that a busy machine disturbed, and for how long."""

from collections.abc import Iterable, Iterator
from itertools import repeat

import pytest

from bench.compute.rig import Case, Tenant
from bench.compute.runner import (
    ATTEMPTS,
    LOST,
    PATIENCE_S,
    SETTLING_MS,
    START_S,
    Result,
    Runner,
)

MS = 1_000_000
CASES = [Case("case", (Tenant(("us_20",)),))]
CALM, BUSY = 0.0, LOST + 1
RUN_S = SETTLING_MS / 1000 + 2.0


class Bench:
    """Stands in for the bench: each attempt takes its own time beside the cases', and the machine
    takes the next part (percent) of `losses`."""

    def __init__(self, losses: Iterable[float], starts_s: float = START_S) -> None:
        self.now, self.attempts, self._starts_s = 100.0, 0, starts_s
        self._losses: Iterator[float] = iter(losses)
        self.runner = Runner(self._attempt, lambda: self.now)

    def _attempt(self, cases: list[Case], seconds: float) -> list[Result]:
        self.attempts += 1
        self.now += seconds + self._starts_s
        control = [round(MS * (1 - next(self._losses) / 100))] * (SETTLING_MS + 1000)
        return [Result(one, [control], control, 0.0) for one in cases]

    def run(self) -> Result:
        (result,) = self.runner.run(CASES, 2.0)
        return result


def test_a_calm_attempt_is_enough() -> None:
    bench = Bench([CALM])
    bench.run()
    assert bench.attempts == 1


def test_the_calmest_attempt_counts() -> None:
    bench = Bench([BUSY + 2, BUSY, *[BUSY + 1] * ATTEMPTS])
    assert bench.run().lost == pytest.approx(BUSY, abs=0.01)
    assert bench.attempts == ATTEMPTS


@pytest.mark.parametrize("starts_s", [0.1, START_S, 4.0])
def test_all_takes_hardly_longer_than_planned(starts_s: float) -> None:
    """Repetitions stop if starts take so long that they cost as much."""
    bench, batches = Bench(repeat(BUSY), starts_s), 60
    began = bench.now
    for _ in range(batches):
        bench.run()
    once = batches * (RUN_S + max(starts_s, START_S))
    assert bench.attempts > batches
    assert bench.now - began < once + PATIENCE_S + RUN_S + starts_s
