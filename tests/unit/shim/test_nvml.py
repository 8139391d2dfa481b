"""NVML reports only the container: its memory, its processes, how busy it keeps a card."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import simgpu
from support.waiting import PATIENCE_S, wait_for

from .conftest import run
from .shell import SUCCESS, Shell
from .slot import BUILD, MIB, Card, Slot, card_uuid
from .test_processes import NAMESPACE, may_unshare

SNIPPETS = [
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetAccountingPids",
    "nvmlDeviceGetAccountingStats",
    "nvmlDeviceGetAccountingStats_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetRunningProcessDetailList",
]
METERED = ["metered", "metered_at_once"]
REMEMBERED = ["asked_once", "read_when_changed"]


def test_every_snippet_is_run(env: dict[str, str]) -> None:
    assert set(run("nvml", env=env).stdout.split()) == {*SNIPPETS, *METERED, *REMEMBERED}


@pytest.mark.parametrize("way", ["link", "dlsym", "default"])
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet: str, way: str, env: dict[str, str]) -> None:
    run("nvml", snippet, way, env=env)


@pytest.mark.parametrize("pids", ["own", "host"])
@pytest.mark.parametrize("snippet", METERED)
def test_metered_time(snippet: str, pids: str, env: dict[str, str], slot: Slot) -> None:
    """In a PID namespace of its own, a container gets PIDs that it does not know."""
    slot.set_limits(*(Card(card_uuid(i), 64 * MIB, compute_mode=1) for i in range(2)))
    run("nvml", snippet, "dlsym", env=env | ({"FAKE_HOST_PIDS": "1"} if pids == "host" else {}))


@pytest.mark.parametrize("snippet", REMEMBERED)
def test_a_devices_card_is_asked_for_when_the_limits_change(
    snippet: str, env: dict[str, str]
) -> None:
    """Nor are the limits read, whose checksum takes as long as the rest, while their seq stays."""
    run("nvml", snippet, "dlsym", env=env)


# ---- on a simulated machine, as nvidia-smi and monitors see it ----

ASK = """
import json, pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps({n.nvmlDeviceGetUUID(h): {
    "total": n.nvmlDeviceGetMemoryInfo(h).total,
    "total_v2": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total,
    "used": n.nvmlDeviceGetMemoryInfo(h).used,
    "processes": [p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    "busy": n.nvmlDeviceGetUtilizationRates(h).gpu,
} for h in handles}))
"""


class Machine:
    """Three cards, of which a container sees 0 and 2; its limits name 2, 0."""

    def __init__(self, folder: Path, layout: dict[str, Any]) -> None:
        self.simulated = simgpu.create(folder / "machine", cards=3, context_bytes=10 * MIB)
        self.uuids = [card.uuid for card in self.simulated.cards]
        self.slot = Slot(folder / "slot", layout)
        self.limit(0)
        visible = folder / "dev"
        visible.mkdir()
        for name in ("nvidiactl", "nvidia0", "nvidia2"):
            (visible / name).touch()
        self.env = {
            **simgpu.environment(self.simulated.directory),
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            "SIMGPU_DEV": str(visible),
        }

    def limit(self, compute_mode: int) -> None:
        self.slot.set_limits(
            Card(self.uuids[2], 300 * MIB, compute_mode=compute_mode),
            Card(self.uuids[0], 100 * MIB, compute_mode=compute_mode),
        )

    def ask(self, under: Sequence[str] = ()) -> dict[str, Any]:
        """NVML's answers, by UUID, in NVML's order."""
        done = subprocess.run(
            [*under, sys.executable, "-c", ASK],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@pytest.fixture
def machine(tmp_path: Path, layout: dict[str, Any]) -> Machine:
    return Machine(tmp_path, layout)


ROOM = 2 * MIB  # kept for code that is loaded when it is first used


@pytest.mark.parametrize("order", ["", "1,0", "uuids", "1"])
def test_cards_are_known_by_uuid(order: str, machine: Machine) -> None:
    """CUDA's device 0 under CUDA_VISIBLE_DEVICES, whatever NVML calls it."""
    seen = [machine.uuids[0], machine.uuids[2]]
    if order == "uuids":
        order = ",".join(reversed(seen))
    first = seen[1] if order and order != "0" else seen[0]
    cuda = machine.env | ({"CUDA_VISIBLE_DEVICES": order} if order else {})
    with Shell(cuda) as shell:
        assert shell.alloc(60 * MIB) == SUCCESS
        limit = 300 * MIB if first == machine.uuids[2] else 100 * MIB
        assert shell.free_and_total() == (limit - 70 * MIB - ROOM, limit)
        told = machine.ask()
    assert list(told) == seen
    for uuid, total in ((machine.uuids[0], 100 * MIB), (machine.uuids[2], 300 * MIB)):
        used = 70 * MIB if uuid == first else 0
        assert told[uuid]["total"] == told[uuid]["total_v2"] == total
        assert told[uuid]["used"] == (used + ROOM if used else 0)
        assert told[uuid]["processes"] == ([used] if used else [])


@pytest.mark.skipif(not may_unshare, reason="no PID namespaces for this user")
@pytest.mark.parametrize("foreign", [1, 2])
@pytest.mark.parametrize("mode", [0, 1])
def test_in_a_pid_namespace_of_its_own_a_container_is_told_of_itself_alone(
    mode: int, foreign: int, machine: Machine
) -> None:
    """Where the driver lists no process, or all of the card by PIDs that mean nothing there."""
    for card in (0, 2):
        machine.simulated.state.set_number(card, "nvml_foreign", foreign)
    machine.limit(mode)
    with load(bare(machine)), Shell(machine.env, under=NAMESPACE) as shell:
        assert shell.alloc(60 * MIB) == SUCCESS
        told = machine.ask(NAMESPACE)[machine.uuids[0]]
        assert (told["processes"], told["busy"]) == ([70 * MIB], 0)


@pytest.mark.parametrize("mode", [0, 1])
def test_a_container_that_only_holds_memory_is_shown_as_not_busy(
    mode: int, machine: Machine
) -> None:
    machine.limit(mode)
    with Shell(machine.env) as shell:
        assert shell.alloc(MIB) == SUCCESS
        assert {card["busy"] for card in machine.ask().values()} == {0}


@contextmanager
def load(env: dict[str, str]) -> Iterator[int]:
    """A program that keeps card 0 as busy as it may: bench/workloads/load.c. Its PID."""
    with subprocess.Popen(
        [BUILD / "bench" / "load", "us_20"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin and process.stdout
            assert process.stdout.readline() == b"ready\n"
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield process.pid
        finally:
            process.kill()


def await_busy(machine: Machine, least: int, most: int) -> None:
    """Wait until NVML tells the container that it keeps card 0 this busy, in percent."""
    seen: list[int] = []

    def so_busy() -> bool:
        seen.append(machine.ask()[machine.uuids[0]]["busy"])
        return least <= seen[-1] <= most

    wait_for(f"{least} to {most} %", so_busy, PATIENCE_S, interval=0, explain=lambda: f"{seen}")


def bare(machine: Machine) -> dict[str, str]:
    """A neighbour, of which the container must not see anything."""
    return {name: value for name, value in machine.env.items() if name != "LD_PRELOAD"}


def test_a_share_is_what_it_is_busy(machine: Machine) -> None:
    machine.slot.set_limits(
        Card(machine.uuids[0], 100 * MIB, compute_mode=1, core_share=3000),
    )
    with load(machine.env):
        await_busy(machine, 25, 35)


def test_a_neighbours_work_is_not_told_of(machine: Machine) -> None:
    with load(bare(machine)):
        assert machine.ask()[machine.uuids[0]]["busy"] == 0
        with load(machine.env):
            await_busy(machine, 30, 70)


def test_a_process_that_asks_nvml_for_the_first_time_sees_the_containers_earlier_work(
    machine: Machine,
) -> None:
    """nvidia-smi asks once and ends: the process that charges the time keeps the figure that NVML
    reports."""
    machine.slot.set_limits(
        Card(machine.uuids[0], 100 * MIB, compute_mode=1, core_share=5000),
    )
    with load(machine.env):
        wait_for(
            "half a second of work",
            lambda: machine.slot.compute(0, "charged_ns") > 5e8,
            PATIENCE_S,
        )
        assert machine.ask()[machine.uuids[0]]["busy"] > 0
