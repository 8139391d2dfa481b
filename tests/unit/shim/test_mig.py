"""A container with a MIG device: its limits name the device, not the card that the device is part
of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simgpu
from support.waiting import PATIENCE_S

from .shared_clock import running, share
from .shell import SUCCESS, Shell
from .slot import BUILD, MIB, Card, Slot

LIMIT = 300 * MIB
CONTEXT, ROOM = 10 * MIB, 2 * MIB
SPAN_NS = 800_000_000
OUT_OF_MEMORY = 2
ASK = """
import json, pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
own = n.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
try:
    busy = n.nvmlDeviceGetUtilizationRates(own).gpu
except n.NVMLError as error:
    busy = str(error)
memory = n.nvmlDeviceGetMemoryInfo(own)
print(json.dumps({
    "uuid": n.nvmlDeviceGetUUID(own),
    "total": memory.total,
    "used": memory.used,
    "free on the card": n.nvmlDeviceGetMemoryInfo(card).free,
    "processes": [one.usedGpuMemory for one in n.nvmlDeviceGetComputeRunningProcesses(own)],
    "busy": busy,
}))
"""


class Container:
    """A container that sees the second of two MIG devices, which its limits name."""

    def __init__(self, folder: Path, layout: dict[str, Any]) -> None:
        self.machine = simgpu.create(
            folder / "machine", cards=1, context_bytes=CONTEXT, clock="stepped"
        )
        self.neighbour, self.own = self.machine.divide(
            self.machine.cards[0].uuid, "1g.5gb", "2g.10gb"
        )
        self.slot = Slot(folder / "slot", layout)
        self.slot.set_limits(Card(self.own, LIMIT))
        self.folder = folder / "dev"
        self.show(self.own)
        self.env = {
            **simgpu.environment(self.machine.directory),
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            "SIMGPU_DEV": str(self.folder),
        }

    def show(self, uuid: str) -> None:
        """Give the container the device nodes of a MIG device."""
        nodes = next(one.nodes for one in self.machine.health() if one.uuid == uuid)
        for name in ("nvidiactl", *nodes):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()

    def ask(self) -> dict[str, Any]:
        """What NVML tells a monitor in the container."""
        command = [sys.executable, "-c", ASK]
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Container:
    return Container(tmp_path, layout)


def test_memory_is_limited_on_the_mig_device(container: Container) -> None:
    with Shell(container.env) as shell:
        assert shell.alloc(60 * MIB) == SUCCESS
        assert shell.free_and_total() == (LIMIT - CONTEXT - 60 * MIB - ROOM, LIMIT)
        assert shell.alloc(LIMIT) == OUT_OF_MEMORY
        used = {one.uuid: one.used for one in container.machine.instances}
        assert used[container.own] >= 60 * MIB and not used[container.neighbour]


def test_nvml_tells_of_the_container_on_it_and_nothing_of_the_card(container: Container) -> None:
    with Shell(container.env) as shell:
        assert shell.alloc(60 * MIB) == SUCCESS
        told = container.ask()
    taken = 60 * MIB + CONTEXT
    assert (told["uuid"], told["total"]) == (container.own, LIMIT)
    assert taken <= told["used"] <= taken + ROOM
    assert len(told["processes"]) == 1
    assert told["busy"] == "Not Supported", "as the driver says"
    assert told["free on the card"] == 0, "which is not the container's"


def test_its_share_of_the_mig_devices_time(container: Container) -> None:
    """The shim measures it, without NVML."""
    container.slot.set_limits(Card(container.own, LIMIT, compute_mode=1, core_share=3000))
    env = {"SIMGPU_DEV": str(container.folder)}
    with running(container.machine, container.slot, "bench/load", "us_20", **env):
        share(container.machine, SPAN_NS, uuid=container.own)
        had = share(container.machine, SPAN_NS, uuid=container.own)
    assert had == pytest.approx(0.3, abs=0.003)


def test_another_mig_device_of_the_card_is_refused(container: Container) -> None:
    """A device that a container sees by mistake, for example by one device node too many."""
    container.show(container.neighbour)
    with Shell({**container.env, "CUDA_VISIBLE_DEVICES": container.neighbour}) as shell:
        assert shell.alloc(MIB) != SUCCESS
    assert not any(one.used for one in container.machine.instances)
