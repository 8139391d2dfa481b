"""The results: a table for people, and build/mutants.json for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mutants.harmless import Entry
from mutants.mutations import Mutation
from mutants.scope import ROOT, Part
from mutants.suite import Fate

GOAL_PERCENT = 85.0
WIDTH = 120
"""Width of the table if there is no terminal."""
WRITTEN = ROOT / "build" / "mutants.json"


@dataclass
class Tally:
    """The number of faults of a module or package, by result."""

    name: str
    killed: int = 0
    timed_out: int = 0
    survived: int = 0
    not_covered: int = 0
    harmless: int = 0
    """Faults on the list of harmless ones; not counted elsewhere."""

    def add(self, fate: Fate | None) -> None:
        """Add one fault; None: a harmless one."""
        name = "harmless" if fate is None else fate.name.lower()
        setattr(self, name, getattr(self, name) + 1)

    @property
    def mutants(self) -> int:
        """The number of faults that a test should notice."""
        return self.killed + self.timed_out + self.survived + self.not_covered

    @property
    def percent(self) -> float:
        """The percentage of these that were noticed."""
        return 100.0 * (self.killed + self.timed_out) / (self.mutants or 1)


@dataclass
class Outcome:
    """The results of a run. A sample gives an impression; only whole packages are judged."""

    parts: Sequence[Part]
    seed: int
    sample: int | None
    """Number of faults per package; None: all."""
    whole: bool
    """Whether all mutations of the files are tried."""
    harmless: dict[Mutation, Entry] = field(default_factory=dict)
    stale: list[Entry] = field(default_factory=list)
    """Entries of the list that match no mutation."""
    failed: list[str] = field(default_factory=list)
    """Tests that fail without any fault, and were not used."""
    fates: dict[Mutation, Fate] = field(default_factory=dict)
    killers: dict[Mutation, str] = field(default_factory=dict)

    @property
    def missed(self) -> list[str]:
        """Packages that were tested as a whole and are below the goal."""
        return [
            part.package.name
            for part in self.parts
            if self.whole and part.whole and self.of(part).percent < GOAL_PERCENT
        ]

    def of(self, part: Part) -> Tally:
        """The tally of a package."""
        return self._tally(part.package.name, part.names)

    def modules(self, part: Part) -> list[Tally]:
        """The tallies of the package's modules."""
        return [self._tally(name, {name}) for name in sorted(part.names)]

    def _tally(self, name: str, modules: set[str]) -> Tally:
        tally = Tally(name)
        for mutation, fate in self.fates.items():
            if mutation.module in modules:
                tally.add(fate)
        for mutation in self.harmless:
            if mutation.module in modules:
                tally.add(None)
        return tally

    @property
    def left(self) -> list[Mutation]:
        """The mutations that no test noticed."""
        unnoticed = (Fate.SURVIVED, Fate.NOT_COVERED)
        found = [mutation for mutation, fate in self.fates.items() if fate in unnoticed]
        return sorted(found, key=lambda one: (one.module, one.line, one.now))

    def as_json(self) -> dict[str, Any]:
        """All results, as JSON values."""
        return {
            "seed": self.seed,
            "sample": self.sample,
            "packages": [
                _figures(self.of(part)) | {"whole": self.whole and part.whole}
                for part in self.parts
            ],
            "modules": [_figures(tally) for part in self.parts for tally in self.modules(part)],
            "left": [_told(one) | {"fate": self.fates[one].name.lower()} for one in self.left],
            "noticed_by": [_told(one) | {"test": test} for one, test in self.killers.items()],
            "failed_without_fault": list(self.failed),
        }

    def write(self, path: Path) -> Path:
        """Write build/mutants.json. Returns its path."""
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        return path

    def print(self) -> None:
        """Print the table, the mutations that were not noticed, and problems of the list."""
        console = Console(
            highlight=False, emoji=False, soft_wrap=True, width=None if os.isatty(1) else WIDTH
        )
        for mutation in self.left:
            console.print(_diff(mutation, self.fates[mutation]), markup=False)
        console.print(self._table())
        for entry in self.stale:
            console.print(
                f"harmless.md:{entry.line}: nothing in {entry.module} is changed from "
                f"{entry.was!r} to {entry.now!r} any more: remove the entry, or mend it",
                markup=False,
            )
        for test in self.failed:
            console.print(f"fails without any fault, so it was left out: {test}", markup=False)
        for name in self.missed:
            console.print(f"{name} is below {GOAL_PERCENT:.0f} %")

    def _table(self) -> Table:
        columns = ("mutants", "killed", "timed out", "survived", "not covered", "harmless", "%")
        table = Table("module", box=box.SIMPLE)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for part in self.parts:
            for tally in [*self.modules(part), self.of(part)]:
                table.add_row(*_cells(tally), end_section=tally.name == part.package.name)
        return table


def _cells(tally: Tally) -> Iterable[str]:
    figures = (tally.killed, tally.timed_out, tally.survived, tally.not_covered, tally.harmless)
    percent = f"{tally.percent:.1f}" if tally.mutants else "-"
    return (tally.name, str(tally.mutants), *map(str, figures), percent)


def _figures(tally: Tally) -> dict[str, Any]:
    return asdict(tally) | {"mutants": tally.mutants, "percent": round(tally.percent, 1)}


def _told(mutation: Mutation) -> dict[str, Any]:
    return {name: getattr(mutation, name) for name in ("module", "line", "function", "was", "now")}


def _diff(mutation: Mutation, fate: Fate) -> str:
    words = fate.name.lower().replace("_", " ")
    place = f"{mutation.module}:{mutation.line}: {mutation.function}"
    return f"{place} ({words})\n- {mutation.was}\n+ {mutation.now}"
