"""The bench of compute shares: what its machinery does on any machine, however busy that is.

Whether a share is as it should be, only the bench itself tells, which knows what time the machine
lost: `make bench AREA=compute`. These tests show only that no container has more than its share,
which also holds for one that waits.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bench.compute.rig import Case, Tenant, Work, division, run, throughput
from bench.figures import ROOT
from simgpu.machine import Busy
from support.node import Division
from support.waiting import PATIENCE_S

MS = 1_000_000
LOAD = "us_200"
SHARE = 20
LIMITED = (LOAD, "interrupted", "hiding")
SETTLING, WAKES = 300, 700  # ms


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)


def _percent(work: Work) -> float:
    return sum(work) / len(work) / MS * 100


def test_the_work_of_each_tenant_is_recorded_and_nobody_has_more_than_the_share() -> None:
    """Nobody has more by work of its own, by work hidden between other things, or by what was
    granted."""
    until, worked = time.monotonic() + PATIENCE_S, False
    while not worked:
        assert time.monotonic() < until, "some tenant never had a processor"
        worked = _worked_within_the_shares()


def _worked_within_the_shares() -> bool:
    """Whether all that had work to do did some, in a run in which nobody has too much."""
    late = Tenant((LOAD,), mode=None, wakes=WAKES / 1000)
    bare = Case("bare", (Tenant((LOAD,), mode=None), late))
    limited = [Case(load, (Tenant((load,), SHARE),)) for load in LIMITED]
    together, *limited_runs = run([bare, *limited], 1.8)
    (first, second), alone = together.works, [one.works[0] for one in limited_runs]
    assert len({len(work) for work in (first, second, *alone)}) == 1
    assert all(a + b <= MS for a, b in zip(first, second, strict=True))
    assert not any(second[:WAKES])
    percents = {load: _percent(work[SETTLING:]) for load, work in zip(LIMITED, alone, strict=True)}
    assert max(percents[load] for load in (LOAD, "interrupted")) < SHARE + 10, percents
    # What a program hides is learned after its long kernels begin: late on a busy machine, where it
    # once took 170 ms more than its share until then.
    assert percents["hiding"] < 2 * SHARE, percents
    assert all(one.throughput_percent < SHARE + 20 for one in limited_runs)
    recorded = all(any(work) for work in (first, second, *alone))
    return recorded and all(one.throughput_percent > 0 for one in limited_runs)


def test_changes_of_context_are_no_throughput() -> None:
    assert throughput(Busy(100, 0, 1000), Busy(1000, 2, 2000)) == 90


@pytest.mark.parametrize(
    ("shares", "devices"), [((30, 70), 10), ((50, 50), 2), ((100 / 16,) * 16, 16), ((0, 50), 2)]
)
def test_a_card_is_divided_as_its_tenants_shares_need(
    shares: tuple[float, ...], devices: int
) -> None:
    case = Case("case", tuple(Tenant((LOAD,), share, "Soft") for share in shares))
    assert division(case) == Division(devices, compute="Soft")


def test_a_card_whose_tenants_lack_the_shim_is_not_shared() -> None:
    assert division(Case("bare", (Tenant((LOAD,), mode=None),))) is None


def test_a_share_that_changes_and_a_lent_card() -> None:
    """The agent writes changed limits while the container works, and a borrower works as long as
    the owner does nothing."""
    until, seen = time.monotonic() + PATIENCE_S, False
    while not seen:
        assert time.monotonic() < until, "some tenant never had a processor"
        seen = _saw_the_change_and_the_borrower()


def _saw_the_change_and_the_borrower() -> bool:
    """Whether all that had work to do did some, in a run in which nobody has too much."""
    changing = Case("changing", (Tenant((LOAD,), 80, changes=((0.6, SHARE),)),))
    lent = Case("lent", (Tenant((LOAD,), 0, "Soft"), Tenant((LOAD,), 50, "Hard", wakes=0.6)))
    one, two = run([changing, lent], 1.8)
    (changed,), (borrower, owner) = one.works, two.works
    assert _percent(changed[1000:]) < SHARE + 10
    assert not any(owner[:600])
    assert _percent(borrower[1000:]) < 10 or not any(owner[1000:])
    lent_time = _percent(borrower[100:600])
    return _percent(changed[:600]) > SHARE + 20 and lent_time > 20 and any(owner[600:])


BENCH = """
import sys, time
from pathlib import Path
import simgpu
from support.node import Node
folder = Path(sys.argv[1])
with simgpu.create(folder / "machine") as machine, Node(folder, machine, [None, None]) as node:
    print(node.pid, flush=True)
    time.sleep(3600)
"""


def test_the_node_agent_ends_with_a_bench_that_is_killed(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BENCH, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as bench:
        assert bench.stdout
        agent = os.pidfd_open(int(bench.stdout.readline()))
        bench.kill()
    try:
        assert select.select([agent], [], [], PATIENCE_S)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent, signal.SIGKILL)
        os.close(agent)
