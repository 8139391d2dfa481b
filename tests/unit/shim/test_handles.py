"""Handles that one thread destroys, and captures that it makes, while other threads use them.

The simulated driver ends a process that uses a destroyed handle, as a driver would crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .conftest import run
from .slot import BUILD, MIB, Card, Slot

CASES = ["pools", "present_pool", "streams", "captures", "many_pools"]


@pytest.fixture
def env(tmp_path: Path, layout: dict[str, Any]) -> Iterator[dict[str, str]]:
    """A container with 1 GiB of a card whose time is metered, and which is idle at once."""
    with simgpu.create(tmp_path / "machine", cards=1, clock="stepped") as machine:
        slot = Slot(tmp_path / "slot", layout)
        slot.set_limits(Card(machine.cards[0].uuid, 1024 * MIB, compute_mode=1))
        yield environment(slot, machine.directory)


def environment(slot: Slot, machine: Path) -> dict[str, str]:
    """That of a container with this slot."""
    return {
        "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
        "MIZAR_DIR": str(slot.path),
        "CUDA_MODULE_LOADING": "EAGER",  # nobody here asks NVML for what is loaded later
        **simgpu.environment(machine),
    }


def test_every_case_is_run(env: dict[str, str]) -> None:
    assert run("handles", env=env).stdout.split() == ["graph_again", *CASES]


@pytest.mark.parametrize("case", CASES)
def test_threads_keep_out_of_each_others_way(case: str, env: dict[str, str]) -> None:
    run("handles", case, env=env)


def test_a_graph_is_not_taken_for_one_that_had_its_handle(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    """40 launches of 5 ms take 400 ms at half of the card; some may wait on it in the end."""
    with simgpu.create(tmp_path / "machine", cards=1) as machine:
        slot = Slot(tmp_path / "slot", layout)
        slot.set_limits(Card(machine.cards[0].uuid, 1024 * MIB, compute_mode=1, core_share=5000))
        env = environment(slot, machine.directory)
        taken = int(run("handles", "graph_again", env=env).stderr)
    assert taken > 300
