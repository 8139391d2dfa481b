"""Reads harmless.md, the list of mutations that need no test.

A heading names a module, a paragraph gives the reason, and the diffs below it are the mutations to
which it applies. A line with `-` and no `+` after it stands for any change of that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mutants.mutations import Mutation

LIST = Path(__file__).with_name("harmless.md")


class BadList(Exception):
    """The list cannot be parsed; the message says where and why."""


@dataclass(frozen=True)
class Entry:
    """A mutation that no test needs to notice."""

    module: str
    was: str
    now: str | None
    """None: any change."""
    why: str
    line: int
    """Line number in the list."""

    def fits(self, mutation: Mutation) -> bool:
        """Whether the entry matches the mutation."""
        same = (self.module, self.was) == (mutation.module, mutation.was)
        return same and self.now in (None, mutation.now)


def read(path: Path = LIST) -> list[Entry]:
    """Reads all entries. Raises BadList."""
    return list(_entries(path.read_text().splitlines(), path.name))


def _entries(lines: Iterable[str], name: str) -> Iterator[Entry]:
    module, before = "", ""
    why: list[str] = []
    block: list[tuple[int, str]] | None = None
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            for at, was, now in _changes(block or [], name):
                yield Entry(module, was, now, " ".join(why), at)
            block = [] if block is None else None
        elif block is not None:
            block.append((number, line))
        elif line.startswith("#"):
            module = line.lstrip("# ")
        elif line:
            # A paragraph begins after an empty line; several diffs may follow the same one.
            why = [*why, line] if before else [line]
        before = line


def _changes(block: Sequence[tuple[int, str]], name: str) -> Iterator[tuple[int, str, str | None]]:
    was = None
    for (number, line), (_, after) in pairwise([*block, (0, "")]):
        if line.startswith("- "):
            was = line[2:].strip()
            if not after.startswith("+ "):
                yield number, was, None
        elif line.startswith("+ ") and was is not None:
            yield number, was, line[2:].strip()
        else:
            raise BadList(f"{name}:{number}: a line of a diff is `- was` or `+ now`, not {line!r}")


def sort_out(
    entries: Iterable[Entry], mutations: Iterable[Mutation]
) -> tuple[dict[Mutation, Entry], list[Entry]]:
    """Returns the mutations that are harmless, and the entries that match none of the mutations."""
    entries = list(entries)
    by_line: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        by_line.setdefault((entry.module, entry.was), []).append(entry)
    harmless = {
        mutation: entry
        for mutation in mutations
        for entry in by_line.get((mutation.module, mutation.was), ())
        if entry.fits(mutation)
    }
    used = set(harmless.values())
    return harmless, [entry for entry in entries if entry not in used]
