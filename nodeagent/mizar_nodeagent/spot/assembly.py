"""Assembles the parts of the node agent that lend cards."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from mizar_nodeagent.agent_base import AgentBase, Loop
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container_processes import PROC
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.plugin.registration import ResourcePlugin
from mizar_nodeagent.plugin.server import Handlers
from mizar_nodeagent.spot.allocate import SpotAllocator, SpotPreStart
from mizar_nodeagent.spot.detectors.card_processes import ProcessDetector
from mizar_nodeagent.spot.lender import Detectors, Lender, SpotOutputs
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_polling import OwnerPolling
from mizar_nodeagent.spot.pod_conditions import PodConditionWriter
from mizar_nodeagent.spot.reclaim import Reclaimer
from mizar_nodeagent.spot.rule_source import RuleSource

WRITERS = 4
"""Number of pods whose conditions may be written concurrently."""


@dataclass(frozen=True)
class SpotParts:
    """The parts that lend cards. The caller runs `loops`, which never return, and calls `close` at
    the end."""

    lender: Lender
    loops: tuple[Loop, ...]
    plugins: PluginManager
    node: NodeStatusWriter
    reclaimer: Reclaimer

    async def close(self, grace_s: float) -> None:
        """Withdraw the devices from the node's status, waiting `grace_s` seconds, then stop the
        device plugin and then all reclaims, finished or not."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.reclaimer.close)
            stack.push_async_callback(self.plugins.close)
            stack.push_async_callback(self.node.withdraw, grace_s)


def assemble_spot(base: AgentBase, access: AccessChoice, prestart: PreStart) -> SpotParts:
    """Create and connect the parts. If the agent does not know its own namespace, it reads no rules
    and lends no card."""
    config, client, agent, slots = base.config, base.client, base.agent, base.slots
    rules = RuleSource(client, config.namespace, config.node_name, agent.wake)
    lender = Lender(agent.state, slots, rules, Detectors(processes=ProcessDetector(PROC)))
    metrics = SpotMetrics(base.registry, config.node_name, lambda: list(lender.loans.values()))
    reclaimer = Reclaimer(slots, metrics, agent.notify, agent.warn, lender.step, PROC)
    conditions = PodConditionWriter(client)
    node = NodeStatusWriter(client, config.node_name, agent.wake)
    plugins = _plugins(base, lender, access, prestart)
    lender.attach(SpotOutputs(plugins, node, conditions, reclaimer, base.poller, agent.notify))
    loops = (*[conditions.run] * WRITERS, node.run, OwnerPolling(lender, base.cards).run)
    loops = (*loops, rules.run) if config.namespace else loops
    return SpotParts(lender, loops, plugins, node, reclaimer)


def _plugins(
    base: AgentBase, lender: Lender, access: AccessChoice, prestart: PreStart
) -> PluginManager:
    """The manager of the device plugin that serves the spot resource."""
    poll = base.poller.poll_claims
    allocator = SpotAllocator(lender, base.slots, access, base.cards.minors, poll, time.time)
    start = SpotPreStart(lender, prestart, base.cards.free_bytes)
    handlers = Handlers(allocator.preferred, allocator.allocate, start.prepare)
    folder, kubelet, timed = base.config.plugin_dir, base.kubelet, base.latencies
    devices = base.poller.poll_devices
    return PluginManager(
        lambda resource: ResourcePlugin(resource, folder, kubelet, devices, handlers, timed)
    )
