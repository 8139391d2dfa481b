"""The accounting of several processes against a model of a few lines."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.effort import effort

from .conftest import shim_env
from .shell import OUT_OF_MEMORY, SUCCESS, Shell
from .slot import MIB, Card, Slot, card_uuid

PAGE = 2 * MIB
CONTEXT = 3 * MIB
PROCESSES_MAX = 4
POOLED_MAX = 50  # the fake driver knows the sizes of so many

small = st.integers(1, MIB)
large = st.integers(MIB + 1, 12 * MIB)
pages = st.integers(1, 6).map(lambda count: count * PAGE)
limits = st.integers(0, 32).map(lambda pages: pages * PAGE) | st.integers(0, 64 * MIB)
choices = st.integers(0, 1 << 16)


@dataclass
class Memory:
    """Memory by handle: held as long as there are references to it or mappings of it."""

    size: int
    references: list[int]  # the shell's numbers of the handle
    mappings: list[int]


@dataclass
class Pool:
    """A pool, which keeps what is freed until the program waits."""

    live: dict[int, int] = field(default_factory=dict)
    kept: int = 0

    def take(self, number: int, size: int) -> None:
        self.live[number] = size
        self.kept = max(self.kept, sum(self.live.values()))

    def wait(self) -> None:
        self.kept = sum(self.live.values())


class Process:
    """A program, and what the model says that it holds."""

    def __init__(self, env: dict[str, str]) -> None:
        self.shell = Shell(env)
        self.large: dict[int, int] = {}  # by the shell's number: bytes charged
        self.small: dict[int, range] = {}  # by the shell's number: pages it lies in
        self.next = PAGE  # where the fake driver puts the next small one
        self.memory: list[Memory] = []
        self.pool = Pool()
        self.context: int | None = None  # a second one: bytes of the memory in it

    def held(self) -> int:
        pages = Counter(page for pages in self.small.values() for page in pages)
        handles = sum(each.size for each in self.memory)
        contexts = CONTEXT if self.context is None else 2 * CONTEXT + self.context
        large = sum(self.large.values())
        return large + len(pages) * PAGE + handles + self.pool.kept + contexts

    def place(self, size: int) -> range:
        """The pages of a small allocation, which the fake driver puts after the one before."""
        first, self.next = self.next, self.next + (size + 511) // 512 * 512
        return range(first // PAGE, (first + size - 1) // PAGE + 1)


Owned = tuple[Process, Memory]
T = TypeVar("T")


def choose(several: Sequence[T], which: int) -> T:
    return several[which % len(several)]


def whole(size: int) -> int:
    """In whole pages."""
    return (size + PAGE - 1) // PAGE * PAGE


class Accounting(RuleBasedStateMachine):
    """One container: the shim grants what the model grants, whichever process dies."""

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
        self.slot.set_limits(Card(card_uuid(0), limit, context_bytes=CONTEXT))

    @precondition(lambda self: len(self.processes) < PROCESSES_MAX and self.allows(CONTEXT))
    @rule()
    def start(self) -> None:
        self.processes.append(Process(shim_env(self.slot.path)))

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=large)
    def take_large(self, which: int, size: int) -> None:
        process = self.pick(which)
        charged = whole(size)
        allowed = self.allows(charged)
        answer = self.take(process, size, allowed)
        if allowed:
            process.large[answer] = charged

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=small)
    def take_small(self, which: int, size: int) -> None:
        """A page is reserved before the address is known, and another where the allocation reaches
        into it."""
        process = self.pick(which)
        reserved = self.allows(PAGE)
        before = process.held()
        pages = process.place(size) if reserved else range(0)
        process.small[-1] = pages
        allowed = reserved and self.held() <= self.limit
        del process.small[-1]
        assert process.held() == before
        answer = self.take(process, size, allowed)
        if allowed:
            process.small[answer] = pages

    # ---- memory by handle ----

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=pages)
    def create(self, which: int, size: int) -> None:
        process = self.pick(which)
        allowed = self.allows(size)
        number = self.take(process, size, allowed, "handle")
        if allowed:
            process.memory.append(Memory(size, [number], []))

    @precondition(lambda self: self.memory(references=True))
    @rule(which=choices)
    def map(self, which: int) -> None:
        process, memory = choose(self.memory(references=True), which)
        answer = process.shell("map", memory.references[0])
        assert answer.code == SUCCESS
        memory.mappings.append(answer.detail)

    @precondition(lambda self: self.memory(mappings=True))
    @rule(which=choices)
    def retain(self, which: int) -> None:
        process, memory = choose(self.memory(mappings=True), which)
        answer = process.shell("retain", memory.mappings[-1])
        assert answer.code == SUCCESS
        assert answer.detail in (memory.references or [answer.detail])
        memory.references.append(answer.detail)

    @precondition(lambda self: self.memory(references=True))
    @rule(which=choices)
    def release(self, which: int) -> None:
        process, memory = choose(self.memory(references=True), which)
        assert process.shell("release", memory.references.pop()).code == SUCCESS
        self.forget(process, memory)

    @precondition(lambda self: self.memory(mappings=True))
    @rule(which=choices)
    def unmap(self, which: int) -> None:
        process, memory = choose(self.memory(mappings=True), which)
        assert process.shell("unmap", memory.mappings.pop(0)).code == SUCCESS
        self.forget(process, memory)

    def memory(self, references: bool = False, mappings: bool = False) -> list[Owned]:
        """All that has one of these."""
        return [
            (process, memory)
            for process in self.processes
            for memory in process.memory
            if (references and memory.references) or (mappings and memory.mappings)
        ]

    @staticmethod
    def forget(process: Process, memory: Memory) -> None:
        if not memory.references and not memory.mappings:
            process.memory.remove(memory)

    # ---- pools ----

    @precondition(lambda self: self.processes)
    @rule(which=choices, size=pages)
    def take_pooled(self, which: int, size: int) -> None:
        """It needs room under the limit, even where the pool could serve it from what it keeps."""
        process = self.pick(which)
        if len(process.pool.live) == POOLED_MAX:
            return
        allowed = self.allows(size)
        number = self.take(process, size, allowed, "async")
        if allowed:
            process.pool.take(number, size)

    @precondition(lambda self: any(p.pool.live for p in self.processes))
    @rule(which=choices)
    def free_pooled(self, which: int) -> None:
        process, number = choose([(p, n) for p in self.processes for n in p.pool.live], which)
        assert process.shell("free_async", number).code == SUCCESS
        del process.pool.live[number]

    @precondition(lambda self: self.processes)
    @rule(which=choices)
    def wait(self, which: int) -> None:
        process = self.pick(which)
        assert process.shell("sync").code == SUCCESS
        process.pool.wait()

    # ---- contexts ----

    @precondition(lambda self: any(p.context is None for p in self.processes))
    @rule(which=choices, size=pages)
    def make_context(self, which: int, size: int) -> None:
        """With memory in it, if there is room."""
        process = choose([p for p in self.processes if p.context is None], which)
        allowed = self.allows(CONTEXT)
        inside = self.allows(CONTEXT + size)
        answer = process.shell("context", size)
        assert answer.code == (SUCCESS if allowed else OUT_OF_MEMORY)
        assert not allowed or answer.detail == (SUCCESS if inside else OUT_OF_MEMORY)
        if not inside:
            self.unsettled = 0
        if allowed:
            process.context = size if inside else 0

    @precondition(lambda self: any(p.context is not None for p in self.processes))
    @rule(which=choices)
    def destroy_context(self, which: int) -> None:
        process = choose([p for p in self.processes if p.context is not None], which)
        assert process.shell("destroy").code == SUCCESS
        process.context = None

    # ---- all of them ----

    def allows(self, size: int) -> bool:
        return self.held() + size <= self.limit

    def take(self, process: Process, size: int, allowed: bool, how: str = "alloc") -> int:
        answer = process.shell(how, size)
        assert answer.code == (SUCCESS if allowed else OUT_OF_MEMORY)
        if not allowed:
            self.unsettled = 0  # no allocation is refused before the dead processes are settled
        return answer.detail

    @precondition(lambda self: any(p.large or p.small for p in self.processes))
    @rule(which=choices)
    def free(self, which: int) -> None:
        owners = [(p, n) for p in self.processes for n in (*p.large, *p.small)]
        process, number = choose(owners, which)
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
        return choose(self.processes, which)

    def held(self) -> int:
        return sum(process.held() for process in self.processes)

    def teardown(self) -> None:
        for process in getattr(self, "processes", ()):
            process.shell.process.kill()
            process.shell.errors()
        if hasattr(self, "directory"):
            self.directory.cleanup()


def test_the_accounting_follows_the_model(layout: dict[str, Any]) -> None:
    Accounting.layout = layout
    run_state_machine_as_test(Accounting, settings=effort(10, stateful_step_count=60))
