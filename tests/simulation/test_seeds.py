"""A seed decides all that happens in a simulated schedule, so that a failure can be repeated."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from simulation.node import schedule as node_schedule
from simulation.schedule import play

SEED = 7


def test_a_seed_decides_everything() -> None:
    """Also in another process, where names have other hashes."""
    program = "from simulation.test_seeds import SEED, shown; print(shown(SEED))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [shown(SEED)] == [shown(SEED)]


def test_a_seed_decides_everything_of_a_node() -> None:
    assert node_schedule.play(0) == node_schedule.play(0)


def shown(seed: int) -> str:
    """A short form of what happens in a schedule."""
    return hashlib.sha256("\n".join(play(seed)).encode()).hexdigest()
