"""However often owners wake beside borrowers at full load, no owner fails, each has its card for
itself soon, and all cards are lent again.

MIZAR_SPOT_WAKE_UPS=100 wakes them so often (some ten minutes); MIZAR_SEED repeats a run.
"""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cgroups import hierarchies
from e2e.test_spot import borrowing, lender, node_of
from e2e.watching import card_of
from simgpu.machine import Machine
from support.effort import SEED, times
from support.kube import Kube, Object, is_ready
from support.objects import deployment
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

WAKE_UPS = int(os.environ.get("MIZAR_SPOT_WAKE_UPS") or times(2))
OWNERS = 4
"""As many as the cluster has cards: a card that is taken back again and again rests in between."""
TAKEN_MIB = 12 * 1024
"""MiB that a borrower takes: beside its two contexts, the owner and the reserve, little is left."""
AT_FULL_LOAD = f"cuda-sample hold {TAKEN_MIB} & exec cuda-sample busy"
FREE_WITHIN_S, MOSTLY_WITHIN_S = 15.0, 3.0
"""Seconds from the start of an owner's program until no process of the borrower is left: at most,
and in half of the cases. `make bench AREA=spot` measures how long it takes; here, the node agent
has no processor of its own."""
LOOK_S = 0.005
PROGRAM = "cuda-sample"
FULL_LOAD_NS = 500_000_000

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600 + 20 * WAKE_UPS)]


@dataclass
class Owned:
    """A card and its owner's pod. `own`: the PID of the process that holds it while it sleeps;
    `procs`: the file with the PIDs of all processes of its container."""

    tenant: str
    machine: Machine
    card: int
    own: frozenset[int]
    procs: Path

    def pids(self) -> frozenset[int]:
        """PIDs of all processes on the card, as the host sees them."""
        found = self.machine.processes(self.card).values()
        return frozenset(one.pid for one in found if one.pid)

    def is_awake(self) -> bool:
        """Whether the owner runs another program than the one that holds the card."""
        pids = frozenset(map(int, self.procs.read_text().split())) - self.own
        return any(_name(pid) == PROGRAM for pid in pids)

    def intruders(self) -> frozenset[int]:
        """PIDs of others on the card, if the owner's other program is there before and after. The
        end of a program may be told so late that the card is lent again by then."""
        before = self.pids()
        container = frozenset(map(int, self.procs.read_text().split()))
        after = self.pids()
        works = before & after & (container - self.own)
        return after - container if works else frozenset()

    def is_lent(self) -> bool:
        """Whether a borrower works on the card, and has its memory."""
        found = self.machine.processes(self.card).values()
        theirs = [one for one in found if one.pid not in self.own | {0}]
        worked, taken = sum(one.work_ns for one in theirs), sum(one.memory for one in theirs)
        return worked > FULL_LOAD_NS and taken > TAKEN_MIB << 20


def test_random_wake_ups(kube: Kube, stage: "Stage", mizar_cluster: Cluster) -> None:
    """Owners wake for work of all sorts, and for memory that is free only when the borrower has
    gone."""
    chance = random.Random(SEED)
    print(f"{WAKE_UPS} wake-ups, MIZAR_SEED={SEED}")
    tenants = [lender(kube, stage) for _ in range(OWNERS)]
    other = borrowing(kube, stage, cards=OWNERS)
    owners = [_owned(kube, mizar_cluster, one) for one in tenants]
    kube.apply(_borrowers(other))
    took = []
    for number, owned in enumerate(_in_turn(owners, chance)):
        wait_for(f"the card of {owned.tenant} to be lent", owned.is_lent, timeout=180)
        took.append(_wake(kube, owned, _work(chance)))
        print(f"{number + 1}: free after {took[-1]:.3f} s")
    for owned in owners:
        wait_for(f"the card of {owned.tenant} to be lent again", owned.is_lent, timeout=180)
        (pod,) = [one for one in kube.all("pods", owned.tenant) if _is_owner(one)]
        assert is_ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == 0
    middle, most = median(took), max(took)
    print(f"free after {middle:.3f} s in the middle, {most:.3f} s at most")
    assert middle < MOSTLY_WITHIN_S and most < FREE_WITHIN_S


def _in_turn(owners: list[Owned], chance: random.Random) -> Iterator[Owned]:
    """As many owners as there are wake-ups, in rounds, each of which is shuffled."""
    for number in range(WAKE_UPS):
        if number % len(owners) == 0:
            chance.shuffle(owners)
        yield owners[number % len(owners)]


def _work(chance: random.Random) -> list[str]:
    """What the owner is woken for: kernels, short or long, or memory."""
    if chance.random() < 0.3:
        return ["cuda-sample", "alloc", str(chance.randrange(1024, 6 * 1024))]
    seconds, kernel_us = chance.choice("12"), chance.choice(["20", "200", "5000"])
    return ["cuda-sample", "busy", "--seconds", seconds, "--kernel-us", kernel_us]


def _wake(kube: Kube, owned: Owned, command: list[str]) -> float:
    """Seconds until the borrower was gone; the owner must not fail, and be alone from then on."""
    theirs = owned.pids() - owned.own
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(kube.exec, owned.tenant, "owner", *command)
        took = _free_after(owned, theirs, work)
        while not work.done():
            assert not owned.intruders(), "the borrower is back while the owner is awake"
            time.sleep(0.05)
        status, answer = work.result()
    assert status == 0, f"{command}: {answer}"
    return took


def _free_after(owned: Owned, theirs: frozenset[int], work: Future[tuple[int, str]]) -> float:
    """Seconds from the start of the owner's process until no borrower is left on the card. On a
    busy machine the process may end between two looks."""
    wait_for("the owner to wake", lambda: owned.is_awake() or work.done(), interval=LOOK_S)
    woke = time.monotonic()
    wait_for("the card to be free", lambda: not owned.pids() & theirs, interval=LOOK_S)
    return time.monotonic() - woke


def _owned(kube: Kube, cluster: Cluster, tenant: str) -> Owned:
    machine = Machine(node_of(kube, cluster, tenant, "owner").simgpu_dir)
    (uuid,) = card_of(kube, tenant, "owner")
    card = machine.card(uuid).index

    def alone() -> int | None:
        """Whether only the owner is on the card; the node agent may just be measuring what a
        context costs."""
        pids = [one.pid for one in machine.processes(card).values() if one.pid]
        return pids[0] if len(pids) == 1 else None

    pid = wait_for("the owner alone on its card", alone)
    return Owned(tenant, machine, card, frozenset({pid}), _procs(pid))


def _procs(pid: int) -> Path:
    """The list of processes in the cgroup of this one."""
    inside = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[0].split(":", 2)[2].lstrip("/")
    files = [one.mountpoint / inside / "cgroup.procs" for one in hierarchies()]
    return next(file for file in files if file.exists())


def _name(pid: int) -> str:
    """The name of the process' program; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def _borrowers(tenant: str) -> Object:
    """One borrower for each card, made anew when it has lost its card."""
    made = deployment(tenant, "train", "mizar.spot/gpu", OWNERS)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", AT_FULL_LOAD]
    return made


def _is_owner(pod: Object) -> bool:
    return bool(pod["metadata"]["name"] == "owner")
