"""Runs containers side by side on simulated cards and records which of them each card worked for,
and when. The node agent runs beside them in one process, as on a node: it starts the containers,
audits them and slices their time."""

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import lcm
from operator import itemgetter
from pathlib import Path

import simgpu
from bench.compute.windows import as_long_as_all
from bench.figures import ROOT
from mizar_core.models import ComputeMode
from mizar_nodeagent.regions import limits_file
from simgpu import environment
from simgpu.machine import HARSH, Busy
from support.node import Division, Node
from support.waiting import wait_for

BUILD = ROOT / "build" / "shim"
CONTEXT = 16 << 20
SM_COUNTS = (108, 188, 132, 8)  # of the cards, in turn
BUS = 500  # bytes per us; slow, so that copies take long on the card and not on this machine
LOOK_S = 0.05
PROGRAMS = {name: ("programs", name) for name in ("short_lived", "workers", "functions")}
"""Loads of bench/workloads/programs.c; all others are of load.c."""


@dataclass(frozen=True)
class Tenant:
    """A container.

    `share`: percent of the card; 0 for one that borrows the card. `loads`: what its processes do,
    one for each (PROGRAMS, or the arguments of bench/workloads/load.c). Without a mode it runs
    without the shim. `changes`: its share after so many seconds. `wakes`: when it begins to work
    (seconds). `processor`: the only processor that it may use."""

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


Permit = Callable[[Division], None]
"""Divides a card so from now on."""
Work = list[int]
"""ns of the card's time in each millisecond since the start of the tenants' work."""


@dataclass(frozen=True)
class Recorded:
    """The work of a case's card for each tenant (lists of the same length), and the part of the
    time in which it ran kernels and copies. A context switch counts as work of the tenant after it,
    but not as a kernel."""

    works: list[Work]
    throughput_percent: float


def division(case: Case) -> Division | None:
    """How the case's card is divided: into the fewest devices of which each tenant with a share has
    a whole number. All of them have one mode, as on a card that a shadow pod holds. None if no
    tenant has the shim."""
    owners = [one for one in case.tenants if one.mode and one.share]
    if not owners:
        return None
    (mode,) = {one.mode for one in owners}
    return Division(lcm(*(_part(one.share).denominator for one in owners)), compute=mode or "None")


def _part(percent: float) -> Fraction:
    return Fraction(percent) / 100


class _Room:
    """The container and the processes of a tenant. `permit`: divides its card differently."""

    def __init__(
        self, tenant: Tenant, uuid: str, node: Node, shared: Division | None, permit: Permit
    ) -> None:
        self.tenant, self._uuid = tenant, uuid
        self._node, self._shared, self._permit = node, shared, permit
        due = [(at, partial(self._change, share)) for at, share in tenant.changes]
        self._due: list[tuple[float, Callable[[], None]]]
        self._due = sorted([*due, (tenant.wakes, self._begin)], key=itemgetter(0))
        self.processes: list[subprocess.Popen[bytes]] = []

    def _environment(self) -> dict[str, str]:
        """Of the processes: those of a container that starts now, if the tenant has the shim."""
        if self._shared is None:
            return {"PATH": os.environ["PATH"], **environment(self._node.machine.directory)}
        if self.borrows:
            return self._node.borrower(self._uuid)
        devices = {self._uuid: int(_part(self.tenant.share) * self._shared.devices)}
        return self._node.container(devices, self.tenant.priority)

    def _change(self, share: float) -> None:
        """Give the tenant, which is alone on its card, another share: its devices become smaller or
        larger."""
        assert self._shared
        scaling = float(_part(share) / _part(self.tenant.share))
        self._permit(replace(self._shared, core_scaling=f"{scaling:.4f}"))

    def start(self) -> None:
        env = self._environment() | {"CUDA_VISIBLE_DEVICES": self._uuid}
        self._slot = env.get("MIZAR_DIR", "")
        for load in self.tenant.loads:
            name, *arguments = load.split()
            command = [*PROGRAMS.get(name, ("load", name)), *arguments]
            command[0] = str(BUILD / "bench" / command[0])
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe)
            self.processes.append(process)
            if self.tenant.processor is not None:
                os.sched_setaffinity(process.pid, {self.tenant.processor})

    @property
    def borrows(self) -> bool:
        """Whether it borrows the card."""
        return self._shared is not None and not self.tenant.share

    def wait_until_seen(self) -> None:
        """Wait until the time slicer has seen what the processes have done so far: until it has
        begun and ended a round."""
        limits = Path(self._slot) / "limits"

        def beat() -> int:
            return int(limits_file.read(limits).live[0].beat)

        seen = beat()
        wait_for("the time slicer", lambda: beat() >= seen + 2, interval=0.01)

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
    """Runs all cases at the same time, each on a card of its own, beside the node agent."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = stack.enter_context(_machine(folder / "machine", cases))
        divisions = [division(case) for case in cases]
        node = stack.enter_context(Node(folder / "node", machine, divisions))
        rooms = _rooms(cases, divisions, node)
        everybody = [room for tenants in rooms for room in tenants]
        for borrows in (False, True):
            now = [room for room in everybody if room.borrows == borrows]
            for room in now:
                stack.callback(room.end)
                room.start()
            for room in now:
                room.wait_until_ready()
            if not borrows:
                _wait_until_asleep(rooms)
        return _record(machine, rooms, seconds)


def _wait_until_asleep(rooms: Sequence[Sequence[_Room]]) -> None:
    """Wait until the owners of cards that will be lent are seen to do nothing: an owner that takes
    memory, as in its start, pauses borrowers for two seconds."""
    for tenants in rooms:
        if any(room.borrows for room in tenants):
            for room in tenants:
                if not room.borrows:
                    room.wait_until_seen()


@contextmanager
def _machine(folder: Path, cases: Sequence[Case]) -> Iterator[simgpu.Machine]:
    made = simgpu.create(folder, cards=len(cases), context_bytes=CONTEXT, link_bytes_per_us=BUS)
    with made as machine:
        for card, case in enumerate(cases):
            machine.state.set_number(card, "sm_count", SM_COUNTS[card % len(SM_COUNTS)])
            for name, value in HARSH.items() if case.harsh else ():
                machine.state.set_number(card, name, value)
        yield machine


def _rooms(
    cases: Sequence[Case], divisions: Sequence[Division | None], node: Node
) -> list[list[_Room]]:
    def permit(card: int, changed: Division) -> None:
        node.permit([changed if at == card else None for at in range(len(cases))])

    uuids = [card.uuid for card in node.machine.cards]
    return [
        [
            _Room(tenant, uuids[card], node, divisions[card], partial(permit, card))
            for tenant in case.tenants
        ]
        for card, case in enumerate(cases)
    ]


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
