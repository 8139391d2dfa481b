"""Programs of one container that start at the same moment and take all the memory they can, beside
a neighbour that takes and frees memory, with the node agent as it is deployed."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import simgpu
from support.node import Division, Node
from unit.shim.slot import BUILD, MIB

CONTEXT, CONTEXT_NS = 300 * MIB, 30_000_000
CHURN_MIB = 64
TENANT = str(BUILD / "tests" / "tenant")


class Crowd:
    """One card, and a container with a limit of that many bytes on it. A context manager."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._limit = limit
        self.machine = simgpu.create(
            folder / "machine", cards=1, context_bytes=CONTEXT, context_ns=CONTEXT_NS
        )
        self._node = Node(folder / "node", self.machine, [Division(memory=limit)])
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.machine.close)
            stack.enter_context(self._node)
            stack.callback(self.end)
            neighbour = self._node.container(SIMGPU_UNWATCHED="1")
            process = self._start(neighbour, "churn", str(CHURN_MIB), "1")
            stack.callback(_end, process)
            _hear(process, "up")
            self._env = self._node.container()
            self.machine.watch(0, self._limit)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def over(self) -> int:
        """Bytes by which the container ever exceeded its limit."""
        return self.machine.over(0)[0]

    def start_at_once(self, processes: int, functions: int) -> float:
        """Start that many programs, each of which uses that many functions and then takes all the
        memory it can. Returns the percent of the limit that they hold."""
        started = [self._start(self._env, str(functions)) for _ in range(processes)]
        self._running += started
        self._let(started, "up")
        self._let(started, "took")
        return self._held

    def kill_one(self) -> None:
        """Kill the first of the running processes."""
        _end(self._running.pop(0))

    def take_all(self) -> float:
        """Let the running processes free what they took and take all they can again. Returns the
        same as start_at_once."""
        self._let(self._running, "freed")
        self._let(self._running, "took")
        return self._held

    def end(self) -> None:
        """End all processes."""
        while self._running:
            self.kill_one()

    @property
    def _held(self) -> float:
        pids = {each.pid for each in self._running}
        on_card = (one.memory for one in self.machine.cards[0].processes if one.pid in pids)
        return 100 * sum(on_card) / self._limit

    @staticmethod
    def _let(processes: list[subprocess.Popen[str]], word: str) -> None:
        """Let all processes do their next step at once, and wait until each has reported it by
        `word`."""
        for each in processes:
            _tell(each)
        for each in processes:
            _hear(each, word)

    @staticmethod
    def _start(env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
        """Start soak/tenant.c."""
        pipe = subprocess.PIPE
        return subprocess.Popen([TENANT, *arguments], env=env, stdin=pipe, stdout=pipe, text=True)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout
    said = process.stdout.readline()
    if not said.startswith(f"{word} "):
        raise RuntimeError(f"{process.args!r} said {said!r} in place of {word}: {process.poll()}")


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipes and waits for it
        process.kill()
