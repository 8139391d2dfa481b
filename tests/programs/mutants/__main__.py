"""`make mutants`: plants faults one by one and counts those that the fast tests do not notice.

Exit status 1: a package that was tested as a whole is below the goal, or the list of harmless
mutations has entries that match nothing. 2: the run failed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer

from mutants.harmless import LIST, BadList, Entry, read, sort_out
from mutants.mutations import Mutation, mutations_of
from mutants.players import play
from mutants.report import WRITTEN, Outcome
from mutants.scope import Part, UnknownModule, parts
from mutants.suite import Fate, Suite, collect

TOLD_EVERY_S = 10.0


def main(
    of: Annotated[list[str] | None, typer.Argument(help="packages, folders or files")] = None,
    sample: Annotated[int, typer.Option(help="so many of each package; 0: all")] = 0,
    seed: Annotated[int | None, typer.Option(help="of the sample")] = None,
    again: Annotated[bool, typer.Option(help="only those that were left last time")] = False,
    tests: Annotated[str, typer.Option(help="these tests in place of the packages'")] = "",
    harmless: Annotated[Path, typer.Option(help="the list of those that don't count")] = LIST,
    out: Annotated[Path, typer.Option(help="where results are written")] = WRITTEN,
) -> None:
    """Plant faults, count those that were noticed, print and write the results."""
    try:
        entries, left = read(harmless), _left_last_time(out) if again else None
        outcome = _planned(parts(of or []), entries, sample or None, seed, left)
        chosen = tests.split() or sorted({t for part in outcome.parts for t in part.package.tests})
        if not chosen:
            raise UnknownModule("of a module that is of no package here, name the tests as well")
    except (UnknownModule, BadList, FileNotFoundError) as wrong:
        print(wrong, file=sys.stderr)
        raise typer.Exit(2) from wrong
    # The seed of the random choices that tests make themselves.
    os.environ.setdefault("MIZAR_SEED", str(outcome.seed or 1))
    if collect(chosen, lambda session: _play(session, outcome)) != 0:
        raise typer.Exit(2)
    outcome.print()
    print(f"written to {outcome.write(out)}")
    raise typer.Exit(int(bool(outcome.missed or outcome.stale)))


def _planned(
    asked: list[Part],
    entries: list[Entry],
    sample: int | None,
    seed: int | None,
    left: set[tuple[str, ...]] | None,
) -> Outcome:
    """The mutations to try. Those without a result yet count as survivors."""
    seed = random.randrange(1 << 30) if seed is None else seed
    chance = random.Random(seed)
    outcome = Outcome(asked, seed, sample, whole=sample is None and left is None)
    for part in asked:
        every = [mutation for path in part.files for mutation in mutations_of(path)]
        listed = [entry for entry in entries if entry.module in part.names]
        harmless, stale = sort_out(listed, every)
        outcome.harmless |= harmless
        outcome.stale += stale
        count = [m for m in every if m not in harmless and (left is None or _key(m) in left)]
        chosen = chance.sample(count, min(sample or len(count), len(count)))
        outcome.fates |= dict.fromkeys(sorted(chosen, key=_key), Fate.SURVIVED)
    return outcome


def _key(mutation: Mutation) -> tuple[str, ...]:
    return mutation.module, mutation.function, mutation.was, mutation.now


def _left_last_time(out: Path) -> set[tuple[str, ...]]:
    left = json.loads(out.read_text())["left"]
    return {(one["module"], one["function"], one["was"], one["now"]) for one in left}


def _play(session: pytest.Session, outcome: Outcome) -> None:
    files = [path for part in outcome.parts for path in part.files]
    print(f"{len(outcome.fates)} mutants, seed {outcome.seed}; {len(session.items)} tests")
    with tempfile.TemporaryDirectory(prefix="m") as scratch:
        suite = Suite(session.items, files)
        session.config.pluginmanager.register(suite)
        suite.learn(Path(scratch))
        print(f"without a fault the tests take {sum(suite.coverage.seconds):.0f} s", flush=True)
        outcome.failed = suite.names(suite.coverage.failed)
        _play_all(suite, outcome, Path(scratch))


def _play_all(suite: Suite, outcome: Outcome, scratch: Path) -> None:
    said = start = time.monotonic()
    at_once = int(os.environ.get("MIZAR_MUTANTS_AT_ONCE", os.cpu_count() or 1))
    for number, end in enumerate(play(list(outcome.fates), suite.try_out, at_once, scratch), 1):
        outcome.fates[end.of] = Fate.of(end.status)
        if test := suite.noticed(end.of, end.words):
            outcome.killers[end.of] = test
        if time.monotonic() > said + TOLD_EVERY_S:
            said = time.monotonic()
            _tell(number, outcome, said - start)


def _tell(number: int, outcome: Outcome, seconds: float) -> None:
    fates: Sequence[Fate] = list(outcome.fates.values())
    noticed = sum(fate in (Fate.KILLED, Fate.TIMED_OUT) for fate in fates)
    print(
        f"{number} of {len(fates)} after {seconds:.0f} s: "
        f"{number - noticed} not noticed, {fates.count(Fate.TIMED_OUT)} timed out",
        flush=True,
    )


if __name__ == "__main__":
    typer.run(main)
