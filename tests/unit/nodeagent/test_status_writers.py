"""The writers of statuses: what they write, when, how often, and what they leave alone."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

from mizar_core.models import CardStatus
from mizar_core.names import ConditionType
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.planning.shadow_status import ConditionState, Report
from mizar_nodeagent.planning.snapshot import Counts
from mizar_nodeagent.read_again import READ_AGAIN_S
from mizar_nodeagent.shadow_status_writer import ShadowStatusWriter
from support.waiting import until
from unit.nodeagent.fake_api import FakeApi, serving
from unit.nodeagent.makers import RESOURCE, SHADOW

T1, T2 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
READY = ConditionState(ConditionType.READY, "True", "Serving", "")
MISSING = ConditionState(ConditionType.READY, "False", "NotAdvertised", "")
BROKEN = ConditionState(ConditionType.READY, "False", "Unhealthy", "")
REPORT = Report(SHADOW, "owner", (READY,), idle_since=T2)
CARD = CardStatus(uuid="GPU-1", model="NVIDIA T", memory_mib=1024)
NEXT = ("team-a", "next")


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put_shadow(*SHADOW, "owner")
        self.now = 0.0
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def statuses(self) -> AsyncIterator[ShadowStatusWriter]:
        async with serving(self.api) as client:
            made = ShadowStatusWriter(client, "node-1", lambda: T2, lambda: self.now, lambda: 0.5)
            task = asyncio.create_task(made.run())
            yield made
            task.cancel()

    @asynccontextmanager
    async def node(self) -> AsyncIterator[NodeStatusWriter]:
        async with serving(self.api) as client:
            made = NodeStatusWriter(client, "node-1", self.changed, lambda: self.now)
            task = asyncio.create_task(made.run())
            yield made
            task.cancel()

    async def let_write(self, statuses: ShadowStatusWriter, *reports: Report) -> None:
        """Wait until all these reports are dealt with.

        The writer takes one after another; NEXT is written behind them, twice, since a report that
        is being written comes again behind it.
        """
        self.api.put_shadow(*NEXT, "owner")
        statuses.set_desired(reports)
        for said in (READY, BROKEN):
            statuses.set_desired([*reports, replace(REPORT, key=NEXT, conditions=(said,))])
            wanted = said.status, said.reason
            await until(lambda: self.api.condition(*NEXT, "Ready") == wanted)  # noqa: B023

    @property
    def reads(self) -> int:
        """How often the ShadowPod's status was read."""
        return sum(path.endswith(f"/{SHADOW[1]}") for path in self.api.asked)

    @property
    def writes(self) -> int:
        """How often it was written."""
        return sum(path.endswith(f"/{SHADOW[1]}/status") for path, _ in self.api.writes)

    def tries_since(self, asked: int) -> int:
        """How often the agent tried to write it after that many calls."""
        return sum(path.endswith(f"/{SHADOW[1]}/status") for path in self.api.asked[asked:])

    @property
    def ready(self) -> tuple[str, str]:
        return self.api.condition(*SHADOW, "Ready")


async def test_a_status_is_written_once_and_on_changes() -> None:
    world = World()
    async with world.statuses() as statuses:
        statuses.set_desired([REPORT])
        await until(lambda: world.ready == ("True", "Serving"))
        statuses.set_desired([REPORT])
        statuses.set_desired([replace(REPORT, conditions=(BROKEN,))])
        await until(lambda: world.ready == ("False", "Unhealthy"))
        assert len(world.api.writes) == 2


async def test_a_condition_keeps_its_time_across_agents() -> None:
    world = World()
    old = {"type": "Ready", "status": "True", "reason": "Serving", "message": "old"}
    world.api.shadows[SHADOW]["status"] = {
        "conditions": [{**old, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "idleSince": "2026-01-01T00:00:00Z",
    }
    async with world.statuses() as statuses:
        statuses.set_desired([REPORT])
        await until(lambda: world.api.writes)
        status = world.api.status(*SHADOW)
        assert status["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        # The same idle time that the earlier agent saw begin.
        assert status["idleSince"] == "2026-01-01T00:00:00Z"


async def test_devices_that_are_missing_for_a_moment_leave_it_ready() -> None:
    world = World()
    async with world.statuses() as statuses:
        statuses.set_desired([REPORT])
        await until(lambda: world.ready == ("True", "Serving"))
        missing = replace(REPORT, conditions=(MISSING,))
        await world.let_write(statuses, missing)
        assert world.ready == ("True", "Serving")
        world.now = 3.0
        statuses.set_desired([replace(missing, idle_since=T1)])
        await until(lambda: world.ready == ("False", "NotAdvertised"))


async def test_another_shadow_pod_of_the_name_is_left_alone() -> None:
    world = World()
    async with world.statuses() as statuses:
        statuses.set_desired([REPORT])
        await until(lambda: world.ready == ("True", "Serving"))
        world.api.put_shadow(*SHADOW, "another")
        await world.let_write(statuses, replace(REPORT, conditions=(BROKEN,)))
        assert len(world.api.writes) == 4
        assert world.ready == ("", "")


async def test_a_status_that_meets_a_conflict_is_written_again() -> None:
    """The API server answers so, too, when another client has just written to the object."""
    world = World()
    world.api.conflicts = 1
    async with world.statuses() as statuses:
        statuses.set_desired([REPORT])
        await until(lambda: world.ready == ("True", "Serving"))
        assert world.api.conflicts == 0


async def test_a_report_on_one_that_is_gone_says_nothing_of_its_successor() -> None:
    world = World()
    world.api.put_shadow(*SHADOW, "another")
    async with world.statuses() as statuses:
        await world.let_write(statuses, REPORT)
        assert len(world.api.writes) == 2


async def test_a_shadow_pod_that_is_gone_is_no_trouble() -> None:
    world = World()
    world.api.shadows.clear()
    async with world.statuses() as statuses:
        await world.let_write(statuses, REPORT)
        assert len(world.api.writes) == 2


async def test_a_status_that_is_restored_from_a_backup_is_written_again() -> None:
    world = World()
    later = T2.replace(microsecond=999)
    used = replace(REPORT, conditions=(BROKEN,), cards=(CARD,), idle_since=later)
    async with world.statuses() as statuses:
        await world.let_write(statuses, REPORT)
        backup = copy.deepcopy(world.api.status(*SHADOW))
        backup["idleSince"] = "2026-01-01T00:00:00Z"
        await world.let_write(statuses, used)
        newest = copy.deepcopy(world.api.status(*SHADOW))
        world.api.shadows[SHADOW]["status"] = backup
        world.now = READ_AGAIN_S - 1
        await world.let_write(statuses, used)
        assert world.api.status(*SHADOW) == backup
        world.now = READ_AGAIN_S
        world.api.read_only = True
        reads, asked = world.reads, len(world.api.asked)
        statuses.set_desired([used])
        await until(lambda: world.tries_since(asked) > 1)
        assert world.reads == reads + 1
        world.api.read_only = False
        await until(lambda: world.api.status(*SHADOW) == newest)


async def test_a_status_is_read_now_and_then_and_not_written_while_it_is_right() -> None:
    world = World()
    used = replace(REPORT, cards=(CARD,), idle_since=T2.replace(microsecond=999))
    async with world.statuses() as statuses:
        await world.let_write(statuses, used)
        for turn in (1, 2):
            world.now, reads = turn * READ_AGAIN_S, world.reads
            for _ in range(3):
                await world.let_write(statuses, used)
            assert (world.reads, world.writes) == (reads + 1, 1)
        of_it = [path for path in world.api.from_copy if path.endswith(f"/{SHADOW[1]}")]
        assert len(of_it) == 2, "of a large cluster, etcd would be asked 130 times a second"


async def test_the_nodes_figures_are_written_once() -> None:
    world = World()
    async with world.node() as node:
        for _ in range(3):
            node.set_desired({RESOURCE: Counts(2, 2)})
            await until(lambda: node.written == {RESOURCE: Counts(2, 2)})
        assert len(world.api.writes) == 1 and world.changes == 1
        node.forget(RESOURCE)
        node.set_desired({RESOURCE: Counts(2, 2)})
        await until(lambda: len(world.api.writes) == 2)


async def test_a_lowered_figure_is_insisted_on() -> None:
    world = World()
    async with world.node() as node:
        node.set_desired({RESOURCE: Counts(2, 0)}, frozenset([RESOURCE]))
        await until(lambda: len(world.api.writes) == 1)
        world.now = 0.5
        node.set_desired({RESOURCE: Counts(2, 0)}, frozenset([RESOURCE]))
        await until(lambda: node.written_at == {RESOURCE: 0.5})


async def test_a_figure_that_was_lowered_is_insisted_on_for_a_while_longer() -> None:
    """The kubelet may be about to write what it had before devices became unhealthy."""
    world, figures = World(), {RESOURCE: Counts(2, 0)}
    async with world.node() as node:
        node.set_desired(figures, frozenset([RESOURCE]))
        await until(lambda: len(world.api.writes) == 1)
        node.set_desired(figures)
        for world.now in (1.0, 2.0):
            node.set_desired(figures)
            await until(lambda: node.written_at == {RESOURCE: world.now})
        written = len(world.api.writes)
        world.now = 3.0
        node.set_desired(figures)
        node.set_desired({**figures, f"{RESOURCE}0": Counts(1, 1)})
        await until(lambda: len(world.api.writes) == written + 1)
        assert node.written_at[RESOURCE] == 2.0


async def test_an_api_server_that_was_away_gets_the_newest() -> None:
    world = World()
    world.api.down = True
    async with world.node() as node:
        node.set_desired({RESOURCE: Counts(2, 2)})
        await until(lambda: world.api.asked)
        node.set_desired({RESOURCE: Counts(4, 4)})
        world.api.down = False
        await until(lambda: world.api.node["status"]["capacity"] == {RESOURCE: "4"})
        assert len(world.api.writes) == 1


async def test_an_end_puts_no_former_resource_back_on_the_node() -> None:
    """That of a former tenant was taken off the node meanwhile."""
    world, former = World(), f"{RESOURCE}0"
    figures = {RESOURCE: Counts(2, 2), former: Counts(0, 0)}
    async with world.node() as node:
        node.set_desired(figures)
        await until(lambda: node.written == figures)
        for part in ("capacity", "allocatable"):
            del world.api.node["status"][part][former]
        await node.withdraw(0.0)
    assert world.api.node["status"]["capacity"] == {RESOURCE: "2"}
    assert world.api.node["status"]["allocatable"] == {RESOURCE: "0"}
