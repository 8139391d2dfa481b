"""Runs the cases of AREA=compute, several at a time, and repeats them if the machine was too busy.

Beside the cases, on each processor, a load without the shim keeps a card of its own busy (the
control). Where even that card was idle, the machine was busy, and the cases' results say nothing.
Repetitions, and starts of agent and programs that take longer than START_S, take PATIENCE_S
together, and hardly more: all of AREA=compute takes ten minutes at most.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bench.compute import windows
from bench.compute.rig import Case, Tenant, Work, run

SECONDS = float(os.environ.get("MIZAR_BENCH_SECONDS", "2"))
CARDS = int(os.environ.get("MIZAR_BENCH_CARDS", "5"))
CONTROLS_MOST = 8
SETTLING_MS = 300
CONTROLS = [
    Case(f"control {each}", (Tenant(("us_200 1 2",), mode=None, processor=each),))
    for each in sorted(os.sched_getaffinity(0))[:CONTROLS_MOST]
]
LOST = 0.3  # percent
ATTEMPTS = 6
START_S, PATIENCE_S = 1.5, 150.0
BEGUN_MS = 20  # by then, the load has started


class Value(NamedTuple):
    """A value of a case, and the percent of the case's windows that are unknown."""

    value: float
    disturbed: float


@dataclass(frozen=True)
class Result:
    """The work of a case's tenants, and that of the controls beside them: the least of these in
    each millisecond.

    `throughput_percent`: see `Recorded`."""

    case: Case
    works: list[Work]
    control: Work
    throughput_percent: float

    @property
    def lost(self) -> float:
        """The part of the time (percent) that the controls did not work."""
        settled = self.control[SETTLING_MS:]
        return 100 * (1 - sum(settled) / (len(settled) * windows.MS_NS))

    @property
    def disturbed(self) -> float:
        """Percent of the windows that are unknown."""
        return round(windows.disturbed(self.control, SETTLING_MS), 2)

    def percents(self, start: int = SETTLING_MS, end: int | None = None) -> list[float]:
        """For each tenant, the percent of the time in which the card worked for it, in the known
        windows between these two times (ms)."""
        return [windows.mean(work[:end], start, self.control[:end]) for work in self.works]

    def value(self, value: float) -> Value:
        """A value of this case."""
        return Value(value, self.disturbed)


class Runner:
    """Runs cases. The time for repetitions counts over all of them. `attempt` runs cases once, for
    so many seconds; `clock` returns monotonic seconds."""

    def __init__(
        self,
        attempt: Callable[[list[Case], float], list[Result]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s = PATIENCE_S
        self._attempt = attempt or _attempt
        self._clock = clock

    def run(
        self, cases: Iterable[Case], seconds: float = SECONDS, at_once: int = CARDS
    ) -> list[Result]:
        """The work of each case in that many seconds after it has settled. `at_once` cases run at
        the same time, each on a card of its own."""
        waiting, done = list(cases), list[Result]()
        while waiting:
            now, waiting = waiting[:at_once], waiting[at_once:]
            done += self._run_together(now, seconds + SETTLING_MS / 1000)
        return done

    def _run_together(self, cases: list[Case], seconds: float) -> list[Result]:
        """The attempt in which the machine took least of the time."""
        planned = self._clock() + seconds + START_S
        best = self._attempt(cases, seconds)
        for _ in range(ATTEMPTS - 1):
            if best[0].lost <= LOST or self._clock() - planned >= self._patience_s:
                break
            best = min(best, self._attempt(cases, seconds), key=lambda done: done[0].lost)
        self._patience_s -= self._clock() - planned
        return best


def _attempt(cases: list[Case], seconds: float) -> list[Result]:
    found = run([*CONTROLS, *cases], seconds)
    control = windows.least([one.works[0] for one in found[: len(CONTROLS)]])
    control[:BEGUN_MS] = [windows.MS_NS] * BEGUN_MS
    return [
        Result(case, one.works, control, one.throughput_percent)
        for case, one in zip(cases, found[len(CONTROLS) :], strict=True)
    ]
