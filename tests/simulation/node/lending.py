"""The parts of a simulated agent that lend cards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry

from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent.cards import Card
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.spot.allocate import SpotAllocator, SpotPreStart
from mizar_nodeagent.spot.detectors.card_processes import CardLoads, ProcessDetector
from mizar_nodeagent.spot.lender import Detectors, Lender, SpotOutputs
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_events import PodIdentity
from mizar_nodeagent.spot.owners import rule_of
from mizar_nodeagent.spot.pod_conditions import PodCondition, PodConditionWriter
from mizar_nodeagent.spot.reclaim import Reclaimer
from mizar_nodeagent.spot.rule_source import RuleSource
from simulation.node.api import NodeStatus
from simulation.node.world import World

if TYPE_CHECKING:
    from simulation.node.agent import AgentProcess

LOOK_S = 0.5


class Rules:
    """Has RuleSource's methods: the rules of the simulated node, read from its API server."""

    def __init__(self, world: World, changed: Callable[[], None]) -> None:
        self.known = False
        self._world = world
        self._changed = changed
        self._rules = SpotRules()

    def of(self, card: Card, resource: str, pool: str | None = None) -> SpotRule | None:
        """As RuleSource.of."""
        return rule_of(card, resource, {}, self._rules, pool)

    async def run(self) -> None:
        """Follow the rules for ever."""
        while True:
            await asyncio.sleep(self._world.lag)
            rules = self._world.spot_rules()
            if not self._world.api.is_away and (not self.known or self._rules != rules):
                self.known, self._rules = True, rules
                self._changed()


class Conditions:
    """Has PodConditionWriter's method: the operator evicts pods that have the condition."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wanted: Mapping[PodIdentity, PodCondition] = {}

    def set_desired(self, conditions: Mapping[PodIdentity, PodCondition]) -> None:
        """As PodConditionWriter.set_desired."""
        self._wanted = dict(conditions)

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.sleep(0.3)
            if self._world.api.is_away:
                continue
            for pod, one in self._wanted.items():
                if one.type == "DisruptionTarget" and one.is_true:
                    self._world.evicted.add(pod.uid)
                elif one.type != "DisruptionTarget":
                    self._world.api.change(pod.uid, active=str(one.is_true))


class Lending:
    """The lender and all that it needs. `loops` run as long as the process lives."""

    def __init__(self, process: AgentProcess) -> None:
        world, agent, slots = process.world, process.agent, process.slots
        self._world = world
        self.rules = Rules(world, agent.wake)
        self.lender = Lender(
            process.state,
            slots,
            cast(RuleSource, self.rules),
            Detectors(processes=ProcessDetector(world.proc, 1)),
            clock=asyncio.get_running_loop().time,
        )
        metrics = SpotMetrics(CollectorRegistry(), "n", lambda: [])
        self.reclaimer = Reclaimer(
            slots,
            metrics,
            agent.notify,
            agent.warn,
            self.lender.step,
            world.proc,
            asyncio.get_running_loop().time,
        )
        self.conditions = Conditions(world)
        self.node = NodeStatus(world.api, process.random, agent.wake)
        self.lender.attach(
            SpotOutputs(
                cast(PluginManager, process.plugins),
                cast(NodeStatusWriter, self.node),
                cast(PodConditionWriter, self.conditions),
                self.reclaimer,
                process.poller,
                agent.notify,
            )
        )
        self.allocator = SpotAllocator(
            self.lender,
            slots,
            process.access,
            world.cards.minors,
            process.poller.poll_claims,
            world.wall,
        )
        self.prestart = SpotPreStart(self.lender, process.prestart, world.cards.free_bytes)
        self.loops: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.rules.run,
            self.conditions.run,
            self.node.run,
            self._look,
        )

    def stop_timers(self) -> None:
        """Nothing is called any more."""
        if self.lender._timer is not None:
            self.lender._timer.cancel()
        for timer in self.reclaimer._timers.values():
            timer.cancel()
        for task in self.reclaimer._running.values():
            task.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if watched := self.lender.watched():
                self.lender.look_at_usage()
                self.lender.look_at_processes(await self._loads(sorted(watched)))

    async def _loads(self, uuids: list[str]) -> CardLoads:
        try:
            found = await self._world.cards.loads(uuids)
        except CardsUnknown:
            found = {}
        return {uuid: found.get(uuid) for uuid in uuids}
