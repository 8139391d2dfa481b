"""One container on one card, worked hard; the card's own account says whether the limit held."""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import simgpu
from unit.shim.shell import OUT_OF_MEMORY, SUCCESS, Shell
from unit.shim.slot import BUILD, MIB, Card, Slot, load_layout

LIMIT = 1024 * MIB
CONTEXT = 20 * MIB
PAGE = 2 * MIB
COMPUTE_HARD, SHARE = 1, 50
KINDS = ("us_20", "us_200", "ms_5", "mixed", "graph", "narrow")
# What shim/tests/soak.c calls them.
WAYS = {
    "plain": 0,
    "pitch": 1,
    "managed": 2,
    "async": 3,
    "mapped": 12,
    "handles": 13,
    "mipmaps": 15,
    "arrays": 16,
    "contexts": 19,
    "pools": 20,
    "graphs": 21,
    "graphs left": 22,
    "hoards": 23,
    "small arrays": 24,
    "modules": 25,
}
HANG_S = 30.0
"""Nothing may stand still for longer: the machine may be busy, so it is far above what is usual."""


class Hang(RuntimeError):
    """Something stood still; the message says where."""


@dataclass(frozen=True)
class Truth:
    """After everybody but an idle process has died."""

    over: int
    """Bytes by which living processes held more than the limit, since this was last asked."""
    lost: int
    """Bytes that the shim still counts and the card does not."""
    took_s: float
    """Until the whole limit could be had again."""


class Container:
    """Use it as a context manager. `survivor` lives all the time and saw everybody die."""

    def __init__(self, folder: Path) -> None:
        self.machine = simgpu.create(folder / "machine", cards=1, context_bytes=CONTEXT)
        self.slot = Slot(folder / "slot", load_layout())
        self._permit(LIMIT)
        self.machine.watch(0, LIMIT)
        self._count = folder / "count"
        self._count.write_bytes(bytes(8))
        self.env = {
            "PATH": os.environ["PATH"],
            "CUDA_MODULE_LOADING": "EAGER",  # what is loaded later, the limit does not hold
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            "SOAK_COUNT": str(self._count),
            **simgpu.environment(self.machine.directory),
        }

    def __enter__(self) -> Self:
        self.survivor = Shell(self.env).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.survivor.__exit__(kind, error, trace)
        self.machine.close()

    @property
    def operations(self) -> int:
        """How many were done so far, by whomever."""
        return int.from_bytes(self._count.read_bytes(), "little")

    def _permit(self, limit: int) -> None:
        card = Card(self.machine.cards[0].uuid, limit, context_bytes=CONTEXT)
        card.compute_mode, card.core_share = COMPUTE_HARD, SHARE * 100
        self.slot.set_limits(card)

    # ---- work ----

    def work(self, seed: int, seconds: float, processes: int = 3, way: int | None = None) -> int:
        """Random work in several processes, one of which is killed every moment or so; the limit
        goes down at times, also below what is in use, and comes back. Returns how many were
        killed."""
        chance, kills = random.Random(seed), 0
        ways = [] if way is None else [str(way)]
        end = time.monotonic() + seconds
        with self._soaks(chance, processes, ways) as soaks:
            while time.monotonic() < end:
                self._let_work(chance.uniform(0.01, 0.1))
                victim = chance.randrange(processes)
                soaks[victim].kill()
                self._reap(soaks[victim])
                self._permit(chance.choice((LIMIT, LIMIT, LIMIT // 2)))
                soaks[victim] = self._start(chance, ways)
                kills += 1
            self._permit(LIMIT)
        return kills

    def kill(self, seed: int, kills: int, at_once: int = 6) -> None:
        """So many short-lived workers, each killed at some moment of its life, beside one that
        lives on."""
        with self._soaks(random.Random(seed), 1, []) as (witness,):
            self._let_work(0)  # else the others might leave it no room for a context
            self._kill(seed, kills, at_once)
            self._let_work(0)
            if witness.poll() is not None:
                raise RuntimeError(f"the one that should live on {_said(witness)}")

    def _kill(self, seed: int, kills: int, at_once: int) -> None:
        command = [str(BUILD / "tests" / "soak"), "kill", str(seed), str(kills), str(at_once)]
        with subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE) as killer:
            try:
                self._reap(killer, HANG_S + kills * 0.1)
            finally:
                killer.kill()
            if killer.returncode:
                raise RuntimeError(f"{' '.join(command)}: {_said(killer)}")

    def launch(self, seed: int, kills: int) -> float:
        """Processes that keep the card busy, each killed at some moment, beside one that lives on.
        Returns what share of the card that one has in the end, alone, in percent."""
        chance = random.Random(seed)
        loads = [self._load("us_200"), *(self._load(chance.choice(KINDS)) for _ in range(3))]
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0, 0.02))
                victim = chance.randrange(1, len(loads))
                loads[victim].kill()
                self._reap(loads[victim])
                loads[victim] = self._load(chance.choice(KINDS))
            self._end(loads[1:])
            return self._share_of(loads[0])
        finally:
            self._end(loads)

    def _load(self, kind: str) -> subprocess.Popen[bytes]:
        command = [str(BUILD / "bench" / "load"), kind]
        quiet = subprocess.DEVNULL
        load = subprocess.Popen(command, env=self.env, stdin=subprocess.PIPE, stdout=quiet)
        assert load.stdin
        load.stdin.write(b"\n")
        load.stdin.close()
        return load

    def _share_of(self, load: subprocess.Popen[bytes]) -> float:
        """In a second, after one in which what the others left is settled."""
        time.sleep(1)
        recording = self.machine.record(0, seconds=2)
        time.sleep(1)
        work = recording.close()[load.pid]
        return sum(work) / len(work) / 10_000

    def _end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            self._reap(process)

    def _start(self, chance: random.Random, ways: list[str]) -> subprocess.Popen[bytes]:
        threads = str(chance.choice((1, 2, 4)))
        command = [str(BUILD / "tests" / "soak"), str(chance.getrandbits(40)), "100000000", threads]
        return subprocess.Popen([*command, *ways], env=self.env, stderr=subprocess.PIPE)

    @contextmanager
    def _soaks(
        self, chance: random.Random, processes: int, ways: list[str]
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        soaks = [self._start(chance, ways) for _ in range(processes)]
        try:
            yield soaks
        finally:
            self._end(soaks)

    def _let_work(self, seconds: float) -> None:
        """Sleep, and then until somebody did something. Raises Hang."""
        before, until = self.operations, time.monotonic() + HANG_S
        time.sleep(seconds)
        while self.operations == before:
            if time.monotonic() > until:
                raise Hang(f"nobody did anything for {HANG_S:.0f} s")
            time.sleep(0.01)

    @staticmethod
    def _reap(process: subprocess.Popen[bytes], timeout: float = HANG_S) -> None:
        """Wait for the end of one that was killed. Raises Hang, RuntimeError: it had failed."""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise Hang(f"{process.args!r} did not end in {timeout:.0f} s") from error
        if process.returncode > 0:
            raise RuntimeError(f"{process.args!r}: {_said(process)}")
        if process.stderr:
            process.stderr.close()

    # ---- what is left ----

    def truth(self) -> Truth:
        """To be asked when nobody works: whether limit and account are right, and the whole limit
        can be had, by the survivor and by a new process."""
        began = time.monotonic()
        self._take_all(self.survivor, LIMIT - CONTEXT)
        took = time.monotonic() - began
        with Shell(self.env) as fresh:
            self._take_all(fresh, LIMIT - 2 * CONTEXT)
        self._take_all(self.survivor, LIMIT - CONTEXT)  # whoever is refused settles the dead
        lost = self.slot.used(0) - self.machine.cards[0].used
        over, _ = self.machine.over(0)
        self.machine.watch(0, LIMIT)
        return Truth(over, lost, took)

    @staticmethod
    def _take_all(shell: Shell, bytes_left: int) -> None:
        """All that the limit leaves, not a page more, and back."""
        given = shell("alloc", bytes_left)
        more = shell("alloc", PAGE)
        if (given.code, more.code) != (SUCCESS, OUT_OF_MEMORY):
            raise RuntimeError(f"of {bytes_left} bytes: {given}; a page more: {more}")
        shell("free", given.detail)


def _said(process: subprocess.Popen[bytes]) -> str:
    said = process.stderr.read().decode() if process.stderr else ""
    return f"ended with {process.returncode}: {said.strip()}"
