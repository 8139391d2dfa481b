"""How much of a card's time each container uses, by NVML."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mizar_core.carve import CardLimit
from mizar_core.models import Isolation
from mizar_nodeagent import container_processes
from mizar_nodeagent.container_utilization import STALE_S, ContainerUtilization
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import limits_file
from unit.nodeagent.makers import (
    CARD,
    CGROUP,
    CONTAINER_ID,
    GIB,
    UID,
    device,
    one_container,
    share,
    share_claim,
    snapshot,
)
from unit.nodeagent.test_audit import put_process

SHARE = ("team-a", "share", "main")
OTHERS = CGROUP.replace(CONTAINER_ID, "f" * 64)

OTHER_PODS = OTHERS.replace("12345678-", "87654321-")


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
        self.now = 100.0
        self._slots = slots
        self.sampler = self.made()

    def made(self, sees_processes: bool = True) -> ContainerUtilization:
        cards: Any = SimpleNamespace(utilization=self._utilization)
        return ContainerUtilization(
            self.state, self._slots, cards, self.proc, sees_processes, lambda: self.now
        )

    def knows(self, *pods: Pod) -> None:
        """The API server's list of pods, in place of that of the pod with the container."""
        self.state.snapshot = snapshot(2.0, pods, claims=[share_claim(device(0))])

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
    put_process(node.proc, 502, OTHER_PODS)
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


async def test_what_is_old_is_not_told(node: Node) -> None:
    """NVML hangs together with the driver, and no later sample comes."""
    put_process(node.proc, 500, CGROUP)
    node.loads = {500: 0.5}
    assert await node.sampled() == 0.5
    node.now += STALE_S
    assert node.sampler.of(SHARE, CARD) == 0.5
    node.now += 1
    assert node.sampler.of(SHARE, CARD) is None
    assert await node.sampled() == 0.5


async def test_a_container_is_not_idle_because_nobody_knows_its_processes(node: Node) -> None:
    """The API server has not said which of the runtime's containers it is."""
    assert await node.sampled() == 0
    node.state.snapshot = snapshot(2.0, None, claims=[share_claim(device(0))])
    assert await node.sampled() is None
    node.knows(share(uid=UID))
    assert await node.sampled() is None


@pytest.mark.parametrize("uids", [{"uid": UID}, {"static_uid": UID}])
async def test_a_pod_with_a_container_that_nobody_knows_is_left_out(
    node: Node, uids: dict[str, str]
) -> None:
    """A container has started again, and the pod's status has the ID of the one before."""
    pod = share(container_ids=((CONTAINER_ID, "main"),), **uids)
    node.knows(pod, share("other", uid="another"))
    put_process(node.proc, 500, OTHERS)
    node.loads = {500: 0.5}
    assert await node.sampled() is None
    node.knows(replace(pod, container_ids=(("f" * 64, "main"),)))
    assert await node.sampled() == 0.5


async def test_processes_of_other_pods_make_nothing_unclear(node: Node) -> None:
    put_process(node.proc, 500, OTHER_PODS)
    node.loads = {500: 0.5, 501: 0.5}
    assert await node.sampled() == 0


async def test_without_the_nodes_pid_namespace_nothing_is_told(node: Node) -> None:
    """NVML tells of no process there, or of PIDs that are others'."""
    blind = node.made(sees_processes=False)
    await asyncio.wait_for(blind.run(), 10)
    assert blind.of(SHARE, CARD) is None


@pytest.mark.parametrize("pid", [1, 4711])
def test_the_first_process_is_in_a_namespace_of_its_own(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: pid)
    assert container_processes.in_nodes_namespace() is (pid != 1)


async def test_a_container_that_is_gone_has_no_utilization(node: Node) -> None:
    assert await node.sampled() == 0
    node.state.snapshot = type(node.state.snapshot)(now=2.0)
    assert await node.sampled() is None
