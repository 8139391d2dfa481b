"""What threads are granted ahead of launches keeps no other thread or stream from its share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_S

from .busy import Containers

HARD = 1
LOADS = {
    # what a container of a share does, and what it then has of the card
    "eight streams of one thread": (25, 25, ("bench/load", "us_20", "8", "1", "in_turns")),
    "threads that end": (25, 25, ("bench/programs", "short_lived")),
    "5,000 functions": (50, 50, ("bench/programs", "functions")),
}
WORKED_NS = 100_000_000
OVERCHARGE = 1.6


@pytest.mark.parametrize("load", LOADS)
def test_a_share_is_had_in_whole(load: str, tmp_path: Path, layout: dict[str, Any]) -> None:
    share, had, command = LOADS[load]
    with Containers(tmp_path, layout, cards=1) as containers:
        containers.add(HARD, share).start(*command)
        containers.begin()
        containers.await_shares([[had]])


def test_threads_that_launch_little_pay_for_what_they_launch(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    """Not for the time in between: by what the card did, however long that takes."""
    with Containers(tmp_path, layout, cards=1) as containers:
        one = containers.add(HARD, 50)
        one.start("bench/programs", "workers")
        containers.begin()
        until = time.monotonic() + PATIENCE_S
        while (worked := containers.worked(one)) < WORKED_NS:
            assert time.monotonic() < until, f"only {worked} ns of work"
            time.sleep(0.05)
        assert one.slot.compute(0, "charged_ns") <= OVERCHARGE * containers.worked(one)
