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

import pytest

from bench.compute.rig import Case, Tenant, Work, run, throughput
from bench.figures import ROOT
from simgpu.machine import Busy
from support.waiting import PATIENCE_S

MS = 1_000_000
LOAD = "us_200"
SHARE = 20
LIMITED = (LOAD, "interrupted", "hiding")
SETTLING, WAKES = 300, 700


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
    assert all(_percent(work[SETTLING:]) < SHARE + 10 for work in alone)
    assert all(one.throughput_percent < SHARE + 20 for one in limited_runs)
    recorded = all(any(work) for work in (first, second, *alone))
    return recorded and all(one.throughput_percent > 0 for one in limited_runs)


def test_changes_of_context_are_no_throughput() -> None:
    assert throughput(Busy(100, 0, 1000), Busy(1000, 2, 2000)) == 90


BENCH = """
import multiprocessing, time
from bench.compute.rig import time_slicer
with time_slicer([]):
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(3600)
"""


def test_the_time_slicer_dies_with_a_bench_that_is_killed() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", BENCH], env=env, stdout=subprocess.PIPE) as bench:
        assert bench.stdout
        time_slicer = os.pidfd_open(int(bench.stdout.readline()))
        bench.kill()
    try:
        assert select.select([time_slicer], [], [], PATIENCE_S)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(time_slicer, signal.SIGKILL)
        os.close(time_slicer)
