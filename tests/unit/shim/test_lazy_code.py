"""Code that comes when it is first used, with the node agent's part: no limit is ever passed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .agent import Agent
from .slot import BUILD, MIB, Card, Slot

CONTEXT = 20 * MIB
LIMIT = 200 * MIB
USES = 300


@pytest.mark.parametrize("processes", [1, 3])
def test_what_nvml_says_never_passes_the_limit(
    processes: int, tmp_path: Path, layout: dict[str, Any]
) -> None:
    slot = Slot(tmp_path / "slot", layout)
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=CONTEXT) as machine:
        slot.set_limits(Card(machine.cards[0].uuid, LIMIT, context_bytes=CONTEXT))
        machine.watch(0, LIMIT)
        env = {
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(slot.path),
            **simgpu.environment(machine.directory),
        }
        with Agent(slot, machine) as agent:
            running = [begin(seed, env) for seed in range(1, processes + 1)]
            for process in running:
                agent.adopt(process.pid)
            refused = finish(running)
        assert machine.over(0) == (0, 0), refused


def begin(seed: int, env: dict[str, str]) -> subprocess.Popen[str]:
    """One that has made its context, and waits."""
    command, pipe = [BUILD / "tests" / "lazy", str(seed), str(USES)], subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def finish(running: list[subprocess.Popen[str]]) -> list[int]:
    """Lets them go on to their ends. How often each was refused a function."""
    for process in running:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return [int(refused) for refused in said]
