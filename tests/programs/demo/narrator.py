"""Prints the demo's steps with their times, and keeps them for the closing table."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 110


@dataclass
class Step:
    """One line of the closing table."""

    title: str
    seconds: float
    seen: str = ""


@dataclass
class Narrator:
    """Numbers and times the steps of a story."""

    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    started: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run one step: print its title first, then how long it took and what was seen."""
        step = Step(title, 0.0)
        begun = time.monotonic()
        self.console.print(f"\n[bold]{len(self.steps) + 1}. {title}[/bold]")
        yield step
        step.seconds = time.monotonic() - begun
        self.steps.append(step)
        self.console.print(f"   {step.seen or 'done'} [dim]({step.seconds:.1f} s)[/dim]")

    def act(self, title: str) -> None:
        """Print what the steps from here on are about."""
        self.console.print()
        self.console.rule(f"[bold]{title}[/bold]", align="left")

    def show(self, text: str) -> None:
        """Print a command's output, indented and otherwise unchanged."""
        for line in text.rstrip().splitlines():
            self.console.print(f"   | {line}", markup=False)

    def table(self) -> None:
        """Print the closing table: every step, what was seen, and its time."""
        table = Table(title="What you saw")
        table.add_column("step")
        table.add_column("seen", overflow="fold")
        table.add_column("seconds", justify="right")
        for number, step in enumerate(self.steps, 1):
            table.add_row(f"{number}. {step.title}", step.seen, f"{step.seconds:.1f}")
        table.add_row("in all", "", f"{time.monotonic() - self.started:.1f}")
        self.console.width = max(self.console.width, TABLE_WIDTH)
        self.console.print()
        self.console.print(table)
