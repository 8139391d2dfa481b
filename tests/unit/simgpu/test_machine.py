"""What one process sees of another, and what tests can do to the cards."""

import fcntl
import json
import os
import signal
import struct
from pathlib import Path

import pytest

import simgpu
from simgpu.__main__ import main
from unit.simgpu.harness import FLAGS, HERE, Bench, cached_program

MIB = 1 << 20
CONTEXT = 300  # MiB
MS = 1_000_000  # ns
CARD_LOCKS = 1 << 41  # where state.c has them in the state file
F_OFD_SETLK = 37  # Linux: a lock of the open file, not of the process

NVML = """
import json, pynvml as n
n.nvmlInit()
"""


def _hold(bench: Bench, mib: int, **more: str) -> str:
    process = bench.start("hold", str(mib), **more)
    assert process.stdout
    return process.stdout.readline().strip()


def _used(bench: Bench, card: int = 0) -> int:
    return bench.machine.cards[card].used // MIB


def _load(bench: Bench, kernels: int) -> None:
    """A process that has given the card that many kernels of 1 ms."""
    process = bench.start("load", str(kernels))
    assert process.stdout
    assert process.stdout.readline() == "loaded\n"


def test_uuids_follow_from_the_seed(tmp_path: Path) -> None:
    first = simgpu.create(tmp_path / "a", cards=3, seed="node-1")
    second = simgpu.create(tmp_path / "b", cards=3, seed="node-1")
    other = simgpu.create(tmp_path / "c", cards=3, seed="node-2")
    uuids = [card.uuid for card in first.cards]
    assert len(set(uuids)) == 3
    assert uuids == [card.uuid for card in second.cards]
    assert not set(uuids) & {card.uuid for card in other.cards}


def test_a_machine_is_never_made_over_another(tmp_path: Path) -> None:
    simgpu.create(tmp_path).close()
    with pytest.raises(OSError, match="exists"):
        simgpu.create(tmp_path)


def test_processes_share_the_memory_of_a_card(bench: Bench) -> None:
    assert _hold(bench, 10_000) == "CUDA_SUCCESS"
    assert _hold(bench, 6_000) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert _used(bench) == 10_000 + 2 * CONTEXT


def test_a_killed_process_leaves_no_byte_behind(bench: Bench) -> None:
    assert _hold(bench, 10_000) == "CUDA_SUCCESS"
    bench.started[0].send_signal(signal.SIGKILL)
    bench.started[0].wait()
    assert _used(bench) == 0
    assert _hold(bench, 16_000) == "CUDA_SUCCESS"


def test_processes_killed_while_they_allocate_block_nobody(bench: Bench) -> None:
    for _ in range(20):
        pair = [bench.start("churn"), bench.start("churn")]
        for process in pair:
            assert process.stdout and process.stdout.readline() == "churning\n"
        for process in pair:
            process.kill()
            process.wait()
    assert _hold(bench, 16_000) == "CUDA_SUCCESS"
    assert _used(bench) == 16_000 + CONTEXT


def test_a_watched_card_tells_by_how_much_it_held_too_much(bench: Bench) -> None:
    bench.machine.watch(0, 2 * CONTEXT * MIB + 100 * MIB)
    _hold(bench, 100)
    bench.started[0].kill()
    bench.started[0].wait()
    _hold(bench, 10)
    _hold(bench, 90)
    assert bench.machine.over(0) == (0, 0)
    _hold(bench, 2)
    bytes_over, times = bench.machine.over(0)
    assert (bytes_over, times) == ((CONTEXT + 2) * MIB, 2)  # its context, and its memory


def test_two_processes_get_half_of_the_card_each(bench: Bench) -> None:
    _load(bench, 1000)
    _load(bench, 1000)
    bench.machine.tick(1000 * MS)
    work = [process.work_ns for process in bench.machine.cards[0].processes]
    busy = bench.machine.busy(bench.machine.cards[0].uuid)
    assert abs(work[0] - work[1]) <= 1 * MS
    assert sum(work) == busy.work_ns
    # slices of 1 ms, with 50 us for each change
    assert busy.switches == pytest.approx(1000 / 1.05, rel=0.01)
    assert busy.work_ns == pytest.approx(1000 * MS / 1.05, rel=0.01)


def test_work_and_time_are_of_the_same_moment(bench: Bench) -> None:
    _load(bench, 1000)
    before, none = bench.machine.work(0)
    bench.machine.tick(10 * MS)
    now, works = bench.machine.work(0)
    pid = bench.started[0].pid
    assert (now - before, works[pid] - none[pid]) == (10 * MS, 10 * MS)


def test_a_recording_tells_for_whom_the_card_worked_in_each_millisecond(bench: Bench) -> None:
    _load(bench, 30)
    _load(bench, 10)
    recording = bench.machine.record(0, seconds=1)
    for _ in range(50):
        bench.machine.tick(1 * MS)
        recording.catch_up()
    first, second = (recording.close()[process.pid] for process in bench.started)
    # 10 turns of 1 ms each, then the first is alone; it began on an idle card
    change = 50_000
    assert (sum(first), sum(second)) == (30 * MS + 10 * change, 10 * MS + 10 * change)
    together = [a + b for a, b in zip(first, second, strict=True)]
    assert together[:41] == [MS] * 41
    assert not any(together[41:])


def test_a_process_alone_has_the_whole_card(bench: Bench) -> None:
    _load(bench, 100)
    bench.machine.tick(60 * MS)
    assert bench.machine.cards[0].processes[0].work_ns == 60 * MS
    bench.machine.tick(60 * MS)
    assert bench.machine.cards[0].processes[0].work_ns == 100 * MS


@pytest.mark.parametrize("multiprocessors", [8, 16, 58, 84, 108, 132, 142, 188])
def test_more_blocks_than_fit_take_more_waves(
    multiprocessors: int, snippets: Path, tmp_path: Path
) -> None:
    """One wave of 100 us, then two."""
    figures = {"sm_count": multiprocessors, "switch_ns": 0}
    with simgpu.create(tmp_path, cards=1, clock="stepped", **figures) as machine:
        bench = Bench(machine, snippets)
        assert bench.run("waves", str(multiprocessors)) == "300\n"


def test_the_work_of_a_dead_process_is_dropped(bench: Bench) -> None:
    _load(bench, 1000)
    bench.machine.tick(10 * MS)
    assert bench.machine.busy(bench.machine.cards[0].uuid).work_ns == 10 * MS
    bench.started[0].kill()
    bench.started[0].wait()
    bench.machine.tick(10 * MS)
    assert bench.machine.busy(bench.machine.cards[0].uuid).work_ns == 10 * MS


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("1,7,0", [1]),
        ("", []),
        ("-1", []),
        ("0,0", []),
        ("{uuid1},{uuid0}", [1, 0]),
        ("GPU-", []),
    ],
)
def test_visible_devices(
    snippets: Path, tmp_path: Path, listed: str | None, wanted: list[int]
) -> None:
    bench = Bench(simgpu.create(tmp_path, cards=3), snippets)
    uuids = [card.uuid for card in bench.machine.cards]
    more = {}
    if listed is not None:
        more["CUDA_VISIBLE_DEVICES"] = listed.format(uuid0=uuids[0], uuid1=uuids[1][:12])
    seen = bench.run("cards", **more).split()
    assert seen == ([uuids[i][4:].replace("-", "") for i in wanted] or ["none"])
    bench.end()


def test_a_card_that_somebody_is_busy_with_is_locked(bench: Bench) -> None:
    lock = struct.Struct("hhqqi")  # struct flock
    asked = lock.pack(fcntl.F_WRLCK, os.SEEK_SET, CARD_LOCKS + 1, 1, 0)
    file = os.open(bench.machine.directory / "state", os.O_RDWR)
    assert not bench.machine.is_locked()
    fcntl.fcntl(file, F_OFD_SETLK, asked)
    assert bench.machine.is_locked()
    os.close(file)
    assert not bench.machine.is_locked()


def test_a_card_without_a_device_node_is_not_there(bench: Bench) -> None:
    (bench.machine.directory / "dev" / "nvidia0").unlink()
    seen = bench.run("cards").split()
    assert seen == [bench.machine.cards[1].uuid[4:].replace("-", "")]
    out = bench.python(
        NVML + "print([n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByIndex(i))"
        " for i in range(n.nvmlDeviceGetCount())])"
    )
    assert json.loads(out) == [1]


def test_nvml_tells_memory_and_processes(bench: Bench) -> None:
    _hold(bench, 1000)
    out = bench.python(
        NVML
        + """
h = n.nvmlDeviceGetHandleByIndex(0)
memory = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(json.dumps({
    "uuid": n.nvmlDeviceGetUUID(h),
    "same": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
    "used": memory.used, "free": memory.free, "old": n.nvmlDeviceGetMemoryInfo(h).used,
    "processes": [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    "drawing": n.nvmlDeviceGetGraphicsRunningProcesses(h),
    "version": n.nvmlSystemGetCudaDriverVersion(),
}))"""
    )
    told = json.loads(out)
    used = (1000 + CONTEXT) * MIB
    assert told["uuid"] == bench.machine.cards[0].uuid
    assert told["used"] == told["old"] == used
    assert told["free"] == 16384 * MIB - used
    assert told["processes"] == [[bench.started[0].pid, used]]
    assert (told["same"], told["drawing"], told["version"]) == (0, [], 13000)


def test_nvml_tells_how_busy_the_last_period_was(bench: Bench) -> None:
    period = 166_666_667
    bench.machine.tick(period - bench.machine.busy(bench.machine.cards[0].uuid).now_ns % period)
    _load(bench, 50)
    bench.machine.tick(period)
    out = bench.python(
        NVML
        + """
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([n.nvmlDeviceGetUtilizationRates(h).gpu,
                  [(s.pid, s.smUtil) for s in n.nvmlDeviceGetProcessUtilization(h, 0)]]))"""
    )
    assert json.loads(out) == [30, [[bench.started[0].pid, 30]]]


def test_what_nvml_does_not_simulate_is_not_supported(bench: Bench) -> None:
    out = bench.python(
        NVML
        + """
try:
    n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(0), 1)
except n.NVMLError_NotSupported:
    print("not supported")"""
    )
    assert out == "not supported\n"


def test_nvml_reports_critical_errors_as_events(bench: Bench) -> None:
    out = bench.python(
        NVML
        + f"""
import sys; sys.path.insert(0, {str(Path(simgpu.__file__).parents[1])!r})
import simgpu
machine = simgpu.Machine({str(bench.machine.directory)!r})
events = n.nvmlEventSetCreate()
for i in range(2):
    n.nvmlDeviceRegisterEvents(
        n.nvmlDeviceGetHandleByIndex(i), n.nvmlEventTypeXidCriticalError, events)
try:
    n.nvmlEventSetWait_v2(events, 1)
except n.NVMLError_Timeout:
    print("nothing yet")
machine.set_health(machine.cards[1].uuid, 79)
told = n.nvmlEventSetWait_v2(events, 1000)
print(n.nvmlDeviceGetIndex(told.device), told.eventType, told.eventData)
"""
    )
    assert out == "nothing yet\n1 8 79\n"
    assert [card.healthy for card in bench.machine.cards] == [True, False]


def test_a_removed_card_is_lost_and_may_come_back(bench: Bench) -> None:
    out = bench.python(
        NVML
        + f"""
import sys; sys.path.insert(0, {str(Path(simgpu.__file__).parents[1])!r})
import simgpu
machine = simgpu.Machine({str(bench.machine.directory)!r})
uuid = machine.cards[0].uuid
card = n.nvmlDeviceGetHandleByIndex(0)
machine.remove(uuid)
for ask in (lambda: n.nvmlDeviceGetName(card), lambda: n.nvmlDeviceGetHandleByIndex(0)):
    try:
        ask()
    except n.NVMLError_GpuIsLost:
        print("lost")
print(n.nvmlDeviceGetCount())
n.nvmlShutdown(); n.nvmlInit()
print(n.nvmlDeviceGetCount())
machine.restore(uuid)
print(n.nvmlDeviceGetUUID(card) == uuid)
"""
    )
    assert out == "lost\nlost\n2\n1\nTrue\n"


def test_a_card_is_replaced_by_a_new_one(bench: Bench) -> None:
    machine = bench.machine
    old, other = (card.uuid for card in machine.cards)
    machine.set_health(old, 79)
    machine.remove(old)
    new = machine.replace(old)
    assert [card.uuid for card in machine.cards] == [new, other] and new != old
    assert machine.card(new).healthy
    assert machine.replace(new) not in (old, new)


@pytest.mark.parametrize("figure", ["temperature_celsius", "nvlinks_down", "remap_failed"])
def test_signs_of_a_fault_that_the_device_plugin_does_not_look_at(
    bench: Bench, figure: str
) -> None:
    machine = bench.machine
    machine.set_figure(machine.cards[1].uuid, figure, 92)
    assert [(one.healthy, one.ailing) for one in machine.health()] == [(True, False), (True, True)]


def test_the_command_line_shows_and_breaks_cards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def simgpu_command(*words: str) -> str:
        assert main(["--simgpu-dir", str(tmp_path), *words]) == 0
        return capsys.readouterr().out

    uuid = simgpu_command("create", "--cards", "1", "--seed", "x").split()[1]
    assert "xid 48" in simgpu_command("fail", uuid, "--xid", "48")
    assert "healthy" in simgpu_command("heal", uuid)
    assert "lost" in simgpu_command("remove", uuid)
    assert "0 / 16384 MiB  healthy" in simgpu_command("restore", uuid)
    assert main(["--simgpu-dir", str(tmp_path), "fail", "GPU-none"]) == 1


def test_cards_are_numbered_anew(bench: Bench) -> None:
    """Then a process sees another card through its device node; no card moves on the bus."""
    machine, node = bench.machine, bench.machine.directory / "dev" / "nvidia1"
    first, second = (card.uuid for card in machine.cards)
    look = (
        NVML + "h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]\n"
        "print(json.dumps([[n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetMinorNumber(h), "
        "n.nvmlDeviceGetPciInfo(h).bus] for h in h]))"
    )
    assert json.loads(bench.python(look)) == [[first, 0, 1], [second, 1, 2]]
    machine.renumber(second)
    node.unlink()
    assert json.loads(bench.python(look)) == [[second, 0, 2]]


def test_a_card_comes_back_by_a_number_that_was_free(bench: Bench) -> None:
    """A process that has the device node of the card's old number does not see the card any
    more."""
    machine, dev = bench.machine, bench.machine.directory / "dev"
    first, second = (card.uuid for card in machine.cards)
    look = (
        NVML + "print(json.dumps([n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) "
        "for i in range(n.nvmlDeviceGetCount())]))"
    )
    machine.set_minor(first, 2)
    assert sorted(json.loads(bench.python(look))) == sorted([first, second])
    (dev / "nvidia2").unlink()
    assert json.loads(bench.python(look)) == [second]


def test_a_launch_to_an_idle_card_looks_at_it_once(snippets: Path, tmp_path: Path) -> None:
    """A look waits for a lock of the machine's file, which takes about as long as the shortest
    kernels: with two, a program could not fill a card that it has once let idle."""
    launches, others = 2000, 100
    source = HERE.parent / "locks.c"
    counter = cached_program("locks.so", [source], [*FLAGS, "-shared", "-fPIC", str(source)])
    bench = Bench(simgpu.create(tmp_path / "machine", cards=1, profile="ideal"), snippets)
    try:
        waits = int(bench.run("sparse", str(launches), LD_PRELOAD=str(counter)))
    finally:
        bench.end()
    assert launches / 2 < waits <= launches + others
