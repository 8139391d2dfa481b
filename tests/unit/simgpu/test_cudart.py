"""NVIDIA's own runtime on the simulated driver, as nvcc's programs use it."""

from pathlib import Path

import pytest

from unit.simgpu.cudart import Build, builds
from unit.simgpu.harness import Bench

CARD = "NVIDIA A100-SXM4-40GB 8.0 16384"
CONTEXT_MIB = 300
WAYS = ["plain", "ex", "cooperative", "graph", "library"]


@pytest.fixture(params=builds(), ids=str, scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    build: Build = request.param
    return build.program()


def run(bench: Bench, *command: str | Path) -> list[str]:
    done = bench.call(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_does_what_programs_do(stepped: Bench, program: Path) -> None:
    assert run(stepped, program, "tour") == [CARD] * len(stepped.machine.cards)


def test_memory_is_taken_until_there_is_none(stepped: Bench, program: Path) -> None:
    rest = 16384 - CONTEXT_MIB
    assert run(stepped, program, "memory", "256") == [
        f"free {rest} total 16384",
        f"pieces {rest // 256} then cudaErrorMemoryAllocation",
        f"free {rest % 256} total 16384",
        f"free {rest} total 16384",
    ]


@pytest.mark.parametrize("way", WAYS)
def test_kernels_take_their_time(stepped: Bench, program: Path, way: str) -> None:
    card = stepped.machine.cards[0].uuid
    before = stepped.machine.busy(card).work_ns
    run(stepped, program, "launch", way)
    assert stepped.machine.busy(card).work_ns - before == 40_000_000


def test_a_device_that_was_reset_begins_anew(stepped: Bench, program: Path) -> None:
    assert len(set(run(stepped, program, "reset"))) == 1
    assert stepped.machine.cards[0].used == 0
