"""The node agent's own parts, all of them at once, on a node where everything goes wrong.

Planner, poller, plugins' handlers, slots, limits, garbage collection, checkpoint and lender run in
one event loop (`node/agent.py`), put together as in the agent's assembly.py. Kubelet, API server,
cards and disk are models (`node/kubelet.py`, `api.py`, `cards.py`, `disk.py`), each of which is
late, away, or wrong at times: a kubelet that restarts, learns of its pods one by one and may lose
its record; answers that were right when they were given; a disk that is full; cards that drop off
the bus and come back with other numbers; MIG devices; cards that NVIDIA's DRA driver names by such
numbers; a clock that jumps. Share pods have several containers, also init containers, whose devices
the kubelet gives again, and sidecars. Around them users, scheduler and operator work
(`node/world.py`), and the agent is killed at any await and in the midst of any write
(`node/schedule.py`). gRPC, informer and registration of plugins have other tests.

At every step rules hold (`node/rules.py`): a device has one holder, a card is worked on for one
shadow pod, no device is given whose drain is complete, none leaves the list in use. Then faults
stop: all is offered, nobody waits in vain, limits are those of the carve, cards are lent by their
pools' rules, no file is left, and the checkpoint is right; and all of it once more after the agent
has been killed.

A seed decides all of it, and a failure names it:

    MIZAR_SIMULATION_SEED=123 .venv/bin/pytest tests/simulation/test_node_agent.py

MIZAR_EFFORT says how many schedules there are, and MIZAR_SIMULATION_FROM which is the first.
"""

from __future__ import annotations

import functools
import os

import pytest

from simulation.node.schedule import play
from simulation.traces import joined, missed
from support.effort import EFFORT

pytestmark = pytest.mark.timeout(600)

SEED = os.environ.get("MIZAR_SIMULATION_SEED")
FIRST = int(SEED or os.environ.get("MIZAR_SIMULATION_FROM", "0"))
IS_QUICK = EFFORT <= 1
AT_ONCE = 5 if IS_QUICK else 3
"""Schedules per test, of some 0.4 s each: 5 with `make check`, 36 with `make test`."""
PARTS = 1 if SEED or IS_QUICK else int(4 * EFFORT)

ALWAYS = (
    r"\S+ is given .*",
    "the agent is killed",
    "the agent ends by itself",
    "the agent will die while it writes",
    r"\S+ drops off the bus",
    r"\S+ is carved anew",
    "cards are lent by the pools .*",
)
"""What must happen even in the few schedules of `make check`: each happens in almost half of all
schedules."""
OFTEN = (
    r"\S+ is given .*",
    r"\S+/first is given .*",
    r"\S+/second is given .*",
    r"\S+/sidecar is given .*",
    r"\S+ is promised",
    "the agent is killed",
    "the agent ends by itself",
    "the agent will die while it writes",
    "the disk is full, and the agent will die while it writes",
    "the kubelet starts",
    "the kubelet starts without its record",
    "the disk is full: True",
    "the driver renumbers the cards",
    r"\S+ drops off the bus",
    r"\S+ gets .* as .*",
    "the clock is wrong by .*",
    r"\S+ is carved anew",
    "cards are lent by the pools .*",
)
"""What must happen in the first 9 schedules of `make test`."""


@functools.cache
def traces(part: int) -> str:
    """What happens in a part's schedules, a line each, without times."""
    first = FIRST + part * AT_ONCE
    seeds = range(first, first + (1 if SEED else AT_ONCE))
    return joined(play, seeds)


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_rules_hold_and_the_node_comes_to_rest(part: int) -> None:
    traces(part)


def test_the_schedules_reach_what_they_are_for() -> None:
    seen = "\n".join(map(traces, range(min(PARTS, 3))))
    assert SEED or FIRST or not missed(ALWAYS if IS_QUICK else OFTEN, seen)
