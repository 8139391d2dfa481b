"""Who uses a card past the shim: told apart by /proc, the usage file and NVML's figures."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mizar_core.carve import CardLimit
from mizar_core.models import Isolation
from mizar_nodeagent import limits, usage
from mizar_nodeagent.compute.steward import Outside
from mizar_nodeagent.container import inspection, processes
from mizar_nodeagent.container.inspection import EVERY_S, LOOKS, Inspection
from mizar_nodeagent.container.processes import HostProcess
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.container.strangers import Known, judge
from mizar_nodeagent.regions import UsageCard, UsageHead
from support.waiting import wait_for
from unit.nodeagent.makers import CARD, GIB, RESOURCE, carve, device, share, share_claim, view

UID = "12345678-1234-1234-1234-123456789abc"
ID = "ab" * 32
MIB = 1 << 20
OWNER = Owner("team-a", "share", UID, "main")


def put_process(proc: Path, pid: int, cgroup: str, inner: int = 7, started: int = 4242) -> None:
    """A process as /proc has it; its name is as bad as names get."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    fields = " ".join(str(number) for number in range(4, 22))
    (folder / "stat").write_bytes(f"{pid} (a) b (c) S {fields} {started} 0 0\n".encode())
    (folder / "status").write_text(f"Name:\ta) b (c\nNSpid:\t{pid}\t99\t{inner}\nThreads:\t1\n")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope\n",
        f"0::/../../kubepods/burstable/pod{UID}/{ID}\n",
        f"12:cpu:/x\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}/sub\n",
        f"0::/kubelet.slice/pod{UID}/crio-{ID}.scope/container\n",
    ],
)
def test_a_process_is_known_by_its_cgroup(tmp_path: Path, cgroup: str) -> None:
    put_process(tmp_path, 500, cgroup)
    (found,) = processes.of_containers([500, 501], tmp_path).values()
    assert found == HostProcess(500, "a) b (c", (7, 4242), UID, ID)


def test_a_static_pods_uid_is_a_hash(tmp_path: Path) -> None:
    put_process(tmp_path, 500, f"0::/kubepods/pod{'0f' * 16}/{ID}\n")
    assert processes.of_containers([500], tmp_path)[500].pod_uid == "0f" * 16


def test_processes_of_the_node_itself_are_nobodys(tmp_path: Path) -> None:
    put_process(tmp_path, 500, "0::/system.slice/dcgm.service\n")
    (tmp_path / "501").mkdir()
    assert processes.of_containers([500, 501, 502], tmp_path) == {}


def test_a_real_process_is_read() -> None:
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    text = Path("/proc/self/status").read_text()
    assert processes._inner_pid(text) == os.getpid()
    assert processes._start_time(Path("/proc/self/stat").read_text()) == started


def known(slot: str = "s", **changes: Any) -> Known:
    given: dict[str, Any] = {
        "slot": slot,
        "owner": OWNER,
        "pod_uids": frozenset({UID}),
        "ids": frozenset({ID}),
        "held": {CARD: 100 * MIB},
        "members": frozenset({(7, 4242)}),
    }
    return Known(**{**given, **changes})


def process(pid: int = 500, **changes: Any) -> HostProcess:
    given: dict[str, Any] = {
        "pid": pid,
        "name": "python",
        "member": (7, 4242),
        "pod_uid": UID,
        "container_id": ID,
    }
    return HostProcess(**{**given, **changes})


def test_what_agrees_is_no_news() -> None:
    verdict = judge({CARD: {500: 90 * MIB}}, {500: process()}, [known()])
    assert (verdict.unaccounted, verdict.strangers) == ({("s", CARD): 0}, [])


def test_what_nvml_tells_beyond_the_account_is_unaccounted() -> None:
    verdict = judge({CARD: {500: 130 * MIB}}, {500: process()}, [known()])
    assert verdict.unaccounted == {("s", CARD): 30 * MIB}
    assert verdict.strangers == []


def test_who_never_shook_hands_is_a_stranger_and_its_memory_counts() -> None:
    other = process(501, member=(8, 5000))
    workers = {CARD: {500: 100 * MIB, 501: 50 * MIB, 999: GIB}}
    verdict = judge(workers, {500: process(), 501: other}, [known()])
    assert verdict.unaccounted == {("s", CARD): 50 * MIB}
    (stranger,) = verdict.strangers
    assert (stranger.process, stranger.bytes, stranger.owner) == (other, 50 * MIB, OWNER)


def test_the_same_pid_at_another_time_is_another_process() -> None:
    verdict = judge({CARD: {500: MIB}}, {500: process(member=(7, 1))}, [known()])
    assert len(verdict.strangers) == 1


def test_containers_of_one_pod_are_told_apart_by_the_runtimes_id() -> None:
    first = known("a", owner=Owner("team-a", "share", UID, "one"), ids=frozenset({"1" * 64}))
    second = known("b", owner=Owner("team-a", "share", UID, "two"), ids=frozenset({ID}))
    verdict = judge({CARD: {500: 150 * MIB}}, {500: process()}, [second, first])
    assert verdict.unaccounted == {("a", CARD): 0, ("b", CARD): 50 * MIB}


def test_a_container_of_the_pod_without_a_slot_counts_for_the_one_that_has_one() -> None:
    aside = process(container_id="2" * 64, member=(1, 1))
    verdict = judge({CARD: {500: 150 * MIB}}, {500: aside}, [known(ids=frozenset())])
    assert len(verdict.strangers) == 1


def test_other_pods_are_left_alone() -> None:
    foreign = process(pod_uid=UID.replace("1", "f"))
    verdict = judge({CARD: {500: GIB}}, {500: foreign}, [known()])
    assert (verdict.unaccounted, verdict.strangers) == ({("s", CARD): 0}, [])


def test_of_a_card_that_does_not_answer_nothing_is_said() -> None:
    verdict = judge({}, {}, [known(code_uses={CARD: 7})])
    assert verdict.unaccounted == {}


class Node:
    """One share container, its slot, and processes on its card."""

    def __init__(self, folder: Path, isolation: Isolation) -> None:
        slot = Slot("s", folder, RESOURCE, frozenset({device(0)}), 0.0, OWNER)
        limits.create_empty(slot.limits)
        usage.initialise(slot.usage)
        identity = limits.Identity("team-a", "share", UID, "main", "s")
        limits.write(slot.limits, identity, [CardLimit(CARD, GIB, 5000, "Hard", "None")], {})
        pod = share(uid=UID, container_ids=((ID, "main"),))
        now = view(1.0, [pod], claims=[share_claim(device(0))])
        carving = SimpleNamespace(carve=carve(isolation=isolation))
        mind: Any = SimpleNamespace(view=now, carving_of=lambda device: carving)
        self.on_card: dict[int, int] = {}
        self.told: list[Mapping[tuple[str, str], Outside]] = []
        self.now = 0.0
        self.usage = slot.usage
        self.complaints: list[tuple[Owner, str, str]] = []
        self.proc = folder / "proc"
        slots: Any = SimpleNamespace(all=lambda: [slot])
        self.inspection = Inspection(
            mind,
            slots,
            self,  # type: ignore[arg-type]
            self.told.append,
            lambda *said: self.complaints.append(said),
            self.proc,
            clock=lambda: self.now,
        )

    async def workers(self, uuids: set[str]) -> dict[str, dict[int, int]]:
        return {uuid: dict(self.on_card) for uuid in uuids}

    async def look(self, times: int = LOOKS) -> None:
        for _ in range(times):
            self.now += EVERY_S
            await self.inspection.look()

    def use_code(self, times: int) -> None:
        """The shim has counted so many uses."""
        at = UsageHead.cards.offset + UsageCard.code_uses.offset
        with self.usage.open("r+b") as file:
            file.seek(at)
            file.write(times.to_bytes(8, "little"))

    @property
    def withheld(self) -> tuple[int, int]:
        """What was told last: MiB, and uses of code."""
        outside = self.told[-1]["s", CARD]
        return outside.bytes // MIB, outside.code_uses


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, Isolation())


CGROUP = f"0::/kubepods/pod{UID}/{ID}\n"


async def test_a_container_without_the_shim_is_reported_once(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.look(LOOKS - 1)
    assert (node.complaints, node.told) == ([], [])
    await node.look(3)
    ((owner, reason, sentence),) = node.complaints
    assert (owner, reason) == (OWNER, "IsolationNotEnforced")
    assert "(7) of container main holds 300 MiB" in sentence and "glibc" in sentence
    assert node.withheld == (300, 0)
    assert len(node.inspection.strangers) == 1


async def test_what_is_gone_is_told_at_once_and_reported_again_if_it_comes_back(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.look()
    node.on_card = {}
    await node.look(1)
    assert node.withheld == (0, 0) and node.inspection.strangers == []
    node.on_card = {500: 300 * MIB}
    await node.look()
    assert len(node.complaints) == 2


async def test_a_difference_that_comes_and_goes_is_none(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    for size in (300, 0, 300, 300, 0):
        node.on_card = {500: size * MIB} if size else {}
        await node.look(1)
    assert node.told and all(one["s", CARD].bytes == 0 for one in node.told)


async def test_the_least_of_what_was_seen_counts(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    for size in (300, 200, 400):
        node.on_card = {500: size * MIB}
        await node.look(1)
    assert node.withheld == (200, 0)


async def test_uses_of_code_are_seen_when_every_look_can_have_seen_what_they_took(
    node: Node,
) -> None:
    put_process(node.proc, 500, CGROUP)
    await node.look()
    node.use_code(5)
    node.on_card = {500: 10 * MIB}
    for _ in range(LOOKS - 1):
        await node.look(1)
        assert node.withheld == (0, 0)
    node.use_code(9)
    await node.look(1)
    assert node.withheld == (10, 5)


async def test_who_looks_often_takes_nobody_for_a_stranger_sooner(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    for _ in range(5 * LOOKS):
        node.now += EVERY_S / 20
        await node.inspection.look()
    assert node.withheld == (300, 0) and node.complaints == []


async def test_new_code_is_looked_at_soon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "EVERY_S", 1e6)
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 10 * MIB}
    running = asyncio.create_task(node.inspection.run())
    node.use_code(1)
    node.inspection.hurry()

    def agreed() -> bool:
        return bool(node.told) and node.withheld == (10, 1)

    await asyncio.to_thread(wait_for, "the looks to agree", agreed)
    running.cancel()


async def test_who_asked_for_no_shim_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, Isolation(backend="None"))
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.look(LOOKS + 1)
    assert node.complaints == []


def test_a_living_slots_process_is_a_member(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage.initialise(path)
    code = (
        "import struct, fcntl, os, sys\n"
        "f = os.open(sys.argv[1], os.O_RDWR)\n"
        "os.pwrite(f, struct.pack('<II', 1, 1), 24)\n"
        "os.pwrite(f, struct.pack('<IIQ', 7, 1, 4242), 12288)\n"
        "ask = struct.pack('hhxxxxqqixxxx', fcntl.F_WRLCK, 0, 12288, 1, 0)\n"
        "fcntl.fcntl(f, fcntl.F_OFD_SETLK, ask)\n"
        "print('lives', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout and child.stdout.readline() == b"lives\n"
    found = usage.survey(path, 1)
    assert (found.members, found.attached) == ({(7, 4242)}, 1)
    child.communicate()
    assert usage.survey(path, 1).members == frozenset()
