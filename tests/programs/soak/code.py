"""A container whose programs keep using new code, which drivers load at its first use."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path
from typing import Self

import simgpu
from soak.container import HANG_S, Hang
from support.node import Division, Node
from unit.shim.slot import BUILD, MIB

LIMIT, CONTEXT = 200 * MIB, 20 * MIB
FOR_EVER = 1_000_000_000


class LazyContainer:
    """One card, a limit of LIMIT, and the node agent. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.machine = simgpu.create(folder / "machine", cards=1, context_bytes=CONTEXT)
        self.machine.watch(0, LIMIT)
        self._node = Node(folder / "node", self.machine, [Division(memory=LIMIT)])
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._node.__enter__()
        self._env = self._node.container()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._node.__exit__()
        self.machine.close()

    @property
    def over(self) -> int:
        """Bytes by which the processes ever exceeded the limit."""
        return self.machine.over(0)[0]

    def start(self, seed: int, uses: int = FOR_EVER, *how: str) -> None:
        """Start unit/shim/programs/lazy.c."""
        command = [str(BUILD / "tests" / "lazy"), str(seed), str(uses), *how]
        process = subprocess.Popen(
            command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin
        self._running.append(process)
        process.stdin.write("\n")
        process.stdin.flush()

    def finish(self) -> list[int]:
        """Wait until all have used their functions. Returns how often each was refused one."""
        said = [process.communicate(timeout=4 * HANG_S)[0] for process in self._running]
        assert [process.returncode for process in self._running] == [0] * len(said)
        self._running.clear()
        return [int(refused) for refused in said]

    def work(self, seed: int, kills: int, processes: int = 3) -> None:
        """Keep several programs running, one of which is killed now and then, `kills` in total."""
        chance = random.Random(seed)
        for _ in range(kills):
            while len(self._running) < processes:
                how = chance.choice([(), ("hide",)])
                self.start(chance.randrange(1, 1000), FOR_EVER, *how)
            time.sleep(chance.uniform(0, 0.5))
            self._kill(chance.choice(self._running))

    def _kill(self, process: subprocess.Popen[str]) -> None:
        ended = process.poll()
        process.kill()
        process.communicate()
        self._running.remove(process)
        if ended is not None:
            raise Hang(f"{process.args!r} ended with {ended}")
