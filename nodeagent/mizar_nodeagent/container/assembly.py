"""Assembles the parts that give containers their cards and limits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mizar_nodeagent.agent_base import AgentBase, Loop
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.access_report import AccessCollector, AccessReporter
from mizar_nodeagent.container.access_watch import AccessWatch
from mizar_nodeagent.container.allocate import Allocator
from mizar_nodeagent.container.dev_root import check_dev_root
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.missed_containers import MissedContainers
from mizar_nodeagent.container.nri_component import RuntimeComponent
from mizar_nodeagent.container.nri_grants import Grants
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slot_gc import SlotGarbageCollector
from mizar_nodeagent.container.usage_trim import UsageTrimmer
from mizar_nodeagent.cuda_context.costs import CONTEXTS, ContextCosts
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.node_status import runtime_version
from mizar_nodeagent.nri.plugin import RuntimePlugin
from mizar_nodeagent.plugin.server import Handlers

RECORDED_AFTER_S = 0.02
"""Seconds from the agent's answer to Allocate until it polls the kubelet, which records the
allocation some milliseconds after that answer."""

OWN_NODE = Path("/dev/nvidiactl")
"""A device node that the agent's own container has where a runtime gives it the driver."""


@dataclass(frozen=True)
class ContainerParts:
    """The assembled parts. `handlers`: answer the kubelet's calls. `loops`: to be run by the
    caller."""

    access: AccessChoice
    prestart: PreStart
    handlers: Handlers
    limits: LimitsUpdater
    loops: tuple[Loop, ...]


async def assemble_container(base: AgentBase) -> ContainerParts:
    """Create and connect the parts, after finding out how this node can give containers their
    cards. Raises ConfigRefused."""
    config, state, slots, agent = base.config, base.state, base.slots, base.agent
    access, access_loops = await _card_access(base)
    allocator = Allocator(
        state,
        slots,
        access,
        base.cards.minors,
        base.poller.poll_claims,
        time.monotonic,
        time.time,
        partial(_allocated, base),
        one_each=config.fail_requests_greater_than_one,
    )
    contexts = ContextCosts(config.state_dir / CONTEXTS, state, base.cards.context_bytes)
    prestart = PreStart(
        state,
        slots,
        base.poller.poll_claims,
        partial(device_checkpoint.read, config.plugin_dir),
        agent.notify,
        agent.warn,
        contexts,
        base.cards.minors,
        access.check,
        pods=agent.pods,
        by_way=access.describe,
    )
    return ContainerParts(
        access=access,
        prestart=prestart,
        handlers=Handlers(allocator.preferred, allocator.allocate, prestart.prepare),
        limits=LimitsUpdater(state, slots, agent.notify, agent.warn, contexts.of),
        loops=(
            SlotGarbageCollector(state, slots, config.plugin_dir).run,
            slots.spares.run,
            UsageTrimmer(slots, agent.warn).run,
            contexts.run,
            *access_loops,
        ),
    )


async def _card_access(base: AgentBase) -> tuple[AccessChoice, tuple[Loop, ...]]:
    """The choice among the ways to give a container its cards, and the loops that it needs. Raises
    ConfigRefused."""
    config, state = base.config, base.state
    check_dev_root(config.access)
    access = AccessChoice(
        config.access,
        instance_of=base.agent.inventory.instance_of,
        minors=base.cards.minors,
        cdi_names=base.dra.cdi_names,
    )
    grants = Grants(state, base.slots)
    missed = MissedContainers(base.agent.warn)
    component = RuntimeComponent(grants, access, base.cards.minors, missed)
    own = (config.namespace, config.identity) if config.namespace else None
    watch = AccessWatch(
        access,
        partial(runtime_version, base.client, config.node_name),
        reads_variable=config.by_default_runtime and OWN_NODE.exists(),
    )
    runtime = RuntimePlugin(
        config.card_access.nri_socket,
        component.create,
        component.look,
        own=own,
        named=watch.connected,
    )
    if access.may_use_nri:
        access.runtime = runtime
    await watch.start()
    base.registry.register(AccessCollector(config.node_name, access, component.counts))
    remark = partial(shim_install.mount_remark, config.state_dir)
    reporter = AccessReporter(base.client, access, config.namespace, config.identity, remark)
    runs_runtime = (runtime.run, missed.run) if access.runtime else ()
    return access, (watch.run, *runs_runtime, *((reporter.run,) if config.namespace else ()))


def _allocated(base: AgentBase) -> None:
    """Poll the kubelet soon, since it has its answer and records the allocation now."""
    asyncio.get_running_loop().call_later(RECORDED_AFTER_S, base.poller.poll_soon)
    base.agent.wake()
