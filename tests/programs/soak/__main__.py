"""`make soak`: random work and sudden deaths, for MIZAR_SOAK_MINUTES (5). MIZAR_SOAK_SEED repeats
the work of another run.

Fails if the limit was exceeded, if bytes were lost or not available within 30 s, if a program could
get less than 98 % of the limit before it was refused more (usable_percent), or if something made no
progress. Of usable_percent, the rounds are unknown in which the machine was so busy that the node
agent had no processor (LATE_S); disturbed_percent tells how many. On harsh cards it has no say."""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.figures import ROOT, Details, Figure, Report
from soak.code import LazyContainer
from soak.container import LATE_S, USABLE, WAYS, Container, Truth

MINUTES = float(os.environ.get("MIZAR_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("MIZAR_SOAK_SEED", str(random.randrange(1 << 30))))
OPERATIONS, KILLS = 250_000, 10_000
FAILS = frozenset(
    {
        "granted_over_limit_bytes",
        "lost_bytes",
        "uncounted_bytes",
        "usable_percent",
        "usable_again_percent",
    }
)
"""Figures of which none may miss its goal. How soon all of a limit is available again depends on
the machine, too."""
LATE_ON_HARSH_CARDS = {"usable_percent"}
"""Not there: they have dead processes' memory back, and NVML tells what code took, later than a
call waits that is refused memory."""
ROUND_KILLS, LAUNCH_KILLS, CODE_KILLS, LOWER_S = 500, 100, 12, 3


class Soak:
    """Rounds until the time is over and enough operations were done."""

    def __init__(
        self, container: Container, lazy: LazyContainer, minutes: float, seed: int
    ) -> None:
        self._container = container
        self._lazy = lazy
        self._end = time.monotonic() + minutes * 60
        self._chance = random.Random(seed)
        self._killed = 0
        self.truths: list[Truth] = []
        self.rows: list[tuple[str, ...]] = []

    def run(self) -> Report:
        """Run each kind of work alone, then all kinds mixed while workers are killed, in turns."""
        seconds = max(0.5, (self._end - time.monotonic()) / 10 / len(WAYS))
        for name, way in WAYS.items():
            self._round(name, partial(self._work, seconds, way))
        while not self._enough():
            self._round("all ways", partial(self._work, seconds, None))
            self._round("lowering", self._lower)
            self._round("killing", self._kill)
            self._round("launching", self._launch)
            self._round("lazy code", self._use_code)
        return self._report()

    def _enough(self) -> bool:
        done = self._container.operations >= OPERATIONS and self._killed >= KILLS
        return done and time.monotonic() >= self._end

    def _work(self, seconds: float, way: int | None) -> None:
        self._killed += self._container.work(self._chance.getrandbits(40), seconds, way=way)

    def _lower(self) -> None:
        self._container.lower(self._chance.getrandbits(40), LOWER_S)

    def _kill(self) -> None:
        self._container.kill(self._chance.getrandbits(40), ROUND_KILLS)
        self._killed += ROUND_KILLS

    def _launch(self) -> None:
        self._container.launch(self._chance.getrandbits(40), LAUNCH_KILLS)
        self._killed += LAUNCH_KILLS

    def _use_code(self) -> None:
        self._lazy.work(self._chance.getrandbits(40), CODE_KILLS)
        self._killed += CODE_KILLS

    def _round(self, name: str, what: Callable[[], None]) -> None:
        operations, killed, began = self._container.operations, self._killed, time.monotonic()
        what()
        truth = self._container.truth()
        truth = replace(truth, over=max(truth.over, self._lazy.over))
        self.truths.append(truth)
        row = (
            name,
            f"{time.monotonic() - began:.1f}",
            str(self._container.operations - operations),
            str(self._killed - killed),
            str(truth.over),
            str(truth.lost),
            str(truth.uncounted),
            f"{truth.usable:.1f}",
            f"{truth.late_s * 1000:.0f}",
            f"{truth.usable_again:.1f}",
            f"{truth.took_s * 1000:.0f}",
        )
        self.rows.append(row)
        print(f"  {name}: {row[2]} operations, {row[3]} killed in {row[1]} s", flush=True)

    def _report(self) -> Report:
        report = Report("soak")
        report.figures = [
            self._figure("granted_over_limit_bytes", [one.over for one in self.truths], "<= 0"),
            self._figure("lost_bytes", [one.lost for one in self.truths], "<= 0"),
            self._figure("uncounted_bytes", [one.uncounted for one in self.truths], "<= 0"),
            *self._usable(),
            self._figure(
                "usable_again_percent",
                [one.usable_again for one in self.truths],
                f">= {USABLE}",
                worst=min,
            ),
            self._total("sigkills_survived", self._killed, f">= {KILLS}"),
            self._total("operations", self._container.operations, f">= {OPERATIONS}"),
            self._figure("limit_again_s", [one.took_s for one in self.truths], "<= 1"),
        ]
        columns = (
            "round",
            "s",
            "operations",
            "killed",
            "over",
            "lost",
            "uncounted",
            "usable %",
            "agent waited ms",
            "usable again %",
            "whole limit again, ms",
        )
        report.details = [Details(f"soak, seed {SEED}", columns, self.rows)]
        return report

    def _usable(self) -> list[Figure]:
        """The worst first try of the known ones; empty if none is known."""
        known = [one.usable for one in self.truths if one.late_s <= LATE_S]
        if not known:
            return []
        found = self._figure("usable_percent", known, f">= {USABLE}", worst=min)
        disturbed = 100 * (1 - len(known) / len(self.truths))
        return [replace(found, disturbed_percent=round(disturbed, 2))]

    @staticmethod
    def _figure(
        name: str,
        values: Sequence[float],
        goal: str,
        worst: Callable[[Sequence[float]], float] = max,
    ) -> Figure:
        unit = name.rsplit("_", 1)[1]
        spread = (round(min(values), 4), round(max(values), 4))
        return Figure(name, round(worst(values), 4), unit, goal, len(values), spread)

    @staticmethod
    def _total(name: str, value: int, goal: str) -> Figure:
        return Figure(name, value, "", goal, 1, (value, value))


def main() -> int:
    """Print the report. Returns 1 if one of FAILS missed its goal or could not be measured; a hang
    ends it with an error."""
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "tests", "bench"], check=True)
    print(f"seed {SEED}, {MINUTES:g} minutes", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Container(Path(folder)) as container,
        LazyContainer(Path(folder) / "lazy") as lazy,
    ):
        report = Soak(container, lazy, MINUTES, SEED).run()
    report.print()
    print(f"written to {report.write()}")
    return int(is_bad(report))


def is_bad(report: Report) -> bool:
    """Whether one of FAILS missed its goal or could not be measured."""
    is_harsh = report.title != report.area
    fails = FAILS - LATE_ON_HARSH_CARDS if is_harsh else FAILS
    return not {one.name for one in report.figures if one.met == "yes"} >= fails


if __name__ == "__main__":
    sys.exit(main())
