"""One container under load on simulated cards. The cards' own account shows whether the limits
held."""

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import simgpu
from mizar_nodeagent.regions import limits_file, usage_snapshot
from support.node import Division, Node
from support.waiting import wait_for
from unit.shim.shell import OUT_OF_MEMORY, SUCCESS, Shell
from unit.shim.slot import BUILD, MIB

LIMITS = (1024 * MIB, 640 * MIB)
"""Memory limit of each card."""
CONTEXT = 20 * MIB
PAGE = 2 * MIB
SHARE = 50
CORE_SCALING = "8"  # for half of a card: it is carved in sixteen
CHURN_MIB = 64
NEAR, LOOK_S = 5.0, 0.25
"""Points by which a share may be off, in a window of LOOK_S seconds. A machine that is busy with
other things leaves the card idle at times."""
PAUSE_MAX_S = 5.0
KINDS = ("us_20", "us_200", "ms_5", "mixed", "graph", "narrow")
# The names that unit/shim/programs/soak.c has for them.
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
    "exported": 25,
    "retained": 26,
    "of other processes": 27,
    "multicast objects": 28,
    "sparse arrays": 29,
    "external memory": 30,
    "of old": 31,
    "arrays of old": 32,
    "contexts of old": 33,
    "modules": 34,
}
USABLE = 98
"""Percent of a limit that must be available."""
LATE_S = 0.25
"""A program that is refused memory waits for the node agent for a second at most. If the agent was
without a processor for longer than this meanwhile, what the program got says nothing."""
HANG_S = 30.0
"""Without progress for longer, something hangs. Generous, since the machine may be busy."""


class Hang(RuntimeError):
    """Something made no progress; the message says what."""


THREADS_MAX, BOARD_BYTES = 8, 4096
"""At least the sizes that unit/shim/programs/soak.c has."""


@dataclass(frozen=True)
class Worker:
    """A process that works, and the file in which each of its threads counts its operations."""

    process: subprocess.Popen[bytes]
    counts: Path
    threads: int

    def operations(self) -> list[int]:
        """The number of operations of each thread."""
        return [int(each) for each in memoryview(self.counts.read_bytes()).cast("Q")]


@dataclass(frozen=True)
class Truth:
    """The state after all processes but an idle one have died."""

    over: int
    """Bytes by which processes held more than the limit since the last call. A dying process counts
    until the kernel has released its slot."""
    lost: int
    """Bytes that the shim still counts and the card does not, ..."""
    uncounted: int
    """... and bytes on the card that neither the shim counts nor the node agent reports."""
    usable: float
    """Percent of a limit that a program could get before it was refused more, at its first try."""
    late_s: float
    """Seconds for which the node agent waited for a processor during that try."""
    took_s: float
    """Seconds until USABLE percent of the limit were available again, also to a new process."""
    usable_again: float
    """The least percent of a limit that programs could get after that."""


class Container:
    """A container whose limits are set by the node agent, as it is deployed; a context manager.

    `survivor` is a process that lives throughout. On the first card another container, the
    `neighbour`, takes and frees memory all the time."""

    def __init__(self, folder: Path, neighbour: bool = True) -> None:
        self.machine = simgpu.create(folder / "machine", cards=len(LIMITS), context_bytes=CONTEXT)
        self._node = Node(folder / "node", self.machine, _divisions())
        self._folder, self._serial = folder, count()
        self._with_neighbour = neighbour
        self._neighbour: int | None = None
        self._workers: list[Worker] = []
        self._done = self._over = 0  # operations of ended processes; bytes over the limit
        self.watch()
        self._board = folder / "board"
        self._board.write_bytes(bytes(BOARD_BYTES))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.machine.close)
            stack.enter_context(self._node)
            self.env = self._node.container(SOAK_BOARD=str(self._board))
            self._slot = Path(self.env["MIZAR_DIR"])
            if self._with_neighbour:
                stack.callback(self._kill_all, [self._start_neighbour()])
            self.survivor = stack.enter_context(Shell(self.env))
            self._stack = stack.pop_all()
        return self

    def _start_neighbour(self) -> subprocess.Popen[bytes]:
        """Start soak/tenant.c."""
        command = [str(BUILD / "tests" / "tenant"), "churn", str(CHURN_MIB), "1"]
        env = self._node.container(SIMGPU_UNWATCHED="1")
        started = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        assert started.stdout
        with started.stdout as said:
            said.readline()
        self._neighbour = started.pid
        return started

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def operations(self) -> int:
        """The number of operations so far, of all processes."""
        return self._done + sum(sum(worker.operations()) for worker in self._workers)

    def _permit(self, part: float = 1) -> None:
        """Set the limits to that part of each card's limit."""
        self._node.permit(_divisions(part))

    def watch(self, part: float = 1) -> None:
        """From now on, record whether more than that part of each limit is held."""
        for card, limit in enumerate(LIMITS):
            self._over = max(self._over, self.machine.over(card)[0])
            self.machine.watch(card, int(limit * part))

    # ---- work ----

    def work(
        self,
        seed: int,
        seconds: float,
        processes: int = 3,
        way: int | None = None,
        operations: int = 0,
    ) -> int:
        """Random work in several processes, one of which is killed every few hundredths of a
        second. The limit is lowered at times, even below the memory in use, and raised again. Lasts
        until there were that many operations. Returns the number of killed processes."""
        chance, kills = random.Random(seed), 0
        ways = [] if way is None else [str(way)]
        end, enough = time.monotonic() + seconds, self.operations + operations
        with self._soaks(chance, processes, ways):
            while time.monotonic() < end or self.operations < enough:
                self._let_work(chance.uniform(0.01, 0.1))
                self._end([chance.choice(self._workers)])
                self._permit(chance.choice((1, 1, 0.5)))
                self._start_soak(chance, ways)
                kills += 1
            self._permit()
        return kills

    def lower(self, seed: int, seconds: float, processes: int = 3) -> int:
        """Halve the limit while all processes work. Once all have noticed, no process may take
        memory while the container is above the limit. Returns how often this was done, at least
        once."""
        chance, times = random.Random(seed), 0
        end = time.monotonic() + seconds
        with self._soaks(chance, processes, []):
            while not times or time.monotonic() < end:
                self._let_work(chance.uniform(0.05, 0.2))
                self._permit(0.5)
                # While one thread reads the new limits, others continue with the old ones. What
                # they have begun by then ends within their next two operations.
                self._let_everybody_work()
                self._let_everybody_work()
                self.watch(0.5)
                self._let_work(chance.uniform(0.05, 0.2))
                self.watch()
                self._permit()
                times += 1
        return times

    def kill(self, seed: int, kills: int, at_once: int = 6) -> None:
        """Run that many short-lived workers, each killed at a random moment, beside one that lives
        on."""
        with self._soaks(random.Random(seed), 1, []) as (witness,):
            self._let_work(0)  # otherwise the others might leave it no room for a context
            killer = self._start("kill", str(seed), str(kills), str(at_once))
            self._reap(killer.process, HANG_S + kills * 0.1)
            self._end([killer])
            self._let_work(0)
            if witness.process.poll() is not None:
                raise RuntimeError(f"the one that should live on {_said(witness.process)}")

    def launch(self, seed: int, kills: int) -> None:
        """Run processes that keep the card busy, each killed at a random moment, beside one that
        lives on. In the end, that one must have the container's share alone. Raises Hang if it does
        not get it."""
        chance = random.Random(seed)
        loads = [self._load("us_200"), *(self._load(chance.choice(KINDS)) for _ in range(3))]
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0, 0.02))
                victim = chance.randrange(1, len(loads))
                loads[victim].kill()
                self._reap(loads[victim])
                loads[victim] = self._load(chance.choice(KINDS))
            self._kill_all(loads[1:])
            self._await_share_of(loads[0])
        finally:
            self._kill_all(loads)

    def _load(self, kind: str) -> subprocess.Popen[bytes]:
        command = [str(BUILD / "bench" / "load"), kind]
        quiet = subprocess.DEVNULL
        load = subprocess.Popen(command, env=self.env, stdin=subprocess.PIPE, stdout=quiet)
        assert load.stdin
        load.stdin.write(b"\n")
        load.stdin.close()
        return load

    def _await_share_of(self, load: subprocess.Popen[bytes]) -> None:
        """Wait until the process has the share, after what the dead processes left was settled."""
        until = time.monotonic() + HANG_S
        now, works = self.machine.work(0)
        share = 0.0
        while abs(share - SHARE) > NEAR:
            if time.monotonic() > until:
                raise Hang(f"a process of a share of {SHARE} % has {share:.1f} % of the card")
            time.sleep(LOOK_S)
            (before, had), (now, works) = (now, works), self.machine.work(0)
            # The process may not have begun yet.
            worked = works.get(load.pid, 0) - had.get(load.pid, 0)
            share = 100 * worked / (now - before)

    def _kill_all(self, processes: list[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            self._reap(process)

    def _end(self, workers: list[Worker]) -> None:
        self._kill_all([worker.process for worker in workers])
        for worker in workers:
            self._workers.remove(worker)
            self._done += sum(worker.operations())
            worker.counts.unlink()

    def _start(self, *arguments: str, threads: int = 0) -> Worker:
        """Start unit/shim/programs/soak.c with these arguments."""
        counts = self._folder / f"counts-{next(self._serial)}"
        counts.write_bytes(bytes(8 * THREADS_MAX))
        command = [str(BUILD / "tests" / "soak"), *arguments]
        env = self.env | {"SOAK_COUNT": str(counts)}
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        self._workers.append(Worker(process, counts, threads))
        return self._workers[-1]

    def _start_soak(self, chance: random.Random, ways: list[str]) -> Worker:
        threads = chance.choice((1, 2, 4))
        seed = str(chance.getrandbits(40))
        return self._start(seed, "100000000", str(threads), *ways, threads=threads)

    @contextmanager
    def _soaks(
        self, chance: random.Random, processes: int, ways: list[str]
    ) -> Iterator[list[Worker]]:
        soaks = [self._start_soak(chance, ways) for _ in range(processes)]
        try:
            yield soaks
        finally:
            self._end(list(self._workers))

    def _let_work(self, seconds: float) -> None:
        """Sleep, and then wait until a process has done an operation. Raises Hang."""
        before, until = self.operations, time.monotonic() + HANG_S
        time.sleep(seconds)
        while self.operations == before:
            if time.monotonic() > until:
                raise Hang(f"no process did anything for {HANG_S:.0f} s")
            time.sleep(0.01)

    def _let_everybody_work(self) -> None:
        """Wait until each thread has begun and ended an operation. Raises Hang."""
        before = [(worker, worker.operations()) for worker in self._workers]
        until = time.monotonic() + HANG_S
        while not all(_has_done_two(*each) for each in before):
            if time.monotonic() > until:
                raise Hang(f"some thread did nothing for {HANG_S:.0f} s")
            time.sleep(0.005)

    @staticmethod
    def _reap(process: subprocess.Popen[bytes], timeout: float = HANG_S) -> None:
        """Wait for the end of a killed process. Raises Hang, or RuntimeError if it failed
        before."""
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
        """Check the limit and the account, and that both the survivor and a new process can get the
        whole limit. To be called when no process works."""
        began, waited = time.monotonic(), waited_s(self._node.pid)
        first = self._usable(self.survivor)
        late = waited_s(self._node.pid) - waited
        again = [self._wait_until_usable(self.survivor, first)]
        with Shell(self.env) as fresh:
            again.append(self._wait_until_usable(fresh, self._usable(fresh)))
        took = time.monotonic() - began
        again.append(self._usable(self.survivor))  # a refused process settles the dead ones
        lost, uncounted = self._account()
        self.watch()
        over, self._over = self._over, 0
        return Truth(over, lost, uncounted, first, late, took, min(again))

    def _wait_until_usable(self, shell: Shell, last: float) -> float:
        """Wait until a process can get USABLE percent, of which it got `last` at its last try. The
        agent assumes the worst for a process that is never idle for as long as several audits take,
        which ask a slow NVML. Returns percent. Raises Hang."""
        until, pause = time.monotonic() + HANG_S, LOOK_S
        while last < USABLE:
            if time.monotonic() > until:
                raise Hang(f"{last:.1f} % of a limit can be had: {self.books()}")
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
            last = self._usable(shell)
        return last

    def _usable(self, shell: Shell) -> float:
        """Percent of a card's limit that the container holds when it can take no more; the least of
        all cards. 0 if a card has no memory for the process's context."""
        return min(self._take_all(shell, card) for card in range(len(LIMITS)))

    def _take_all(self, shell: Shell, card: int) -> float:
        """Take memory down to the last page, and free it."""
        used = shell("use", card)
        if used.code == OUT_OF_MEMORY:
            return 0.0
        if used.code != SUCCESS:
            raise RuntimeError(f"card {card} cannot be used: {used}")
        given, size = [], LIMITS[card]
        while size >= PAGE:
            taken = shell("alloc", size)
            if taken.code == SUCCESS:
                given.append(taken.detail)
            else:
                size //= 2
        usable = 100 * self._held(card) / LIMITS[card]
        for one in given:
            shell("free", one)
        return usable

    def _held(self, card: int) -> int:
        """Bytes that the card holds for the container's processes. Dead processes have no PID any
        more; a harsh card keeps their memory for a while."""
        processes = self.machine.cards[card].processes
        return sum(one.memory for one in processes if one.pid not in (0, self._neighbour))

    def forget_the_dead(self) -> None:
        """Wait until the agent reports no more of the dead processes' memory. Raises
        TimeoutError."""
        for card in range(len(LIMITS)):
            self.survivor("use", card)
            self.survivor("alloc", LIMITS[card])  # a refused process settles the dead ones

        def told() -> bool:
            region = limits_file.read(self._slot / "limits")
            return any(region.live[card].unaccounted_bytes for card in range(len(LIMITS)))

        wait_for("the agent to look", lambda: not told())

    def books(self) -> list[str]:
        """The figures of account, agent and card, as text for people."""
        region = limits_file.read(self._slot / "limits")
        use = usage_snapshot.take(self._slot / "usage", len(LIMITS))
        return [
            f"card {card}: {use.holdings[card]}, {use.cards[card].code_uses} uses; told "
            f"{region.live[card].unaccounted_bytes}, {region.live[card].code_seen} seen; on the "
            f"card {self._held(card)} of {self.machine.cards[card].processes}"
            for card in range(len(LIMITS))
        ]

    def _account(self) -> tuple[int, int]:
        """The most lost and the most uncounted bytes of any card, after the dead were settled."""
        region, lost, uncounted = limits_file.read(self._slot / "limits"), [], []
        for card, use in enumerate(usage_snapshot.card_usage(self._slot / "usage", len(LIMITS))):
            beyond = use.bytes - self._held(card)
            lost.append(max(0, beyond))
            uncounted.append(max(0, -beyond - region.live[card].unaccounted_bytes))
        return max(lost), max(uncounted)


def waited_s(pid: int) -> float:
    """Seconds for which the threads of a process had work and no processor, until now."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[1]) for one in tasks) / 1e9


def _divisions(part: float = 1) -> list[Division]:
    """How cards are divided whose devices have that part of each card's limit."""
    return [
        Division(memory=int(limit * part), compute="Hard", core_scaling=CORE_SCALING)
        for limit in LIMITS
    ]


def _has_done_two(worker: Worker, before: list[int]) -> bool:
    """Whether each of its threads has ended two operations since `before` was counted, so that the
    second one began after that."""
    done = zip(worker.operations(), before, strict=True)
    return all(now >= then + 2 for now, then in list(done)[: worker.threads])


def _said(process: subprocess.Popen[bytes]) -> str:
    said = process.stderr.read().decode() if process.stderr else ""
    return f"ended with {process.returncode}: {said.strip()}"
