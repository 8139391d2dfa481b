"""Runs containers side by side on simulated cards and records which of them each card worked for,
and when."""

import ctypes
import math
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

import simgpu
from bench.compute.windows import as_long_as_all
from bench.figures import ROOT
from bench.precedence import give_precedence
from mizar_core.carve import CardLimit
from mizar_core.models import ComputeMode
from mizar_nodeagent.regions import limits_file, usage_file
from mizar_nodeagent.time_slicing.time_slicer import Container, TimeSlicer
from simgpu.machine import HARSH, Busy

BUILD = ROOT / "build" / "shim"
MIB = 1 << 20
CONTEXT = 16 * MIB
MEMORY = 1024 * MIB
SM_COUNTS = (108, 188, 132, 8)  # of the cards, in turn
BUS = 500  # bytes per us; slow, so that copies take long on the card and not on this machine
LOOK_S = 0.05
PR_SET_PDEATHSIG = 1
PROGRAMS = {name: ("programs", name) for name in ("short_lived", "workers", "functions")}
"""Loads of bench/workloads/programs.c; all others are of load.c."""


@dataclass(frozen=True)
class Tenant:
    """A container.

    `share`: percent of the card. `loads`: what its processes do, one for each (PROGRAMS, or the
    arguments of bench/workloads/load.c). Without a mode it runs without the shim. `changes`: its
    share after so many seconds. `wakes`: when it begins to work (seconds). `processor`: the only
    processor that it may use."""

    loads: tuple[str, ...]
    share: float = 100.0
    mode: ComputeMode | None = "Hard"
    changes: tuple[tuple[float, float], ...] = ()
    wakes: float = 0.0
    priority: int = 0
    processor: int | None = None


@dataclass(frozen=True)
class Case:
    """The tenants of one card."""

    name: str
    tenants: tuple[Tenant, ...]
    harsh: bool = False  # the card has simgpu's profile `harsh`


Work = list[int]
"""ns of the card's time in each millisecond since the start of the tenants' work."""


@dataclass(frozen=True)
class Recorded:
    """The work of a case's card for each tenant (lists of the same length), and the part of the
    time in which it ran kernels and copies. A context switch counts as work of the tenant after it,
    but not as a kernel."""

    works: list[Work]
    throughput_percent: float


class _Room:
    """The slot and the processes of a tenant."""

    def __init__(self, folder: Path, tenant: Tenant, uuid: str) -> None:
        self.tenant, self._uuid = tenant, uuid
        due = [(at, partial(self.permit, share)) for at, share in tenant.changes]
        self._due: list[tuple[float, Callable[[], None]]]
        self._due = sorted([*due, (tenant.wakes, self._begin)], key=itemgetter(0))
        self.container = Container(folder.name, folder / "limits", folder / "usage")
        folder.mkdir()
        limits_file.create_empty(self.container.limits)
        usage_file.create(self.container.usage)
        self.permit(tenant.share)
        self.processes: list[subprocess.Popen[bytes]] = []

    def permit(self, share: float) -> None:
        """Write the limits as the node agent does, also while the container runs."""
        identity = limits_file.ContainerIdentity(
            "bench", self.container.name, "", "main", self.container.name
        )
        mode = self.tenant.mode or "None"
        priority = self.tenant.priority
        limit = CardLimit(self._uuid, MEMORY, round(share * 100), "Hard", mode, priority)
        limits_file.write(self.container.limits, identity, [limit], {})

    def start(self, env: dict[str, str]) -> None:
        env = env | {"CUDA_VISIBLE_DEVICES": self._uuid}
        if self.tenant.mode:
            env["LD_PRELOAD"] = str(BUILD / "testing" / "libmizar.so")
            env["MIZAR_DIR"] = str(self.container.limits.parent)
        for load in self.tenant.loads:
            name, *arguments = load.split()
            command = [*PROGRAMS.get(name, ("load", name)), *arguments]
            command[0] = str(BUILD / "bench" / command[0])
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, env=env, stdin=pipe, stdout=pipe, start_new_session=True
            )
            self.processes.append(process)
            give_precedence(process.pid)
            if self.tenant.processor is not None:
                os.sched_setaffinity(process.pid, {self.tenant.processor})

    def wait_until_ready(self) -> None:
        for process in self.processes:
            assert process.stdout
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{process.args!r} did not start: {process.wait()}")

    def _begin(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()

    def act(self, seconds: float) -> float:
        """Start or change the tenant as is due. Returns when the next change is due."""
        while self._due and self._due[0][0] <= seconds:
            self._due.pop(0)[1]()
        return self._due[0][0] if self._due else math.inf

    def check(self) -> None:
        for process in self.processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended: {process.returncode}")

    def end(self) -> None:
        for process in self.processes:
            with process:  # closes its pipes and waits for it
                process.kill()


def run(cases: Sequence[Case], seconds: float) -> list[Recorded]:
    """Runs all cases at the same time, each on a card of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = stack.enter_context(_machine(folder / "machine", cases))
        rooms = _rooms(folder, cases, machine)
        everybody = [room for tenants in rooms for room in tenants]
        for room in everybody:
            stack.callback(room.end)
            room.start(simgpu.environment(machine.directory))
        stack.enter_context(time_slicer([room.container for room in everybody if room.tenant.mode]))
        for room in everybody:
            room.wait_until_ready()
        return _record(machine, rooms, seconds)


@contextmanager
def _machine(folder: Path, cases: Sequence[Case]) -> Iterator[simgpu.Machine]:
    made = simgpu.create(folder, cards=len(cases), context_bytes=CONTEXT, link_bytes_per_us=BUS)
    with made as machine:
        for card, case in enumerate(cases):
            machine.state.set_number(card, "sm_count", SM_COUNTS[card % len(SM_COUNTS)])
            for name, value in HARSH.items() if case.harsh else ():
                machine.state.set_number(card, name, value)
        yield machine


def _rooms(folder: Path, cases: Sequence[Case], machine: simgpu.Machine) -> list[list[_Room]]:
    uuids = [card.uuid for card in machine.cards]
    return [
        [
            _Room(folder / f"slot-{card}-{number}", tenant, uuids[card])
            for number, tenant in enumerate(case.tenants)
        ]
        for card, case in enumerate(cases)
    ]


@contextmanager
def time_slicer(containers: list[Container]) -> Iterator[None]:
    """Runs the time slicer in a process of its own, as on a node. It ends with this process,
    however that ends."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_run_time_slicer, args=(containers, os.getpid()), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _run_time_slicer(containers: list[Container], parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl() was called
        return
    os.setsid()
    give_precedence(os.getpid())
    TimeSlicer(lambda: containers).run()


def _record(machine: simgpu.Machine, rooms: list[list[_Room]], seconds: float) -> list[Recorded]:
    everybody = [room for tenants in rooms for room in tenants]
    recordings = [machine.record(card, seconds + 1) for card in range(len(rooms))]
    before = [machine.busy(card.uuid) for card in machine.cards]
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        due = min(room.act(now) for room in everybody)
        for recording in recordings:
            recording.catch_up()
        time.sleep(max(0, min(due, now + LOOK_S, seconds) + began - time.monotonic()))
    for room in everybody:
        room.check()
    after = [machine.busy(card.uuid) for card in machine.cards]
    works = [recording.close() for recording in recordings]
    together = as_long_as_all(
        [[_work_of(room, works[card]) for room in tenants] for card, tenants in enumerate(rooms)]
    )
    return [Recorded(*each) for each in zip(together, map(throughput, before, after), strict=True)]


def throughput(before: Busy, after: Busy) -> float:
    """Percent of the time between the two samples in which the card ran kernels and copies."""
    return 100 * (after.work_ns - before.work_ns) / (after.now_ns - before.now_ns)


def _work_of(room: _Room, works: dict[int, Work]) -> Work:
    """The work of all processes of the container together."""
    return [sum(each) for each in zip(*(works[one.pid] for one in room.processes), strict=True)]
