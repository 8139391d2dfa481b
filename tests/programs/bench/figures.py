"""Figures, their table and their file, in one format for every area. The goal of a figure is given
where it is measured, in area_*.py."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 150
DISTURBED_MOST = 10
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Figure:
    """One measured value. `spread`: (minimum, maximum) of the runs. `beside`: the figure of the
    same run to which this one is a ratio or difference. `disturbed_percent`: the part of the
    measured time in which the machine was too busy with other things."""

    name: str
    value: float
    unit: str
    goal: str
    runs: int
    spread: tuple[float, float]
    beside: str = ""
    disturbed_percent: float = 0

    @property
    def met(self) -> str:
        """`yes`, `no`, or empty if there is no goal."""
        if not self.goal:
            return ""
        sign, bound = self.goal.split()[:2]
        good = self.value <= float(bound) if sign == "<=" else self.value >= float(bound)
        return "yes" if good else "no"


def percentile(samples: list[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest sample that is at least as large as `percent` of
    all."""
    ordered = sorted(samples)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def figure(
    name: str, samples: list[float], percent: float, unit: str, goal: str = "", beside: str = ""
) -> Figure:
    """A percentile of samples as a figure. Raises ValueError if nothing was measured."""
    if not samples:
        raise ValueError(f"{name}: nothing was measured")
    value = statistics.median(samples) if percent == 50 else percentile(samples, percent)
    spread = (round(min(samples), 4), round(max(samples), 4))
    return Figure(name, round(value, 4), unit, goal, len(samples), spread, beside)


@dataclass(frozen=True)
class Details:
    """The cases behind figures: a table that is printed beside them."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass
class Report:
    """The figures of one area."""

    area: str
    figures: list[Figure] = field(default_factory=list)
    details: list[Details] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)  # why something could not be measured
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def problems(self) -> list[str]:
        """The figures that could not be measured, or not well enough to say anything."""
        disturbed = (one for one in self.figures if one.disturbed_percent > DISTURBED_MOST)
        return self.unmeasured + [
            f"{one.name}: {one.disturbed_percent:g} % of it was disturbed by other programs"
            for one in disturbed
        ]

    @property
    def missed(self) -> list[str]:
        """The figures whose goal is not met."""
        return [one.name for one in self.figures if one.met == "no"]

    @property
    def title(self) -> str:
        """The area, and the kind of cards unless they are ideal: simgpu's SIMGPU_PROFILE."""
        profile = os.environ.get("SIMGPU_PROFILE", "ideal")
        return self.area if profile == "ideal" else f"{self.area}-{profile}"

    @property
    def load(self) -> str:
        """The machine's load average, which limits the accuracy of the figures."""
        return f"load {self.load_before:.1f} before, {os.getloadavg()[0]:.1f} after"

    def write(self) -> Path:
        """Write build/bench/{title}.json."""
        path = ROOT / "build" / "bench" / f"{self.title}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        body = {
            "area": self.area,
            "commit": _commit(),
            "machine": f"{platform.machine()}, {platform.release()}, {_cpus()}, {self.load}",
            "figures": [asdict(one) for one in self.figures],
        }
        path.write_text(json.dumps(body, indent=2) + "\n")
        return path

    def print(self) -> None:
        """Print the cases, and then the table: figure, value, goal, met or not."""
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        for one in self.details:
            console.print(_table(one))
        table = Table(title=f"bench {self.title}")
        columns = ("figure", "value", "goal", "met", "runs", "min to max", "disturbed", "beside")
        for column in columns:
            table.add_column(column)
        for each in self.figures:
            spread = f"{each.spread[0]:g} to {each.spread[1]:g}"
            row = (each.name, f"{each.value:g} {each.unit}", each.goal, each.met)
            disturbed = f"{each.disturbed_percent:g} %" if each.disturbed_percent else ""
            style = "red" if each.met == "no" else None
            table.add_row(*row, str(each.runs), spread, disturbed, each.beside, style=style)
        console.print(table)
        for why in self.problems:
            console.print(f"could not measure {why}")


def _table(details: Details) -> Table:
    table = Table(*details.columns, title=details.title)
    for row in details.rows:
        table.add_row(*row)
    return table


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _cpus() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0]}" if models else "unknown processor"
