"""The fast tests, as pytest collects them, and the trial of a fault with them."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from mutants.mutations import Mutation
from mutants.players import play
from mutants.scope import named
from mutants.swap import Loaded, Statement

SLACK_S, SLACK_CPU_S, SLACKNESS = 5.0, 2.0, 10.0
"""Seconds, seconds of processor time, and a factor: a test hangs if it takes longer than SLACK_S
(or SLACK_CPU_S of processor time) plus SLACKNESS times its time without a fault. An endless loop is
recognized by its processor time, which is the same on a busy machine."""


class Fate(IntEnum):
    """The result of a fault; the values are exit statuses of the processes that try it."""

    SURVIVED = 0
    TIMED_OUT = 1  # the status with which faulthandler ends a process
    KILLED = 10
    NOT_COVERED = 11

    @classmethod
    def of(cls, status: int) -> Fate:
        """The result for an exit status: a fault that kills the whole process was noticed as
        well."""
        if status == -signal.SIGPROF:
            return cls.TIMED_OUT
        return cls(status) if status in set(cls) else cls.KILLED


@dataclass
class Coverage:
    """What the tests do without a fault: their times, and the statements that each runs."""

    tests: dict[Statement, list[int]] = field(default_factory=dict)
    """Numbers of the tests that run a statement."""
    seconds: list[float] = field(default_factory=list)
    """Time of each test."""
    failed: list[int] = field(default_factory=list)
    """Tests that fail even without a fault."""


class Suite:
    """Tests that are collected and loaded. None of them runs in this process."""

    def __init__(self, items: Sequence[pytest.Item], files: Sequence[Path]) -> None:
        self._items = list(items)
        self._loaded = Loaded(files)
        self._modules = [named(path) for path in files]
        self._killers: dict[tuple[str, str], Counter[int]] = {}
        self._null = os.open(os.devnull, os.O_WRONLY)
        self._failed: Callable[[], None] = lambda: None
        self.coverage = Coverage()
        gc.collect()
        gc.freeze()

    def names(self, numbers: Sequence[int]) -> list[str]:
        """The node IDs of these tests."""
        return [self._items[number].nodeid for number in numbers]

    def learn(self, scratch: Path) -> None:
        """Run all tests once, in another process, to find out which statements each runs."""
        told = scratch / "coverage"
        (end,) = play([told], self._cover, 1, scratch)
        if end.status != 0:
            raise RuntimeError(f"the tests end with {end.status} without any fault")
        self.coverage = pickle.loads(told.read_bytes())

    def _cover(self, told: Path, pipe: int) -> int:
        hits: set[Statement] = set()
        coverage = Coverage()
        for module in self._modules:
            self._loaded.probe(module, hits.add)
        for number, item in enumerate(self._items):
            self._failed = lambda: coverage.failed.append(number)  # noqa: B023
            self._loaded.forget()
            hits.clear()
            start = time.monotonic()
            self._run(item, None)
            coverage.seconds.append(time.monotonic() - start)
            for statement in hits:
                coverage.tests.setdefault(statement, []).append(number)
        told.write_bytes(pickle.dumps(coverage))
        return 0

    def tests_of(self, mutation: Mutation) -> list[int]:
        """The tests that run the changed statement: first those that noticed other faults of the
        function, then the fast ones."""
        killers = self._killers.get((mutation.module, mutation.function), Counter())
        found = set(self.coverage.tests.get((mutation.module, mutation.statement), ()))
        seconds = self.coverage.seconds
        return sorted(
            found.difference(self.coverage.failed), key=lambda n: (-killers[n], seconds[n])
        )

    def try_out(self, mutation: Mutation, pipe: int) -> int:
        """Plant the fault and run the tests that may notice it, until one does. Runs in a process
        of its own."""
        tests = self.tests_of(mutation)
        if not tests:
            return Fate.NOT_COVERED
        self._loaded.plant(mutation)
        try:
            for number, after in zip(tests, [*tests[1:], None], strict=True):
                self._failed = lambda: _report(pipe, number)  # noqa: B023
                self._limit(SLACKNESS * self.coverage.seconds[number])
                self._run(self._items[number], None if after is None else self._items[after])
        except BaseException:
            return Fate.KILLED
        return Fate.SURVIVED

    def _limit(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, SLACK_CPU_S + seconds)
        faulthandler.dump_traceback_later(SLACK_S + seconds, exit=True, file=self._null)

    def noticed(self, mutation: Mutation, words: bytes) -> str | None:
        """Returns the test that noticed the fault, from the bytes that its process wrote. That test
        is tried first the next time."""
        if not words:
            return None
        number = int(words)
        self._killers.setdefault((mutation.module, mutation.function), Counter())[number] += 1
        return self._items[number].nodeid

    def _run(self, item: pytest.Item, after: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """Handles a failure before pytest formats it, which takes long."""
        if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            self._failed()


def _report(pipe: int, number: int) -> None:
    os.write(pipe, str(number).encode())
    os._exit(Fate.KILLED)


class Collected:
    """A pytest plugin that calls `job` with the collected tests instead of running them."""

    def __init__(self, job: Callable[[pytest.Session], None]) -> None:
        self._job = job

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces pytest's own loop."""
        self._job(session)
        return True


def collect(tests: Sequence[str], job: Callable[[pytest.Session], None]) -> int:
    """Collect tests and call `job` with them. Properties get few examples, always the same ones,
    and are not shrunk. Returns pytest's exit status."""
    phases = (Phase.explicit, Phase.generate, Phase.target)
    settings.register_profile(
        "mutants", derandomize=True, database=None, phases=phases, report_multiple_bugs=False
    )
    settings.load_profile("mutants")
    options = ["-qq", "--no-header", "--no-summary", "--capture=no", "--assert=plain"]
    options += ["-p", "no:cacheprovider"]
    return int(pytest.main([*options, *tests], plugins=[Collected(job)]))
