"""The bench of compute shares can tell good from bad: roughly, since the machine may be busy."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from bench.compute.rig import Case, Tenant, Work, run
from bench.compute.windows import woken_after
from bench.figures import ROOT

MS = 1_000_000
LOAD = "us_200"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)


def _percent(work: Work, since: int = 300) -> float:
    later = work[since:]
    return sum(later) / len(later) / MS * 100


def test_without_the_shim_two_share_alike_and_with_it_as_they_are_told() -> None:
    bare = Case("bare", (Tenant((LOAD,), mode=None),) * 2)
    alone = Case("alone", (Tenant((LOAD, LOAD), 20, "Hard"),))
    (first, second), (limited,) = run([bare, alone], 1.3)
    assert abs(_percent(first) - _percent(second)) < 10
    assert _percent(first) + _percent(second) > 80
    assert 12 < _percent(limited) < 28


def test_who_needs_less_than_its_share_pays_for_what_it_used() -> None:
    """Not for the time in which the card waited for it: or it would be slowed."""
    bare, limited = (Case(str(mode), (Tenant(("eager",), 50, mode),)) for mode in (None, "Hard"))
    ((alone,), (work,)) = run([bare, limited], 1.3)
    assert _percent(work) > 0.7 * _percent(alone)


CHANGED = Tenant((LOAD,), 60, changes=((0.7, 20), (1.4, 60)))
BORROWER = Tenant((LOAD,), 30, "Soft")
OWNER = Tenant((LOAD,), 70, "Hard", wakes=1)
LAST = Tenant((LOAD,), 0, "Soft")  # has what others leave, and nothing besides
FIRST = Tenant((LOAD,), 50, "Soft", wakes=1, priority=1)


def test_shares_follow_what_is_changed_and_who_wakes() -> None:
    """Nobody has more than he may; that some have less is the machine's doing, as far as that."""
    tenants = (CHANGED,), (BORROWER, OWNER), (LAST, FIRST)
    (changed,), (borrower, owner), (last, first) = run([Case("", each) for each in tenants], 2)
    assert [8 < _percent(changed[:to], to - 300) < 32 for to in (700, 1400, 2000)] == [0, 1, 0]
    assert 35 < _percent(changed, 1700) < 72
    for lent in (borrower, last):
        assert _percent(lent[:1000], 700) > 75
    for woken in (owner, first):
        assert woken_after(woken, 50, 1000) < 400
    assert _percent(borrower, 1300) < 42
    assert _percent(last, 1300) < 5


@pytest.mark.parametrize("load", ["copying", "calling_back", "prefetching"])
def test_nobody_pays_for_what_holds_a_stream_up(load: str) -> None:
    """It is no work of the card's, also between launches that are measured together."""
    bare, limited = (Case(str(mode), (Tenant((load,), 30, mode),)) for mode in (None, "Hard"))
    ((alone,), (work,)) = run([bare, limited], 1.3)
    assert _percent(work) > 0.7 * _percent(alone)


def test_what_might_hold_a_stream_up_makes_no_work_free() -> None:
    ((work,),) = run([Case("interrupted", (Tenant(("interrupted",), 20, "Hard"),))], 1.3)
    assert 12 < _percent(work) < 28


def test_no_work_is_hidden_in_what_was_granted() -> None:
    ((work,),) = run([Case("hiding", (Tenant(("hiding",), 20, "Hard"),))], 1.8)
    assert _percent(work) < 32


BENCH = """
import multiprocessing, time
from bench.compute.rig import steward
with steward([]):
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(60)
"""


def test_the_steward_dies_with_a_bench_that_is_killed() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", BENCH], env=env, stdout=subprocess.PIPE) as bench:
        assert bench.stdout
        steward = os.pidfd_open(int(bench.stdout.readline()))
        bench.kill()
    try:
        assert select.select([steward], [], [], 10)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(steward, signal.SIGKILL)
        os.close(steward)
