"""Programs of NVIDIA's own runtime under the shim: limited and metered as any other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import simgpu
from support.waiting import PATIENCE_S
from unit.simgpu.cudart import Build, builds

from .slot import BUILD, MIB, Card, Slot

LIMIT_MIB, CONTEXT_MIB, KEPT_MIB = 2048, 300, 2  # kept for the next use of code
WORK_NS = 40_000_000


@dataclass
class Container:
    """One card, of which the container may have a part of the memory and all of the time."""

    machine: simgpu.Machine
    slot: Slot

    def run(self, *command: str | Path, loading: str = "LAZY") -> list[str]:
        env = {
            "CUDA_MODULE_LOADING": loading,
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            **simgpu.environment(self.machine.directory),
        }
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Iterator[Container]:
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=CONTEXT_MIB * MIB) as machine:
        slot = Slot(tmp_path / "slot", layout)
        uuid, limit = machine.cards[0].uuid, LIMIT_MIB * MIB
        slot.set_limits(Card(uuid, limit, context_bytes=CONTEXT_MIB * MIB, compute_mode=1))
        machine.watch(0, limit)
        yield Container(machine, slot)


@pytest.fixture(params=builds(), ids=str, scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    build: Build = request.param
    return build.program()


def test_a_program_does_what_programs_do(container: Container, program: Path) -> None:
    card = container.machine.cards[0]
    assert container.run(program, "tour") == [f"{card.name} 8.0 {LIMIT_MIB}"]


def test_memory_is_taken_until_the_limit(container: Container, program: Path) -> None:
    rest = LIMIT_MIB - CONTEXT_MIB - KEPT_MIB
    assert container.run(program, "memory", "64") == [
        f"free {rest} total {LIMIT_MIB}",
        f"pieces {rest // 64} then cudaErrorMemoryAllocation",
        f"free {rest % 64} total {LIMIT_MIB}",
        f"free {rest} total {LIMIT_MIB}",
    ]
    assert container.machine.over(0) == (0, 0)


@pytest.mark.parametrize("way", ["plain", "ex", "cooperative", "graph", "library"])
def test_kernels_are_charged(container: Container, program: Path, way: str) -> None:
    container.run(program, "launch", way)
    charged = container.slot.compute(0, "charged_ns")
    # How exactly is measured by benchmarks: here the machine may be busy with other things.
    assert 0.5 * WORK_NS <= charged <= 1.5 * WORK_NS


def test_a_device_that_was_reset_gives_all_back(container: Container, program: Path) -> None:
    """Eagerly: for code that comes late room would be kept, since nobody here asks NVML for it."""
    free = [line.split()[1] for line in container.run(program, "reset", loading="EAGER")]
    assert int(free[0]) > LIMIT_MIB / 2
    assert free == free[:1] * 3
    assert container.slot.used(0) == 0
