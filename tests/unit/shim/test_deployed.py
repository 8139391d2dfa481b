"""Memory limits with the shim and the node agent as they are deployed.

The node agent, a process of its own, is the shim's only source of knowledge, and it knows only what
NVML reports. Beside the container a neighbour takes and gives back memory all the time, contexts
take their time, and code is loaded when it is first used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.crowd import Crowd
from support.effort import times
from support.waiting import PATIENCE_S

from .slot import MIB

LIMIT = 1024 * MIB
USABLE = 98
"""Percent of the limit, at least, that programs have when they are refused more. `make soak`
demands this at once; here it may take some tries, since the agent may not have a processor to look
at the card in time."""

STILL_S = 1.0
"""Seconds between two tries. The agent needs some audits of a process that makes no calls, and each
takes a quarter of a second on a harsh card."""


@pytest.fixture
def crowd(tmp_path: Path, layout: dict[str, Any]) -> Iterator[Crowd]:
    with Crowd(tmp_path, LIMIT) as made:
        yield made


@pytest.mark.parametrize("functions", [0, 60])
def test_processes_that_start_at_once_have_the_limit_and_no_more(
    functions: int, crowd: Crowd
) -> None:
    for _ in range(times(3)):
        await_all(crowd, crowd.start_at_once(2, functions))
        crowd.end()


def test_what_the_dead_had_the_living_can_have(crowd: Crowd) -> None:
    crowd.start_at_once(2, 20)
    crowd.kill_one()
    await_all(crowd, crowd.take_all())


def await_all(crowd: Crowd, usable: float) -> None:
    """Wait until the running programs can have all of the limit. `usable`: the percentage that they
    can have now. They are left alone between the tries: a process that never pauses keeps room for
    code that it may have loaded."""
    until = time.monotonic() + PATIENCE_S
    while usable < USABLE:
        assert time.monotonic() < until, f"{usable} % of the limit can be had"
        time.sleep(STILL_S)
        usable = crowd.take_all()
    assert crowd.over == 0
