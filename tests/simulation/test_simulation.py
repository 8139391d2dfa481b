"""The operator's own parts, all of them at once, in a cluster where everything goes wrong.

Caches, queue, workers, planner, writer, events and leader run in one event loop (`replica.py`), as
one replica or two, against an API server in memory (`history.py`, on `stateful.memory_api`): calls
are slow, refused, lost, or take effect although the caller heard otherwise (`network.py`,
`fault_injection.py`); watches lag and break, old versions are compacted away; `kopf_watch.py`
stands in for Kopf. Around it the scheduler, kubelets, node agents and controllers work at their
own pace (`cluster.py`), users change their minds and machines are lost (`users.py`), administrators
change one pool or two of different kinds and move quotas between them (`pools.py`), and processes
are killed at any await (`schedule.py`). Time is virtual (`support/virtual_time.py`): an hour takes
a second.

At every write and every step the rules hold (`rules.py`: invariants 1, 2, 3, quotas, one leader,
nobody else's objects). Then faults stop, and the cluster converges (`convergence.py`): every share
pod that can be served is, every copy is what the API server has, planning again plans nothing
(5, 6), nothing is left over, and the operator is silent for a minute.

A seed decides all of it, and a failure names it:

    MIZAR_SIMULATION_SEED=123 .venv/bin/pytest tests/simulation

plays that one alone. Seeds are the same in each run; MIZAR_EFFORT says how many, and
MIZAR_SIMULATION_FROM which is the first. To look for what no run has found yet, some 7,000
schedules in half an hour:

    MIZAR_EFFORT=90 MIZAR_SIMULATION_FROM=1000000 .venv/bin/pytest tests/simulation
"""

from __future__ import annotations

import functools
import os

import pytest

from simulation.client import OVERTAKEN
from simulation.schedule import play
from simulation.traces import joined, missed
from support.effort import EFFORT

pytestmark = pytest.mark.timeout(600)  # some 5 s, but of a machine that does much beside

SEED = os.environ.get("MIZAR_SIMULATION_SEED")
FIRST = int(SEED or os.environ.get("MIZAR_SIMULATION_FROM", "0"))
IS_QUICK = EFFORT <= 1
AT_ONCE = 10 if IS_QUICK else 20
"""Schedules per test."""

# A schedule takes about 0.3 s: 10 of them with `make check`, 240 with `make test`.
PARTS = 1 if SEED or IS_QUICK else int(4 * EFFORT)


ALWAYS = (
    r"r\d/\d+ create shadowpods .*: ok",
    r"r\d/\d+ create pods .*: ok",
    r"r\d/\d+ create poddisruptionbudgets .*: ok",
    r"r\d/\d+ patch shadowpods .*: ok",
    r"r\d/\d+ patch pods .*: ok",
    r"r\d/\d+ delete shadowpods .*: ok",
    r"r\d/\d+ delete pods .*: ok",
    r"r\d/\d+ delete poddisruptionbudgets .*: ok",
    r"r\d/\d+ \w+ .*: Unavailable 500",
    rf"r\d/\d+ watch .*: {OVERTAKEN}",
    "(kill|terminate) r\\d",
    "the API server forgets",
    "create spot pod .*",
)
"""What must happen even in the few schedules of `make check`: each happens in more than a third of
all schedules."""
OFTEN = (
    *(
        rf"r\d/\d+ {write}: ok"
        for write in (
            "create shadowpods .*",
            "create pods .*",
            "create poddisruptionbudgets .*",
            "patch shadowpods .*",
            "patch pods .*",
            "delete shadowpods .*",
            "delete pods .*",
            "delete poddisruptionbudgets .*",
            "evict pods .*",
        )
    ),
    r"r\d/\d+ apply .*: ok lost",
    r"r\d/\d+ apply .*: Unavailable",
    *(rf"r\d/\d+ \w+ .*: Unavailable {status}" for status in (429, 500, 504)),
    r"r\d/\d+ (apply|patch) .*: Conflict 409",
    r"r\d/\d+ watch .*: Gone 410",
    rf"r\d/\d+ watch .*: {OVERTAKEN}",
    r"kill r\d",
    r"terminate r\d",
    "the API server is away .*",
    "the API server forgets",
    "agents down: .+",
    "cordon .* True",
    "lose .*",
    "edit .*: .*idleTimeoutSeconds.*",
    "delete quota .*",
    "delete shadow .*",
    "edit .*: .*profiles.*",
    "edit .*: .*nodeSelector.*",
    "taints of .* 1",
    "delete namespace .*",
    r"silent nodes: \['n.*",
    r"a policy lets nobody change pods in \['t.*",
    "create .* whole cards",
    "delete pool",
    "delete other",
    r"create other \(PerNamespace\) with prefix mizar.share",
    r"create other \(PerNamespace\) with prefix cards.example",
    r"create other \(PerNamespace\) with prefix team-b.mizar.share",
    r"create other \(Shared\) with prefix .*",
    r"create .*: {'team.*, 'team.*}",
    "move [12] quotas of .*",
    "create spot pod .*",
    "create spot pod .* that no scheduler sees",
)
"""What must happen in the schedules of REACHING parts of `make test`: the operator's writes,
failures, deaths, and what users do."""
REACHING = min(PARTS, 2)


@functools.cache
def traces(part: int) -> str:
    """What happens in a part's schedules, a line each, without times."""
    first = FIRST + part * AT_ONCE
    seeds = range(first, first + (1 if SEED else AT_ONCE))
    return joined(play, seeds)


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_rules_hold_and_the_cluster_converges(part: int) -> None:
    traces(part)


def test_the_schedules_reach_what_they_are_for() -> None:
    seen = "\n".join(map(traces, range(REACHING)))
    assert SEED or not missed(ALWAYS if IS_QUICK else OFTEN, seen)
