"""A card is lent and taken back between programs that run under the real shim, on a simulated
card."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from bench.figures import ROOT
from mizar_core.models import ComputeMode, Isolation, Spot
from mizar_core.names import SPOT_RESOURCE
from mizar_core.quantities import parse_bytes
from mizar_nodeagent.cards import ProcessLoad
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.kubelet import podresources
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.spot import assembly
from mizar_nodeagent.spot.loan import CardState
from support.waiting import PATIENCE_S, until, wait_for
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CONTAINER_ID, RESOURCE, SHADOW, UID, card, shadow_object
from unit.nodeagent.spot_world import (
    BORROWER,
    LOW_POWER,
    OWNER,
    RULES,
    SpotWorld,
    lend_sooner,
    pod_object,
    show,
)
from unit.nodeagent.test_assembly import SHADOW_POD, Cards, limits_of

BUILD = ROOT / "build" / "shim"
SHARER = KubePod("team-a", "share", "uid-share")
ROUNDS = 3
RESERVE_MIB = parse_bytes(Spot().reserve) >> 20


class SimulatedCards(Cards):
    """What NVML would report about the cards of a simulated machine."""

    def __init__(self, machine: simgpu.Machine) -> None:
        super().__init__()
        self._machine = machine
        self._worked: dict[int, int] = {}
        (one,) = machine.cards
        self.present = {one.uuid: replace(card(), uuid=one.uuid)}

    async def free_bytes(self, uuid: str) -> int:
        one = self._machine.card(uuid)
        return one.total - one.used

    async def loads(self, uuids: object) -> dict[str, dict[int, ProcessLoad]]:
        self.asked += 1
        (one,) = self._machine.cards
        found = {}
        for process in one.processes:
            before = self._worked.get(process.pid, process.work_ns)
            self._worked[process.pid] = process.work_ns
            percent = 100 if process.work_ns > before else 0
            found[process.pid] = ProcessLoad(percent, process.memory)
        return {one.uuid: found}


def under_shim(held: Allocated) -> dict[str, str]:
    """The environment of a container's programs."""
    preload = str(BUILD / "testing" / "libmizar.so")
    return {"LD_PRELOAD": preload, "MIZAR_DIR": str(limits_of(held).parent)}


def started(
    machine: simgpu.Machine, command: list[str], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """A program on the machine's card, with pipes."""
    env = {"PATH": os.environ["PATH"], **env, **simgpu.environment(machine.directory)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe)


class Memory:
    """A program that allocates memory of the card, and keeps it."""

    def __init__(self, machine: simgpu.Machine, env: dict[str, str]) -> None:
        self.process = started(machine, [str(BUILD / "tests" / "sleeper")], env)
        assert self.process.stdout and self.process.stdout.readline() == b"up\n"

    def alloc(self, mib: int) -> bool:
        """Whether it got the memory."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"alloc {mib}\n".encode())
        self.process.stdin.flush()
        return self.process.stdout.readline().split()[0] == b"0"

    def take_all(self) -> int:
        """Allocate until no MiB is left. Returns the sum in MiB."""
        taken, mib = 0, 4096
        while mib:
            got = self.alloc(mib)
            taken, mib = taken + got * mib, mib if got else mib // 2
        return taken

    def close(self) -> None:
        with self.process:
            self.process.kill()


class Program:
    """A program under the shim that keeps the card busy once it gets the signal to begin."""

    def __init__(self, machine: simgpu.Machine, held: Allocated) -> None:
        command = [str(BUILD / "bench" / "load"), "us_200"]
        self.process = started(machine, command, under_shim(held))

    def await_ready(self) -> None:
        assert self.process.stdout and self.process.stdout.readline() == b"ready\n"

    def begin(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        with self.process:
            self.process.kill()


class ShimWorld(SpotWorld):
    """One simulated card, held by a shadow pod with one share pod."""

    def __init__(self, folder: Path, machine: simgpu.Machine) -> None:
        super().__init__(folder)
        self.machine = machine
        self.cards = SimulatedCards(machine)
        (one,) = machine.cards
        self.uuid = one.uuid
        self.stack_of_programs = ExitStack()

    @property
    def slots(self) -> Slots:
        found = Slots(self.config.state_dir / "slots", None, "")  # type: ignore[arg-type]
        found.load(0.0)
        return found

    async def share(self, compute: ComputeMode) -> Program:
        """A share pod that agreed to lend, and its program, which sleeps."""
        isolation = Isolation(compute=compute)
        self.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
        self.api.put_pod(shadow_object(isolation=isolation))
        self.kubelet.add_pod(SHADOW_POD, pause=[self.uuid])
        await until(lambda: self.ready() == ("True", "Serving"))
        self.api.put_pod(pod_object(SHARER, RESOURCE, LOW_POWER))
        await self.knows(SHARER)
        await self.kubelet.allocate(SHARER, "main", RESOURCE, 1)
        program = self.run(await self.kubelet.start_container(SHARER, "main", RESOURCE))
        # On a busy machine its start takes so long that the card has become lendable before.
        await self.looked()
        return program

    async def borrow(self) -> tuple[Program, Allocated]:
        """A spot pod with a program at full load."""
        self.api.put_pod(pod_object(BORROWER, SPOT_RESOURCE))
        await self.knows(BORROWER)
        await self.kubelet.allocate(BORROWER, "main", SPOT_RESOURCE, 1)
        held = await self.kubelet.start_container(BORROWER, "main", SPOT_RESOURCE)
        program = self.run(held)
        show(self.proc, program.process.pid, f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n")
        program.begin()
        await until(lambda: self.worked(program) > 20_000_000)
        return program, held

    def let_go(self) -> None:
        """The operator has evicted the borrower."""
        self.kubelet.remove_pod(BORROWER.uid)
        self.api.delete_pod(BORROWER.namespace, BORROWER.name)

    def is_told(self, lent: bool) -> bool:
        """Whether the owner's shim knows that its card is lent, or that it is not."""
        (slot,) = (one for one in self.slots.all() if one.resource == RESOURCE)
        region = limits_file.read(slot.limits)
        return (region.asleep, region.live[0].borrowed) == (lent, lent)

    def run(self, held: Allocated) -> Program:
        program = Program(self.machine, held)
        self.stack_of_programs.callback(program.close)
        program.await_ready()
        return program

    def stopped(self, program: Program) -> bool:
        """Stop a program that works. False where it has a lock of the card, for which every look at
        the card would wait: then it goes on."""
        pid = program.process.pid
        program.process.send_signal(signal.SIGSTOP)
        wait_for("it to stop", lambda: _state(pid) == "T", interval=0.001)
        if not self.machine.is_locked():
            return True
        program.process.send_signal(signal.SIGCONT)
        return False

    def worked(self, program: Program) -> int:
        """ns that the card has worked for the program."""
        (one,) = self.machine.cards
        works = {process.pid: process.work_ns for process in one.processes}
        return works.get(program.process.pid, 0)

    def is_on_card(self, program: Program) -> bool:
        (one,) = self.machine.cards
        return program.process.pid in {process.pid for process in one.processes}


def _state(pid: int) -> str:
    """The process's state, as ps shows it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[simgpu.Machine]:
    if not (BUILD / "testing" / "libmizar.so").exists():
        subprocess.run(["make", "-s", "-C", ROOT / "shim", "-j2", "tests"], check=True)
    with simgpu.create(tmp_path, cards=1, memory_mib=16384) as made:
        yield made


@pytest.fixture
async def world(
    tmp_path_factory: pytest.TempPathFactory,
    machine: simgpu.Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[ShimWorld]:
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    lend_sooner(monkeypatch)
    made = ShimWorld(tmp_path_factory.mktemp("w"), machine)
    made.proc.mkdir()
    monkeypatch.setattr(assembly, "PROC", made.proc)
    made.api.rules = RULES.to_json()
    await made.kubelet.start()
    await made.start_agent()
    try:
        with made.stack_of_programs:
            yield made
    finally:
        await made.stop_agent()
        await made.kubelet.stop()


@pytest.mark.parametrize("compute", ["None", "Hard", "Soft", "Weighted"])
async def test_an_owner_that_wakes_has_its_card_back(
    world: ShimWorld, compute: ComputeMode
) -> None:
    owner = await world.share(compute)
    await world.lendable(world.uuid)
    borrower, held = await world.borrow()
    await until(lambda: world.state(world.uuid) is CardState.LENT and world.is_told(True))
    began = time.monotonic()
    owner.begin()

    def is_halted() -> bool:
        """The time slicer pauses it, and soon after the reclaimer stops it for good."""
        limits = limits_file.read(limits_of(held))
        return bool(limits.live[0].paused) or limits_file.is_stopped(limits, world.uuid)

    await until(is_halted)
    paused = time.monotonic()
    await until(lambda: not world.is_on_card(borrower))
    ended = time.monotonic()
    assert borrower.process.wait() == -signal.SIGKILL
    await until(lambda: world.metric("mizar_spot_reclaim_seconds_count") == 1)
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1
    assert owner.process.poll() is None
    before = world.worked(owner)
    await until(lambda: world.worked(owner) > before)
    world.let_go()
    await until(lambda: world.is_told(False))
    print(f"{compute}: paused {paused - began:.3f} s, free {ended - began:.3f} s after the launch")


async def test_an_owner_without_the_shim_has_the_reserve(world: ShimWorld) -> None:
    """Its borrower has taken all that it may: nothing but the reserve is free."""
    owner = Memory(world.machine, {})
    world.stack_of_programs.callback(owner.close)
    assert owner.alloc(2048)
    world.add_owner(OWNER, world.uuid)
    await world.lendable(world.uuid)
    world.api.put_pod(pod_object(BORROWER, SPOT_RESOURCE))
    await world.knows(BORROWER)
    await world.kubelet.allocate(BORROWER, "main", SPOT_RESOURCE, 1)
    held = await world.kubelet.start_container(BORROWER, "main", SPOT_RESOURCE)
    borrower = Memory(world.machine, under_shim(held))
    world.stack_of_programs.callback(borrower.close)
    assert borrower.take_all() > 8192
    assert owner.alloc(RESERVE_MIB - 1)
    assert not owner.alloc(RESERVE_MIB // 4)


async def test_an_owner_that_sleeps_keeps_its_card_lent(world: ShimWorld) -> None:
    """The borrower has all of the card's time, and the owner's memory stays on the card."""
    owner = await world.share("Hard")
    await world.lendable(world.uuid)
    borrower, _ = await world.borrow()

    def figures() -> tuple[int, int]:
        (one,) = world.machine.cards
        return world.worked(borrower), world.machine.busy(one.uuid).now_ns

    before = figures()

    def has_most() -> bool:
        """Whether the borrower had much of the time in which the card last worked a second for it:
        all on an idle machine. A busy one keeps it from launching in time, now and then."""
        nonlocal before
        work, took = (now - then for now, then in zip(figures(), before, strict=True))
        if work < 1_000_000_000:
            return False
        before = figures()
        return work / took > 0.3

    await until(has_most)
    assert world.state(world.uuid) is CardState.LENT and world.is_on_card(owner)


async def test_an_owner_comes_back_again_and_again(world: ShimWorld) -> None:
    """The owner never fails, and its card is lent again each time, after longer and longer
    rests."""
    owner = await world.share("None")
    for _ in range(ROUNDS):
        await world.lendable(world.uuid)
        borrower, _ = await world.borrow()
        owner.process.send_signal(signal.SIGCONT)
        owner.begin()
        await until(lambda: not world.is_on_card(borrower))  # noqa: B023
        await until(lambda: world.stopped(owner))
        world.let_go()
        (world.proc / str(borrower.process.pid)).rename(world.folder / str(borrower.process.pid))
    await world.lendable(world.uuid)
    assert owner.process.poll() is None
