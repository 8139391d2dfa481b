"""The parts that lend cards, put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from mizar_kube.client import KubeClient
from mizar_nodeagent.agent_loop import Agent
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.config import Config
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.container_processes import PROC
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.kubelet.socket_watch import KubeletSocket
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.plugin.resource_plugin import ResourcePlugin
from mizar_nodeagent.plugin.server import Handlers, Timed
from mizar_nodeagent.spot.allocate import SpotAllocator, SpotPreStart
from mizar_nodeagent.spot.detectors.card_processes import ProcessDetector
from mizar_nodeagent.spot.lender import Detectors, Lender, SpotOutputs
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_polling import OwnerPolling
from mizar_nodeagent.spot.pod_conditions import PodConditionWriter
from mizar_nodeagent.spot.reclaim import Reclaimer
from mizar_nodeagent.spot.rule_source import RuleSource

WRITERS = 4
"""Pods whose conditions may be written at the same time."""


@dataclass(frozen=True)
class SpotParts:
    """`loops` go on for ever. `close`: ends what was started."""

    lender: Lender
    loops: tuple[Callable[[], Coroutine[None, None, None]], ...]
    plugins: PluginManager
    node: NodeStatusWriter
    reclaimer: Reclaimer

    async def close(self, grace_s: float) -> None:
        """Take the devices from the node's status and end the plugin; reclaims end half-way."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.reclaimer.close)
            stack.push_async_callback(self.plugins.close)
            stack.push_async_callback(self.node.withdraw, grace_s)


def assemble_spot(
    config: Config,
    client: KubeClient,
    cards: CardSource,
    agent: Agent,
    slots: Slots,
    access: AccessChoice,
    poller: KubeletPoller,
    kubelet: KubeletSocket,
    prestart: PreStart,
    timed: Timed,
    registry: CollectorRegistry,
) -> SpotParts:
    """Put the parts together. Without a namespace of the agent's own there are no rules, and no
    card is lent."""
    rules = RuleSource(client, config.namespace, config.node_name, agent.wake)
    lender = Lender(agent.state, slots, rules, Detectors(processes=ProcessDetector(PROC)))
    metrics = SpotMetrics(registry, lambda: list(lender.loans.values()))
    reclaimer = Reclaimer(slots, metrics, agent.notify, agent.warn, PROC)
    conditions = PodConditionWriter(client)
    node = NodeStatusWriter(client, config.node_name, agent.wake)
    allocator = SpotAllocator(lender, slots, access, cards.minors, time.time)
    start = SpotPreStart(lender, prestart, cards.free_bytes)
    handlers = Handlers(allocator.preferred, allocator.allocate, start.prepare)
    plugins = PluginManager(
        lambda resource: ResourcePlugin(resource, config.plugin_dir, kubelet, handlers, timed)
    )
    lender.attach(SpotOutputs(plugins, node, conditions, reclaimer, poller, agent.notify))
    loops = (*[conditions.run] * WRITERS, node.run, OwnerPolling(lender, cards).run)
    loops = (*loops, rules.run) if config.namespace else loops
    return SpotParts(lender, loops, plugins, node, reclaimer)


def told_by_thread(
    loop: asyncio.AbstractEventLoop, lender: Callable[[], Lender]
) -> Callable[[Collection[str]], None]:
    """`woke` for the time slicer, whose thread it is called from."""

    def woke(names: Collection[str]) -> None:
        with suppress(RuntimeError):  # the loop has ended before the thread
            loop.call_soon_threadsafe(lambda: lender().woke(names))

    return woke
