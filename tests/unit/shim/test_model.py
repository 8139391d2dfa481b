"""The accounting of several processes against a model of a few lines."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from .conftest import shim_env
from .shell import OUT_OF_MEMORY, SUCCESS, Shell
from .slot import MIB, Card, Slot, card_uuid

PAGE = 2 * MIB
PROCESSES_MAX = 4

small = st.integers(1, MIB)
large = st.integers(MIB + 1, 12 * MIB)
limits = st.integers(0, 32).map(lambda pages: pages * PAGE) | st.integers(0, 64 * MIB)
choices = st.integers(0, 1 << 16)


class Process:
    """A program, and what the model says that it holds."""

    def __init__(self, env: dict[str, str]) -> None:
        self.shell = Shell(env)
        self.large: dict[int, int] = {}  # by the shell's number: bytes charged
        self.small: dict[int, range] = {}  # by the shell's number: pages it lies in
        self.next = PAGE  # where the fake driver puts the next small one

    def held(self) -> int:
        pages = Counter(page for pages in self.small.values() for page in pages)
        return sum(self.large.values()) + len(pages) * PAGE

    def place(self, size: int) -> range:
        """The pages of a small allocation, which the fake driver puts after the one before."""
        first, self.next = self.next, self.next + (size + 511) // 512 * 512
        return range(first // PAGE, (first + size - 1) // PAGE + 1)


class Accounting(RuleBasedStateMachine):
    """One container: what the shim grants is what the model grants, whoever dies."""

    layout: dict[str, Any]

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.slot = Slot(Path(self.directory.name), self.layout)
        self.processes: list[Process] = []
        self.unsettled = 0  # bytes of the dead that nobody needed to settle yet
        self.limit_to(32 * MIB)
        self.start()
        self.start()

    @rule(limit=limits)
    def limit_to(self, limit: int) -> None:
        self.limit = limit
        self.slot.set_limits(Card(card_uuid(0), limit))

    @precondition(lambda self: len(self.processes) < PROCESSES_MAX and self.held() <= self.limit)
    @rule()
    def start(self) -> None:
        """Not above the limit: then not even a context that costs nothing is allowed."""
        self.processes.append(Process(shim_env(self.slot.path)))

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=large)
    def take_large(self, which: int, size: int) -> None:
        process = self.pick(which)
        charged = (size + PAGE - 1) // PAGE * PAGE
        allowed = self.held() + charged <= self.limit
        answer = self.take(process, size, allowed)
        if allowed:
            process.large[answer] = charged

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=small)
    def take_small(self, which: int, size: int) -> None:
        """A page is reserved before the address is known, and another where it reaches into it."""
        process = self.pick(which)
        reserved = self.held() + PAGE <= self.limit
        before = process.held()
        pages = process.place(size) if reserved else range(0)
        process.small[-1] = pages
        allowed = reserved and self.held() <= self.limit
        del process.small[-1]
        assert process.held() == before
        answer = self.take(process, size, allowed)
        if allowed:
            process.small[answer] = pages

    def take(self, process: Process, size: int, allowed: bool) -> int:
        answer = process.shell("alloc", size)
        assert answer.code == (SUCCESS if allowed else OUT_OF_MEMORY)
        if not allowed:
            self.unsettled = 0  # nobody is refused before the dead are settled
        return answer.detail

    @precondition(lambda self: any(p.large or p.small for p in self.processes))
    @rule(which=choices)
    def free(self, which: int) -> None:
        owners = [(p, n) for p in self.processes for n in (*p.large, *p.small)]
        process, number = owners[which % len(owners)]
        assert process.shell("free", number).code == SUCCESS
        process.large.pop(number, None)
        process.small.pop(number, None)

    @precondition(lambda self: self.processes)
    @rule(which=choices)
    def kill(self, which: int) -> None:
        process = self.pick(which)
        self.processes.remove(process)
        self.unsettled += process.held()
        process.shell.kill()
        os.waitid(os.P_PID, process.shell.process.pid, os.WEXITED | os.WNOWAIT)
        process.shell.errors()

    @precondition(lambda self: self.processes and self.limit)
    @rule(which=choices)
    def ask(self, which: int) -> None:
        used, total = self.pick(which).shell("figures")
        assert total == self.limit
        assert min(self.held(), total) <= used <= self.held() + self.unsettled

    @invariant()
    def what_is_taken_is_what_is_held(self) -> None:
        if not hasattr(self, "slot"):
            return
        assert self.held() <= self.slot.used(0) <= self.held() + self.unsettled

    def pick(self, which: int) -> Process:
        return self.processes[which % len(self.processes)]

    def held(self) -> int:
        return sum(process.held() for process in self.processes)

    def teardown(self) -> None:
        for process in getattr(self, "processes", ()):
            process.shell.process.kill()
            process.shell.errors()
        if hasattr(self, "directory"):
            self.directory.cleanup()


@pytest.fixture
def examples() -> int:
    """More of them with MIZAR_MODEL_EXAMPLES."""
    return int(os.environ.get("MIZAR_MODEL_EXAMPLES", "30"))


def test_the_accounting_follows_the_model(layout: dict[str, Any], examples: int) -> None:
    Accounting.layout = layout
    run_state_machine_as_test(
        Accounting,
        settings=settings(max_examples=examples, stateful_step_count=60, deadline=None),
    )
