"""NVIDIA's own nvidia-smi in a share container of simulated cards shows the share as the card."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nvidia_driver
import simgpu
from support.waiting import PATIENCE_S
from unit.shim.slot import BUILD, MIB, Card, Slot, load_layout
from unit.simgpu.harness import compile_sample

CARD_MIB, SHARE_MIB, HELD_MIB = 16384, 4096, 100
LAST_BY_PUBLISHED_FUNCTION = 470
"""Of the releases here, the last one whose nvidia-smi reads processes by a published function.
Later ones call one of nvmlInternalGetExportTable, which neither the shim nor simulated cards have.
"""


@dataclass
class Container:
    """A share of the only card of a node, whose driver has the version of nvidia-smi."""

    driver: nvidia_driver.Driver
    machine: simgpu.Machine
    slot: Slot

    @property
    def node(self) -> dict[str, str]:
        """The environment of a process on the node."""
        return {**os.environ, **simgpu.environment(self.machine.directory)}

    @property
    def env(self) -> dict[str, str]:
        shim = str(BUILD / "testing" / "libmizar.so")
        return {**self.node, "LD_PRELOAD": shim, "MIZAR_DIR": str(self.slot.path)}

    def smi(self, *arguments: str, on_node: bool = False) -> str:
        """What nvidia-smi prints. It has to end well."""
        done = subprocess.run(
            [self.driver.smi, *arguments],
            env=self.node if on_node else self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    def query(self, *fields: str, on_node: bool = False) -> list[list[str]]:
        """The fields of each card, by --query-gpu."""
        form = "--format=csv,noheader,nounits"
        lines = self.smi(f"--query-gpu={','.join(fields)}", form, on_node=on_node).splitlines()
        return [line.split(", ") for line in lines]


@pytest.fixture
def container(driver: nvidia_driver.Driver, tmp_path: Path) -> Iterator[Container]:
    with simgpu.create(
        tmp_path / "machine", cards=1, memory_mib=CARD_MIB, driver_version=driver.version
    ) as machine:
        slot = Slot(tmp_path / "slot", load_layout())
        slot.set_limits(Card(machine.cards[0].uuid, SHARE_MIB * MIB, compute_mode=1))
        yield Container(driver, machine, slot)


@pytest.fixture
def holder(container: Container) -> Iterator[int]:
    """The PID of a program of the container that holds HELD_MIB of the card and a context."""
    command = [compile_sample(), "hold", str(HELD_MIB)]
    with subprocess.Popen(command, env=container.env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_on_the_node_it_shows_the_card(container: Container) -> None:
    ((name, total, used),) = container.query("name", "memory.total", "memory.used", on_node=True)
    assert (name, total, used) == ("NVIDIA A100-SXM4-40GB", str(CARD_MIB), "0")


def test_the_share_is_shown_as_the_card(container: Container, holder: int) -> None:
    ((total, used, free),) = container.query("memory.total", "memory.used", "memory.free")
    assert int(total) == SHARE_MIB
    assert HELD_MIB <= int(used) < CARD_MIB - SHARE_MIB
    assert abs(SHARE_MIB - int(used) - int(free)) <= 1  # each is rounded
    assert f" {used}MiB / {SHARE_MIB}MiB " in " ".join(container.smi().split())


def test_its_report_has_the_share(container: Container, holder: int) -> None:
    report = container.smi("-q", "-d", "MEMORY")
    _, total = next(line.split(":") for line in report.splitlines() if "Total" in line)
    assert total.strip() == f"{SHARE_MIB} MiB"


def test_the_containers_processes_are_shown(container: Container, holder: int) -> None:
    if container.driver.release.number > LAST_BY_PUBLISHED_FUNCTION:
        return
    form = "--format=csv,noheader,nounits"
    (line,) = container.smi("--query-compute-apps=pid,used_memory", form).splitlines()
    pid, used = line.split(", ")
    assert int(pid) == holder
    assert HELD_MIB <= int(used) < SHARE_MIB
