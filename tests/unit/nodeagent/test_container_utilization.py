"""How much of a card's time each container uses, by NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mizar_core.carve import CardLimit
from mizar_core.models import Isolation
from mizar_nodeagent.container_utilization import ContainerUtilization
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.regions import limits_file
from unit.nodeagent.makers import CARD, CGROUP, CONTAINER_ID, GIB, UID, one_container
from unit.nodeagent.test_audit import put_process

SHARE = ("team-a", "share", "main")
OTHERS = CGROUP.replace(CONTAINER_ID, "f" * 64)


class Node:
    """One share container on one card. `loads`: what NVML reports of that card."""

    def __init__(self, folder: Path) -> None:
        state, slots = one_container(folder, Isolation())
        self.state = state
        (self._slot,) = slots.all()
        limits_file.create_empty(self._slot.limits)
        identity = limits_file.ContainerIdentity("team-a", "share", UID, "main", "s")
        limit = CardLimit(CARD, GIB, 5000, "Hard", "None")
        limits_file.write(self._slot.limits, identity, [limit], {})
        self.loads: dict[int, float] | None = {}
        self.problem: Exception | None = None
        self.proc = folder / "proc"
        cards = SimpleNamespace(utilization=self._utilization)
        self.sampler = ContainerUtilization(state, slots, cards, self.proc)  # type: ignore[arg-type]

    async def _utilization(self, uuid: str) -> dict[int, float] | None:
        assert uuid == CARD
        if self.problem:
            raise self.problem
        return self.loads

    async def sampled(self) -> float | None:
        await self.sampler.sample()
        return self.sampler.of(SHARE, CARD)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_nothing_is_known_before_the_first_sample(node: Node) -> None:
    assert node.sampler.of(SHARE, CARD) is None
    assert await node.sampled() == 0, "NVML lists no process without work"


async def test_a_container_has_the_sum_of_its_processes_and_of_no_others(node: Node) -> None:
    put_process(node.proc, 500, CGROUP)
    put_process(node.proc, 501, CGROUP)
    put_process(node.proc, 502, OTHERS)
    node.loads = {500: 0.25, 501: 0.5, 502: 0.125, 503: 0.0625}
    assert await node.sampled() == 0.75
    node.loads = {500: 0.75, 501: 0.75}
    assert await node.sampled() == 1, "samples of two processes may overlap"


@pytest.mark.parametrize("problem", [None, CardsUnknown("NVML is away")])
async def test_what_nvml_does_not_report_is_not_known(
    node: Node, problem: CardsUnknown | None
) -> None:
    put_process(node.proc, 500, CGROUP)
    node.loads = {500: 0.5}
    assert await node.sampled() == 0.5
    node.loads, node.problem = None, problem
    assert await node.sampled() is None


async def test_a_container_that_is_gone_has_no_utilization(node: Node) -> None:
    assert await node.sampled() == 0
    node.state.snapshot = type(node.state.snapshot)(now=2.0)
    assert await node.sampled() is None
