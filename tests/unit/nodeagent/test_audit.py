"""Memory and processes that the shim does not see: found by /proc, the usage file and NVML's
figures."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mizar_core.carve import CardLimit
from mizar_core.models import Isolation
from mizar_nodeagent import container_processes
from mizar_nodeagent.audit import auditor
from mizar_nodeagent.audit import kill as kill_module
from mizar_nodeagent.audit.auditor import EVERY_S, Auditor
from mizar_nodeagent.audit.compare import (
    AuditedContainer,
    AuditResult,
    Finding,
    compare,
    unlimited,
)
from mizar_nodeagent.audit.kill import kill
from mizar_nodeagent.audit.permitted_memory import PermittedMemory
from mizar_nodeagent.audit.processes_without_shim import STEADY
from mizar_nodeagent.audit.unaccounted_memory import AUDITS, Unaccounted, UnaccountedMemory
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.container_processes import ContainerProcess
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.regions import layout, limits_file, usage_file, usage_snapshot
from mizar_nodeagent.regions.layout import UsageCard, UsageHead
from mizar_nodeagent.regions.usage_snapshot import Holding, ProcessKey
from support.logs import logged
from support.waiting import PATIENCE_S, wait_for
from unit.nodeagent.makers import (
    CARD,
    CGROUP,
    GIB,
    OWNER,
    UID,
    carve,
    device,
    one_container,
    share_claim,
    snapshot,
)
from unit.nodeagent.makers import CONTAINER_ID as ID

MIB = 1 << 20
STILL: frozenset[ProcessKey] = frozenset()


def put_process(
    proc: Path, pid: int, cgroup: str, inner: int = 7, started: int = 4242, parent: int = 4
) -> None:
    """A process as /proc has it; its name has characters that are hard to parse."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    fields = " ".join(str(number) for number in (parent, *range(5, 22)))
    (folder / "stat").write_bytes(f"{pid} (a) b (c) S {fields} {started} 0 0\n".encode())
    (folder / "status").write_text(f"Name:\ta) b (c\nNSpid:\t{pid}\t99\t{inner}\nThreads:\t1\n")


def test_where_a_process_runs_is_read_once_and_again_for_another_one(tmp_path: Path) -> None:
    """Audits ask every few seconds. Only a container's processes are remembered: one that runs in
    none may be about to enter it."""

    def homes() -> list[tuple[str, str, str]]:
        found = container_processes.of_containers([500, 501], tmp_path).values()
        return [(one.name, one.pod_uid[:2], one.container_id[:2]) for one in found]

    put_process(tmp_path, 500, CGROUP)
    put_process(tmp_path, 501, "0::/\n")
    first = (UID[:2], ID[:2])
    assert homes() == [("a) b (c", *first)]
    for file in ("cgroup", "status"):
        (tmp_path / "500" / file).unlink()
    (tmp_path / "501" / "cgroup").write_text(CGROUP)
    assert homes() == [("a) b (c", *first)] * 2
    shutil.rmtree(tmp_path / "500")
    put_process(tmp_path, 500, f"0::/kubepods/pod{'0f' * 16}/{'ef' * 32}\n", started=4243)
    assert homes() == [("a) b (c", "0f", "ef"), ("a) b (c", *first)]


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
    (found,) = container_processes.of_containers([500, 501], tmp_path).values()
    assert found == ContainerProcess(500, "a) b (c", (7, 4242), UID, ID)


def test_no_process_hides_by_the_name_of_its_cgroup(tmp_path: Path) -> None:
    """A pod that may write to its cgroup may name one below it in any bytes, but hides no other
    pod's process either."""
    put_process(tmp_path, 500, "")
    (tmp_path / "500" / "cgroup").write_bytes(f"0::/kubepods/pod{UID}/{ID}/".encode() + b"\xff\n")
    put_process(tmp_path, 501, f"0::/kubepods/pod{UID}/{ID}\n")
    for pid in (500, 501):
        (tmp_path / str(pid) / "comm").write_bytes(b"train\n")
    assert container_processes.of_containers([500, 501], tmp_path).keys() == {500, 501}
    assert container_processes.of_node([500, 501], tmp_path) == set()
    assert {one.pid for one in container_processes.of_pods({UID}, tmp_path)} == {500, 501}


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-conmon-{ID}.scope", 0),
        (f"12:cpu:/x\n4:memory:/kubepods/besteffort/pod{UID}/crio-conmon-{ID}\n", 0),
        (f"0::/kubepods/pod{UID}/crio-{ID}/container\n", 1),
        (f"0::/kubepods/pod{UID}/crio-{ID}/crio-conmon-{ID}\n", 1),
        (f"0::/kubepods/pod{UID}/crio-{ID}/pod{UID}/crio-conmon-{ID}\n", 1),
        (f"0::/kubepods/pod{UID}/crio-conmon-{ID}/sub\n", 1),
    ],
)
def test_the_monitor_of_a_container_is_none_of_its_processes(
    tmp_path: Path, cgroup: str, found: int
) -> None:
    """CRI-O can have its conmon in the pod's cgroup, where no container can get to."""
    put_process(tmp_path, 500, cgroup)
    (tmp_path / "500" / "comm").write_bytes(b"conmon\n")
    assert len(container_processes.of_pods({UID}, tmp_path)) == found


def test_a_static_pods_uid_is_a_hash(tmp_path: Path) -> None:
    put_process(tmp_path, 500, f"0::/kubepods/pod{'0f' * 16}/{ID}\n")
    assert container_processes.of_containers([500], tmp_path)[500].pod_uid == "0f" * 16


def test_processes_of_the_node_itself_are_nobodys(tmp_path: Path) -> None:
    put_process(tmp_path, 500, "0::/system.slice/dcgm.service\n")
    (tmp_path / "501").mkdir()
    assert container_processes.of_containers([500, 501, 502], tmp_path) == {}


def test_a_real_process_is_read() -> None:
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    text = Path("/proc/self/status").read_text()
    assert container_processes._inner_pid(text) == os.getpid()
    assert container_processes._start_time(Path("/proc/self/stat").read_text()) == started


KEY = (7, 4242)
OTHER = (8, 5000)


def known(
    slot: str = "s", held: int = 100 * MIB, stamp: int = 1, **changes: Any
) -> AuditedContainer:
    """A container with one process, which has held so much memory since the ledger's change number
    `stamp`."""
    given: dict[str, Any] = {
        "slot": slot,
        "owner": OWNER,
        "pod_uids": frozenset({UID}),
        "ids": frozenset({ID}),
        "holdings": {CARD: {KEY: Holding(held, (stamp,), False)}},
        "alive": frozenset({KEY}),
        "code_uses": {CARD: 3},
    }
    return AuditedContainer(**{**given, **changes})


def process(pid: int = 500, **changes: Any) -> ContainerProcess:
    given: dict[str, Any] = {
        "pid": pid,
        "name": "python",
        "key": KEY,
        "pod_uid": UID,
        "container_id": ID,
    }
    return ContainerProcess(**{**given, **changes})


def compared(
    workers: Mapping[int, int],
    processes: Iterable[ContainerProcess],
    before: Sequence[AuditedContainer],
    after: Sequence[AuditedContainer] | None = None,
) -> AuditResult:
    by_pid = {one.pid: one for one in processes}
    return compare({CARD: workers}, by_pid, before, before if after is None else after)


def test_what_agrees_is_no_news() -> None:
    result = compared({500: 90 * MIB}, [process()], [known()])
    assert result == AuditResult({("s", CARD): Finding({KEY: 0}, STILL, 3)}, [])


def test_what_nvml_tells_beyond_the_account_is_excess() -> None:
    result = compared({500: 130 * MIB}, [process()], [known()])
    assert result == AuditResult({("s", CARD): Finding({KEY: 30 * MIB}, STILL, 3)}, [])


def test_what_one_process_has_too_much_makes_up_for_no_other() -> None:
    two = {KEY: Holding(100 * MIB, (1,), False), (8, 5000): Holding(MIB, (2,), False)}
    both = known(holdings={CARD: two}, alive=frozenset(two))
    workers = {500: 50 * MIB, 501: 11 * MIB}
    result = compared(workers, [process(), process(501, key=OTHER)], [both])
    assert result.findings["s", CARD].excess == {KEY: 0, OTHER: 10 * MIB}


@pytest.mark.parametrize(
    ("size", "uses", "beyond"),
    [
        (60 * MIB, 1000, 20 * MIB),  # of 100 MiB 60 may not be there: 40 of these 60 are explained
        (60 * MIB, 3, 2 * MIB),  # so few functions take no more than this
        (30 * MIB, 1000, 0),
        (130 * MIB, 3, 30 * MIB),  # shown nevertheless
        (130 * MIB, 1000, 90 * MIB),
    ],
)
def test_what_is_charged_and_not_there_hides_no_code(size: int, uses: int, beyond: int) -> None:
    holding = Holding(100 * MIB, (1,), False, absent=60 * MIB)
    one = known(holdings={CARD: {KEY: holding}}, code_uses={CARD: uses})
    assert compared({500: size}, [process()], [one]).findings["s", CARD].excess == {KEY: beyond}


@pytest.mark.parametrize(
    "after",
    [
        known(held=120 * MIB, stamp=2),
        known(stamp=3),  # it has taken something and given it back
        known(holdings={CARD: {KEY: Holding(100 * MIB, (1,), True)}}),
        known(holdings={CARD: {}}),
    ],
)
def test_an_account_that_changes_meanwhile_is_not_sure(after: AuditedContainer) -> None:
    for pair in ([known()], [after]), ([after], [known()]):
        finding = compared({500: 130 * MIB}, [process()], *pair).findings["s", CARD]
        assert not finding.sure
        assert finding.excess[KEY] in (10 * MIB, 30 * MIB)


def test_a_busy_process_may_hold_what_it_has_not_reserved() -> None:
    busy = known(holdings={CARD: {KEY: Holding(100 * MIB, (1,), True)}})
    assert not compared({500: 130 * MIB}, [process()], [busy]).findings["s", CARD].sure


def test_a_process_that_never_registered_is_without_shim_and_its_memory_counts() -> None:
    other = process(501, key=OTHER)
    workers = {500: 100 * MIB, 501: 50 * MIB, 999: GIB}
    result = compared(workers, [process(), other], [known()])
    assert result.findings["s", CARD] == Finding({KEY: 0, OTHER: 50 * MIB}, STILL, 3)
    (found,) = result.without_shim
    assert (found.process, found.bytes, found.owner) == (other, 50 * MIB, OWNER)


def test_a_process_with_a_second_driver_is_without_shim() -> None:
    result = compared({500: 130 * MIB}, [process()], [known(past=frozenset({KEY}))])
    (found,) = result.without_shim
    assert (found.process, found.bytes) == (process(), 130 * MIB)
    assert excess_of(result) == {"s": {KEY: 30 * MIB}}


@pytest.mark.parametrize(
    ("held", "permitted", "is_told"),
    [
        (GIB + MIB, MIB, False),
        (GIB + MIB + 1, MIB, True),
        (20 * GIB, 19 * GIB, False),
        (GIB, 0, False),
    ],
)
def test_an_account_explains_no_more_than_the_limit(
    held: int, permitted: int, is_told: bool
) -> None:
    """A process that registered by itself, with an account as large as what it holds. Without a
    limit, the container was stopped and keeps what it had."""
    forged = known(held=held, permitted={CARD: permitted})
    result = compared({500: held}, [process()], [forged])
    assert excess_of(result) == {"s": {KEY: 0}}
    assert [one.permitted for one in result.without_shim] == [permitted] * is_told


def test_the_same_pid_at_another_time_is_another_process() -> None:
    result = compared({500: MIB}, [process(key=(7, 1))], [known()])
    assert len(result.without_shim) == 1


def excess_of(result: AuditResult) -> dict[str, Mapping[ProcessKey, int]]:
    return {slot: found.excess for (slot, _), found in result.findings.items()}


def test_containers_of_one_pod_are_told_apart_by_the_runtimes_id() -> None:
    first = known("a", owner=Owner("team-a", "share", UID, "one"), ids=frozenset({"1" * 64}))
    second = known("b", owner=Owner("team-a", "share", UID, "two"), ids=frozenset({ID}))
    result = compared({500: 150 * MIB}, [process()], [second, first])
    assert excess_of(result) == {"a": {}, "b": {KEY: 50 * MIB}}


def test_a_container_of_the_pod_without_a_slot_counts_for_the_one_that_has_one() -> None:
    aside = process(container_id="2" * 64, key=(1, 1))
    result = compared({500: 150 * MIB}, [aside], [known(ids=frozenset())])
    assert len(result.without_shim) == 1


def test_a_container_made_anew_is_known_by_its_processes() -> None:
    """Its new ID is not known while the API server does not answer."""
    holds_nothing = {CARD: {OTHER: Holding(0, (1,), False)}}
    first = known("a", owner=replace(OWNER, container="one"), ids=frozenset({"1" * 64}))
    second = known("b", ids=frozenset({ID}), holdings=holds_nothing, alive=frozenset({OTHER}))
    anew = process(container_id="2" * 64)
    for both in ([first, second], [second, first]):
        result = compared({500: 150 * MIB}, [anew], both)
        assert (excess_of(result), result.without_shim) == ({"a": {KEY: 50 * MIB}, "b": {}}, [])


def test_a_container_that_may_be_without_limits_is_taken_for_no_other() -> None:
    """Two containers of one pod: one has opted out, and the other is not charged for it."""
    limited = known("b", ids=frozenset({"1" * 64}))
    free = unlimited("a", replace(OWNER, container="free"), limited.pod_uids, frozenset({ID}))
    aside = process(501, container_id="2" * 64, key=(1, 1))
    for both in ([free, limited], [limited, free]):
        result = compared({500: GIB, 501: MIB}, [process(key=OTHER), aside], both)
        assert (excess_of(result), result.without_shim) == ({"b": {}}, []), (
            "one of an unknown ID may be of the container without limits, made anew"
        )


def test_other_pods_are_left_alone() -> None:
    foreign = process(pod_uid=UID.replace("1", "f"))
    result = compared({500: GIB}, [foreign], [known()])
    assert (excess_of(result), result.without_shim) == ({"s": {}}, [])


def test_a_process_is_unlisted_while_it_lives_and_holds_something() -> None:
    found = compared({}, [], [known()]).findings["s", CARD]
    assert found == Finding({}, STILL, 3, frozenset({KEY}))
    for other in (known(held=0), known(alive=frozenset())):
        assert not compared({}, [], [known()], [other]).findings["s", CARD].unlisted


def test_of_a_card_that_does_not_answer_nothing_is_said() -> None:
    silent = frozenset({CARD})
    assert compare({}, {}, [known()], [known()]) == AuditResult({}, [], silent)


# ---- several audits ----


def finding(size: int, sure: bool = True, uses: int = 0) -> Finding:
    return Finding({KEY: size}, STILL if sure else frozenset({KEY}), uses)


def test_the_most_of_the_audits_counts_with_the_uses_that_all_have_seen() -> None:
    memory = UnaccountedMemory()
    for size, uses in ((10, 1), (30, 2)):
        memory.add(finding(size, uses=uses))
        assert memory.unaccounted is None
    memory.add(finding(20, uses=3))
    assert memory.unaccounted == Unaccounted(30, 1)
    for _ in range(AUDITS - 1):
        memory.add(finding(20, uses=4))
    assert memory.unaccounted == Unaccounted(20, 3)


def test_processes_that_are_gone_count_no_more() -> None:
    memory = UnaccountedMemory()
    for _ in range(AUDITS):
        memory.add(Finding({KEY: 10, OTHER: 20}, STILL, 5))
    memory.add(Finding({OTHER: 20}, STILL, 5))
    assert memory.unaccounted == Unaccounted(20, 5)


def test_a_process_that_lives_counts_when_nvml_leaves_it_out() -> None:
    """A driver's list may lack a process for a moment."""
    memory = UnaccountedMemory()
    for _ in range(AUDITS):
        memory.add(Finding({KEY: 10, OTHER: 20}, STILL, 5))
    memory.add(Finding({OTHER: 20}, STILL, 5, frozenset({KEY})))
    assert memory.unaccounted == Unaccounted(30, 5)
    memory.add(Finding({OTHER: 20}, STILL, 5))
    assert memory.unaccounted == Unaccounted(20, 5)


def test_a_process_that_never_stands_still_holds_what_its_code_can_have_taken() -> None:
    memory = UnaccountedMemory()
    for uses in (10, 20, 20):
        memory.add(finding(MIB, sure=False, uses=uses))
    # Three pages for ten functions, and one that was not full before.
    assert memory.unaccounted == Unaccounted(8 * MIB, 10) and not memory.settled
    memory.add(finding(50 * MIB, sure=False, uses=20))
    assert memory.unaccounted == Unaccounted(50 * MIB, 20)
    for _ in range(AUDITS):
        memory.add(finding(5 * MIB, uses=20))
    assert memory.unaccounted == Unaccounted(5 * MIB, 20) and memory.settled


def test_a_process_that_moves_is_known_by_its_last_audits_that_were_sure() -> None:
    memory = UnaccountedMemory()
    for _ in range(AUDITS):
        memory.add(finding(30 * MIB, uses=8))
    for _ in range(AUDITS):
        memory.add(finding(0, sure=False, uses=12))
    assert memory.unaccounted == Unaccounted((30 + 2 + 2) * MIB, 12)


def test_a_new_process_has_used_no_code_before() -> None:
    memory = UnaccountedMemory()
    for _ in range(AUDITS):
        memory.add(finding(30 * MIB, uses=1000))
    for _ in range(AUDITS):
        memory.add(Finding({KEY: 30 * MIB, OTHER: 0}, frozenset({OTHER}), 1004))
    assert memory.unaccounted == Unaccounted((30 + 2 + 2) * MIB, 1004)


def test_uses_count_as_seen_once_a_process_that_stands_still_again_is_measured() -> None:
    """For instance a new process that takes memory right after others died, which had used much
    code. Its shim waits until all uses are seen; told before the measurement that the process may
    have loaded all that code, it would refuse the program memory that is free."""
    memory = UnaccountedMemory()
    for _ in range(AUDITS):
        memory.add(finding(0, uses=10))
    memory.add(finding(0, sure=False, uses=1000))
    for _ in range(AUDITS - 1):
        memory.add(finding(0, uses=1000))
        assert memory.unaccounted == Unaccounted(0, 10)
    memory.add(finding(0, uses=1000))
    assert memory.unaccounted == Unaccounted(0, 1000)


def test_uses_that_counted_as_seen_stay_so() -> None:
    """The shim could otherwise meet the new figure of bytes with the old one of uses."""
    memory = UnaccountedMemory()
    for uses in (10, 10, 10, 20, 20, 20):
        memory.add(finding(0, sure=False, uses=uses))
    assert memory.unaccounted == Unaccounted((2 + 10) * MIB, 20)
    memory.add(finding(0, uses=20))
    assert memory.unaccounted == Unaccounted((2 + 10) * MIB, 20)


def test_no_more_uses_count_as_seen_than_the_container_has_counted() -> None:
    """Any program of the container may overwrite the number."""
    memory = UnaccountedMemory()
    for uses in (1000, 1000, 1000, 7, 7, 7):
        memory.add(finding(0, uses=uses))
    assert memory.unaccounted == Unaccounted(0, 7)


def test_audits_that_agree_are_settled_until_one_differs() -> None:
    memory = UnaccountedMemory()
    changed = [memory.add(finding(10, uses=1)) for _ in range(AUDITS)]
    assert memory.settled and not any(changed)
    assert not memory.add(finding(10, uses=1))
    assert memory.add(finding(11, uses=1)) and not memory.settled
    assert not memory.add(finding(12, uses=1))


class Node:
    """One share container, its slot, and processes on its card."""

    def __init__(self, folder: Path, isolation: Isolation) -> None:
        state, slots = one_container(folder, isolation)
        self._state, self.slots = state, slots
        (slot,) = slots.all()
        limits_file.create_empty(slot.limits)
        usage_file.create(slot.usage)
        self._slot = slot
        self.limit(GIB)
        self.on_card: dict[int, int] = {}
        self.is_silent = False
        self.told: list[Mapping[tuple[str, str], Unaccounted]] = []
        self.now = 0.0
        self.usage = slot.usage
        self.warnings: list[tuple[Owner, str, str]] = []
        self.proc = folder / "proc"
        self.auditor = Auditor(
            state,
            slots,
            self,  # type: ignore[arg-type]
            self.told.append,
            lambda *said: self.warnings.append(said),
            self.proc,
            clock=lambda: self.now,
        )

    def limit(self, size: int) -> None:
        """Limit the container to that many bytes."""
        identity = limits_file.ContainerIdentity("team-a", "share", UID, "main", "s")
        limit = CardLimit(CARD, size, 5000, "Hard", "None")
        limits_file.write(self._slot.limits, identity, [limit], {})

    def charge(self, total: int) -> None:
        """The ledger says that the container holds that many bytes."""
        with self.usage.open("r+b") as file:
            file.seek(UsageHead.cards.offset + 8)
            file.write((total << 21).to_bytes(8, "little"))

    def isolate(self, isolation: Isolation) -> None:
        """Change the quota's isolation."""
        carving = SimpleNamespace(carve=carve(isolation=isolation))
        self._state.carving_of = lambda device: carving

    def hold(self, *claims: Claim) -> None:
        """The pod's containers hold these devices."""
        pods = list((self._state.snapshot.pods or {}).values())
        self._state.snapshot = snapshot(1.0, pods, claims=claims)

    async def workers(self, uuids: set[str]) -> dict[str, dict[int, int]]:
        if self.is_silent:
            return {}
        return {uuid: dict(self.on_card) for uuid in uuids}

    async def audit(self, times: int = STEADY) -> None:
        for _ in range(times):
            self.now += EVERY_S
            await self.auditor.audit()

    def use_code(self, times: int) -> None:
        """The shim has counted that many uses of code."""
        at = UsageHead.cards.offset + UsageCard.code_uses.offset
        with self.usage.open("r+b") as file:
            file.seek(at)
            file.write(times.to_bytes(8, "little"))

    @property
    def withheld(self) -> tuple[int, int]:
        """What was last set as unaccounted: MiB, and uses of code."""
        unaccounted = self.told[-1]["s", CARD]
        return unaccounted.bytes // MIB, unaccounted.code_uses


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, Isolation())


async def test_a_container_without_the_shim_is_reported_once(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.audit(STEADY - 1)
    assert (node.warnings, node.told[-1]) == ([], {})
    await node.audit(3)
    ((owner, reason, sentence),) = node.warnings
    assert (owner, reason) == (OWNER, "IsolationNotEnforced")
    assert "(7) of container main holds 300 MiB" in sentence and "glibc" in sentence
    assert node.withheld == (300, 0)
    assert len(node.auditor.without_shim) == 1


async def test_what_is_gone_is_told_at_once_and_reported_again_if_it_comes_back(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.audit()
    node.on_card = {}
    await node.audit(1)
    assert node.withheld == (0, 0) and node.auditor.without_shim == []
    node.on_card = {500: 300 * MIB}
    await node.audit()
    assert len(node.warnings) == 2


async def test_a_process_without_the_shim_that_comes_and_goes_is_not_reported(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    for size in (300, 0, 300, 300, 0):
        node.on_card = {500: size * MIB} if size else {}
        await node.audit(1)
    assert node.warnings == [] and node.withheld == (0, 0)


async def test_a_card_that_does_not_answer_for_a_moment_changes_nothing(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.audit()
    for node.is_silent in (True, False, True, False):
        await node.audit(1)
        assert node.auditor.unbound and node.auditor.without_shim
        assert (len(node.warnings), node.withheld) == (1, (300, 0))
    node.on_card = {}
    await node.audit(1)
    assert node.auditor.unbound == {}


async def test_a_card_that_does_not_answer_shows_nobody_new(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.audit(1)
    node.is_silent = True
    await node.audit(STEADY)
    assert (node.warnings, node.auditor.unbound) == ([], {})


async def test_uses_of_code_count_when_every_audit_can_have_seen_what_they_took(
    node: Node,
) -> None:
    put_process(node.proc, 500, CGROUP)
    await node.audit()
    node.use_code(5)
    node.on_card = {500: 10 * MIB}
    for _ in range(AUDITS - 1):
        await node.audit(1)
        assert node.withheld == (10, 0)
    node.use_code(9)
    await node.audit(1)
    assert node.withheld == (10, 5)


async def test_frequent_audits_report_nobody_sooner(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    for _ in range(5 * STEADY):
        node.now += EVERY_S / 20
        await node.auditor.audit()
    assert node.withheld == (300, 0) and node.warnings == []


async def test_new_code_is_audited_soon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "EVERY_S", 1e6)
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 10 * MIB}
    running = asyncio.create_task(node.auditor.run())
    node.use_code(1)
    node.auditor.audit_soon()

    def agreed() -> bool:
        return bool(node.told) and node.withheld == (10, 1)

    await asyncio.to_thread(wait_for, "the audits to agree", agreed)
    running.cancel()


@pytest.fixture
def stranger(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the container that runs without the shim."""
    with subprocess.Popen(["sleep", "1000"]) as made:
        folder = node.proc / str(made.pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(CGROUP)
        for name in ("stat", "status"):
            (folder / name).symlink_to(f"/proc/{made.pid}/{name}")
        node.on_card = {made.pid: 300 * MIB}
        yield made
        made.kill()


@pytest.mark.parametrize("enforcement", ["Report", "Strict"])
async def test_only_where_the_quota_is_strict_it_is_killed(
    node: Node, stranger: subprocess.Popen[bytes], enforcement: Any
) -> None:
    node.isolate(Isolation(enforcement=enforcement))
    await node.audit(STEADY - 1)
    assert stranger.poll() is None and node.auditor.unbound is None
    await node.audit(1)
    ((_, _, sentence),) = node.warnings
    if enforcement == "Report":
        assert stranger.poll() is None and "killed" not in sentence
    else:
        assert await asyncio.to_thread(stranger.wait, PATIENCE_S) == -signal.SIGKILL
        assert sentence.endswith("it is killed, since isolation.enforcement is Strict")
    assert node.auditor.unbound == {("team-a", "share"): sentence.partition("; it is killed")[0]}
    node.on_card = {}
    await node.audit(1)
    assert node.auditor.unbound == {}


@pytest.mark.parametrize("enforcement", ["Report", "Strict"])
@pytest.mark.parametrize("may", [True, False])
async def test_an_agent_that_is_too_weak_for_strict_says_so_before_it_has_to_kill(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    enforcement: Any,
    may: bool,
) -> None:
    monkeypatch.setattr(kill_module, "may_kill_others", lambda: may)
    node = Node(tmp_path, Isolation(enforcement=enforcement))
    await node.audit(3)
    told = [one for one in logged(caplog) if "nodeagent.mayKill" in str(one.get("problem"))]
    assert len(told) == (enforcement == "Strict" and not may), "once"


@pytest.mark.parametrize(
    ("capabilities", "may"),
    [("0000000000000002", False), ("0000000000000022", True), ("000001ffffffffff", True)],
)
def test_whether_the_agent_may_kill_is_read_from_its_capabilities(
    tmp_path: Path, capabilities: str, may: bool
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx: y\nCapPrm:\t{'f' * 16}\nCapEff:\t{capabilities}\nThreads:\t1\n")
    assert kill_module.may_kill_others(status) is may


def test_another_process_of_that_pid_is_left_alone(
    node: Node, stranger: subprocess.Popen[bytes]
) -> None:
    (found,) = container_processes.of_containers([stranger.pid], node.proc).values()
    older = replace(found, key=(found.key[0], found.key[1] - 1))
    assert kill(older, node.proc) == "it has ended"
    assert kill(replace(found, pid=2**22 - 1), node.proc) == "it has ended"
    assert stranger.poll() is None


def test_what_must_not_be_killed_is_said(
    node: Node, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has no CAP_KILL, and the process is another user's."""
    (found,) = container_processes.of_containers([stranger.pid], node.proc).values()
    refusal = Mock(side_effect=PermissionError(1, "Operation not permitted"))
    monkeypatch.setattr(signal, "pidfd_send_signal", refusal)
    assert "cannot be killed: [Errno 1]" in kill(found, node.proc)


async def test_a_container_that_opted_out_is_no_concern_of_its_neighbour(tmp_path: Path) -> None:
    node = Node(tmp_path, Isolation())
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    own = node.slots.all()[0]
    sibling = replace(own, name="a", owner=replace(OWNER, container="other"))
    out = replace(own, shim=False, opted_out=True)
    node.slots.all = lambda: [sibling, out]
    await node.audit(AUDITS + 1)
    assert node.warnings == []


async def test_memory_of_a_container_with_damaged_limits_is_not_counted_against_another_container(
    tmp_path: Path,
) -> None:
    """The shim of such a container keeps the last good limits, so its work goes on. What it holds
    must not be taken off the other container's limit, nor may the other one be blamed for it."""
    node = Node(tmp_path, Isolation())
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    own = node.slots.all()[0]
    (tmp_path / "a").mkdir()
    other = replace(share_claim(device(1)), container="other")
    sibling = replace(
        own,
        name="a",
        folder=tmp_path / "a",
        ids=other.ids,
        owner=replace(OWNER, container="other"),
    )
    node.hold(share_claim(device(0)), other)
    for path in (own.limits, own.usage):
        shutil.copyfile(path, sibling.folder / path.name)
    with own.limits.open("r+b") as file:
        file.seek(layout.Limits.cards.offset)
        file.write(b"a bit flipped on disk")
    node.slots.all = lambda: [sibling, own]
    await node.audit(AUDITS + 1)
    assert (node.warnings, node.told[-1]["a", CARD]) == ([], Unaccounted(0, 0))


async def test_a_container_that_asked_for_no_shim_is_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, Isolation(backend="None"))
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 300 * MIB}
    await node.audit(AUDITS + 1)
    assert node.warnings == []


FORGE = (
    "import struct, fcntl, os, sys\n"
    "f = os.open(sys.argv[1], os.O_RDWR)\n"
    "os.pwrite(f, struct.pack('<II', 1, 1), 24)\n"
    "os.pwrite(f, struct.pack('<IIQ', 7, 1, 4242), 12288)\n"
    "os.pwrite(f, struct.pack('<Q', 3 << 30), 12288 + int(sys.argv[2]))\n"
    "os.pwrite(f, struct.pack('<Q', int(sys.argv[3]) << 21), 4096 + 8)\n"
    "ask = struct.pack('hhxxxxqqixxxx', fcntl.F_WRLCK, 0, 12288, 1, 0)\n"
    "fcntl.fcntl(f, fcntl.F_OFD_SETLK, ask)\n"
    "print('lives', flush=True)\n"
    "sys.stdin.read()\n"
)
"""A process with a slot, a lock and 3 GiB of its own. Arguments: usage file, offset of `held` in a
slot, total of the ledger."""


@asynccontextmanager
async def forger(node: Node, total: int) -> AsyncIterator[None]:
    """Runs that process with 3 GiB on the card; the ledger says `total`."""
    put_process(node.proc, 500, CGROUP)
    node.on_card = {500: 3 * GIB}
    held = layout.UsageSlot.held.offset
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FORGE, node.usage, str(held), str(total)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout and await child.stdout.readline() == b"lives\n"
    yield
    await child.communicate(b"")  # ends it


@pytest.mark.parametrize("total", [0, 3 * GIB, layout.BYTES_MAX])
async def test_a_forged_account_is_told(node: Node, total: int) -> None:
    """The tenant can write any total into the ledger, so it permits nothing by itself."""
    await node.audit(1)
    async with forger(node, total):
        await node.audit(STEADY)
    ((owner, _, sentence),) = node.warnings
    assert (
        owner == OWNER and "far more memory of card" in sentence and "limit of 1024 MiB" in sentence
    )


@pytest.mark.parametrize("known", [True, False])
async def test_what_a_container_had_before_its_limit_was_lowered_is_permitted(
    node: Node, known: bool
) -> None:
    """`known`: the agent has seen the limit before; otherwise it was lowered in an earlier run."""
    if known:
        node.limit(3 * GIB)
    async with forger(node, 3 * GIB):
        await node.audit(STEADY * known)
        node.limit(GIB)
        await node.audit(STEADY)
        assert node.warnings == []
        # What was given back may not be taken again.
        node.charge(GIB)
        await node.audit(1)
        node.charge(3 * GIB)
        await node.audit(STEADY)
    ((_, _, sentence),) = node.warnings
    assert "limit of 1024 MiB" in sentence


def test_of_a_new_container_not_even_the_first_account_permits_more() -> None:
    permitted = PermittedMemory({"old"})
    assert permitted.update(("old", CARD), GIB, 3 * GIB) == 3 * GIB
    assert permitted.update(("new", CARD), GIB, 3 * GIB) == GIB


def test_what_is_permitted_stays_while_the_account_cannot_be_read() -> None:
    permitted = PermittedMemory({"s"})
    permitted.update(("s", CARD), GIB, 3 * GIB)
    assert permitted.update(("s", CARD), GIB, None) == 3 * GIB
    assert permitted.update(("s", CARD), 0, 2 * GIB) == 0, "the card is lost"
    assert permitted.update(("s", CARD), GIB, 3 * GIB) == 2 * GIB
    permitted.keep_only({"s"})
    assert permitted.update(("s", CARD), GIB, 3 * GIB) == 2 * GIB
    permitted.keep_only({"another"})
    assert permitted.update(("s", CARD), GIB, 3 * GIB) == 3 * GIB, "it is forgotten"


def test_the_process_of_a_locked_slot_is_alive(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
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
    found = usage_snapshot.take(path, 1)
    assert (found.alive, found.attached) == (frozenset({(7, 4242)}), 1)
    assert not found.past
    with path.open("r+b") as file:
        file.seek(layout.slot_lock(0) + layout.UsageSlot.shim_version.offset)
        file.write(layout.SHIM_PAST.to_bytes(4, "little"))
    assert usage_snapshot.take(path, 1).past == {(7, 4242)}
    child.communicate()
    assert usage_snapshot.take(path, 1).alive == frozenset()
