"""What makes a simulated card harsh, one figure after another."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import simgpu
from simgpu.machine import HARSH
from unit.simgpu.harness import NAMESPACE, Bench

MIB = 1 << 20
MS = 1_000_000  # ns
CONTEXT = 300 * MIB

Make = Callable[..., Bench]

LISTS = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([len(n.nvmlDeviceGetComputeRunningProcesses(h)) for _ in range(%d)]))
"""

PIDS = """
import json, subprocess, sys, pynvml as n
pipe = subprocess.PIPE
with subprocess.Popen([sys.argv[1], "hold", "1"], stdin=pipe, stdout=pipe) as held:
    held.stdout.readline()
    n.nvmlInit()
    h = n.nvmlDeviceGetHandleByIndex(0)
    pids = [one.pid for one in n.nvmlDeviceGetComputeRunningProcesses(h)]
    held.kill()
print(json.dumps([held.pid, pids]))
"""
ASKS = """
import time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
began = time.monotonic_ns()
for _ in range(%d):
    n.nvmlDeviceGetMemoryInfo(h)
print(time.monotonic_ns() - began)
"""


@pytest.fixture
def make(snippets: Path, tmp_path: Path) -> Iterator[Make]:
    """A machine with one card of those figures, whose clock is the test's or stepped."""
    made = []

    def create(clock: str, **figures: int) -> Bench:
        machine = simgpu.create(tmp_path / "machine", cards=1, clock=clock, **figures)  # type: ignore[arg-type]
        made.append(Bench(machine, snippets))
        return made[-1]

    yield create
    for bench in made:
        bench.end()


def _start(bench: Bench, *command: str) -> int:
    """The PID of a snippet that has said its line."""
    process = bench.start(*command)
    assert process.stdout and process.stdout.readline()
    return process.pid


def test_a_profile_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMGPU_PROFILE", "harsh")
    with simgpu.create(tmp_path / "harsh", cards=1, slice_ns=7) as machine:
        found = {name: machine.state.number(0, name) for name in HARSH}
    assert found == HARSH | {"slice_ns": 7}
    monkeypatch.setenv("SIMGPU_PROFILE", "hash")
    with pytest.raises(KeyError, match="'hash'"):
        simgpu.create(tmp_path / "other")


def test_a_kernel_that_runs_is_not_interrupted(make: Make) -> None:
    """Slices of 1 ms, a change of 50 us; a kernel of 100 us is the longest wait beyond a slice."""
    bench = make("manual", uninterrupted=1, slice_ns=950_000)
    pids = [_start(bench, "load", "5") for _ in range(2)]
    worked = []
    for _ in range(4):
        bench.machine.tick(1 * MS)
        works = bench.machine.work(0)[1]
        worked.append([works[pid] / MS for pid in pids])
    # kernels of 1 ms: each turn is a whole one, as if slices were of 1 ms
    assert worked[0] == [1, 0]
    assert worked[1] == [1, 0.95]
    assert worked[2] == [1.9, 1]


def test_slices_and_switches_vary(make: Make) -> None:
    bench = make("manual", slice_spread_ns=1 * MS, switch_spread_ns=500_000)
    for _ in range(2):
        _start(bench, "load", "1000")
    bench.machine.tick(1000 * MS)
    busy = bench.machine.busy(bench.machine.cards[0].uuid)
    # 1 to 2 ms of work, then 50 to 550 us
    assert 1000 / 2.55 <= busy.switches <= 1000 / 1.05
    assert busy.switches == pytest.approx(1000 / 1.8, rel=0.05)
    assert 1000 * MS - busy.work_ns == pytest.approx(busy.switches * 300_000, rel=0.1)


def test_a_launch_waits_while_the_queue_is_full(make: Make) -> None:
    bench = make("stepped", queue_kernels=4)
    bench.run("queue", "10")
    worked = bench.machine.busy(bench.machine.cards[0].uuid).work_ns
    assert worked == pytest.approx(600_000, abs=10_000)


def test_events_show_a_coarse_clock_that_drifts(make: Make) -> None:
    bench = make("stepped", event_grain_ns=512, event_drift_ppm=20_000)
    took = [int(line) for line in bench.run("durations").split()]
    assert all(ns % 512 in (0, 1, 511) for ns in took)  # as far as a float of milliseconds tells
    assert all(abs(ns - 102_000) <= 25_000 for ns in took)
    assert max(took) > 101_000


def test_clocks_make_kernels_longer(make: Make) -> None:
    bench = make("stepped", clock_swing_percent=30)
    took = [int(line) for line in bench.run("durations").split()]
    assert all(100_000 <= ns <= 130_500 for ns in took)
    assert len(set(took)) > 3


def test_copies_take_bandwidth_from_kernels(make: Make) -> None:
    bench = make("stepped", copying_percent=20)
    assert bench.run("copying").split() == ["120", "100"]


@pytest.mark.parametrize(
    ("figures", "least"),
    [
        ({"launch_ns": 40_000}, 1000 * 40_000),  # so short that it is spent busy
        ({"launch_ns": 200_000}, 1000 * 200_000),
        ({"launch_spread_ns": 400_000}, 1000 * 150_000),  # 200,000 ns on average
    ],
)
def test_a_launch_takes_time_of_its_thread(make: Make, figures: dict[str, int], least: int) -> None:
    assert int(make("real", **figures).run("launches", "1", "1000")) >= least


def test_the_first_launch_of_each_function_takes_more(make: Make) -> None:
    bench = make("real", first_launch_ns=50 * MS)
    assert int(bench.run("launches", "4", "1")) >= 200 * MS


@pytest.mark.parametrize(
    ("figures", "least"),
    [({"event_ns": 200_000}, 1000 * 200_000), ({"event_spread_ns": 400_000}, 1000 * 150_000)],
)
def test_recording_an_event_takes_time_of_its_thread(
    make: Make, figures: dict[str, int], least: int
) -> None:
    assert int(make("real", **figures).run("records", "1000")) >= least


@pytest.mark.parametrize(
    ("figures", "least"),
    [({"nvml_ns": 10 * MS}, 20 * 10 * MS), ({"nvml_spread_ns": 20 * MS}, 20 * 5 * MS)],
)
def test_nvml_takes_its_time(make: Make, figures: dict[str, int], least: int) -> None:
    assert int(make("real", **figures).python(ASKS % 20)) >= least


def test_the_memory_of_the_dead_comes_back_later(make: Make) -> None:
    bench = make("manual", return_ns=300 * MS)
    _start(bench, "hold", "1000")
    bench.started[0].kill()
    bench.started[0].wait()
    held = 1000 * MIB + CONTEXT
    assert bench.machine.cards[0].used == held
    bench.machine.tick(299 * MS)
    assert bench.machine.cards[0].used == held
    assert json.loads(bench.python(LISTS % 1)) == [0]
    bench.machine.tick(1 * MS)
    assert bench.machine.cards[0].used == 0


def test_scattered_memory_can_be_had_in_pieces_only(make: Make) -> None:
    free = 16384 - CONTEXT // MIB
    bench = make("stepped", scattered_bytes=64 * MIB)
    assert bench.run("pieces", str(free - 62)) == f"2 {free - 62}\n"
    assert bench.run("pieces", str(free - 64)) == "0 64\n"


def test_lists_of_processes_lack_one_now_and_then(make: Make) -> None:
    bench = make("manual", nvml_missing=3)
    for _ in range(2):
        _start(bench, "hold", "1")
    assert json.loads(bench.python(LISTS % 6)) == [2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize("foreign", [0, 1, 2])
def test_a_process_in_another_pid_namespace_is_told_its_own_pid_no_pids_or_strange_pids(
    make: Make, foreign: int
) -> None:
    """On the node itself, PIDs are as they are."""
    bench = make("manual", nvml_foreign=foreign)
    pid = _start(bench, "hold", "1")
    inside = bench.call(*NAMESPACE, sys.executable, "-c", PIDS, bench.snippets)
    assert inside.returncode == 0, inside.stderr
    own, pids = json.loads(inside.stdout)
    if foreign == 2:
        assert len(pids) == 2 and min(pids) >= 1 << 22
    else:
        assert pids == ([own] if foreign == 0 else [])
    own, pids = json.loads(bench.call(sys.executable, "-c", PIDS, bench.snippets).stdout)
    assert sorted(pids) == sorted([own, pid])


def test_nvml_tells_of_memory_as_it_was(make: Make) -> None:
    bench = make("manual", nvml_stale_ns=20 * MS)
    look = """
import json, os, subprocess, sys, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
before = n.nvmlDeviceGetMemoryInfo(h).used
print("ready", flush=True)
sys.stdin.readline()
print(n.nvmlDeviceGetMemoryInfo(h).used - before, flush=True)
sys.stdin.readline()
print(n.nvmlDeviceGetMemoryInfo(h).used - before, flush=True)
"""
    with bench.start_python(look) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        _start(bench, "hold", "1")
        answers = []
        for _ in range(2):
            process.stdin.write("\n")
            process.stdin.flush()
            answers.append(int(process.stdout.readline()))
            bench.machine.tick(20 * MS)
    assert answers == [0, CONTEXT + 2 * MIB]
