"""Assembles all parts of the node agent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from mizar_core.names import FIELD_MANAGER_NODEAGENT
from mizar_kube.client import KubeClient
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_nodeagent import pods
from mizar_nodeagent.agent_base import AgentBase, Loop, restore
from mizar_nodeagent.agent_loop import DEFAULT_GRACE, Outputs
from mizar_nodeagent.app import App
from mizar_nodeagent.audit.assembly import assemble_audit
from mizar_nodeagent.card_metrics import CardCollector
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.config import Config
from mizar_nodeagent.container.assembly import ContainerParts, assemble_container
from mizar_nodeagent.hami_node_annotations import HamiAnnotations
from mizar_nodeagent.hami_pod_annotations import HamiPodAnnotations
from mizar_nodeagent.metrics import DeviceCollector, planning_errors
from mizar_nodeagent.node_label import NodeLabel
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.planning.snapshot import GracePeriods
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.plugin.registration import ResourcePlugin
from mizar_nodeagent.plugin.server import remove_old_sockets
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.shadow_status_writer import ShadowStatusWriter
from mizar_nodeagent.shutdown_cleanup import ShutdownCleanup
from mizar_nodeagent.spot.assembly import SpotParts, assemble_spot
from mizar_nodeagent.stale_resources import StaleResources

STATUS_WRITERS = 4
"""Number of ShadowPods whose statuses may be written concurrently."""


@asynccontextmanager
async def assemble(
    config: Config, client: KubeClient, cards: CardSource, grace: GracePeriods = DEFAULT_GRACE
) -> AsyncIterator[App]:
    """Create and connect the parts, with the state that an earlier run left, and end them in order
    on leaving the context. Raises ConfigRefused, OSError."""
    base = restore(config, client, cards, grace)
    remove_old_sockets(config.plugin_dir)
    container = await assemble_container(base)
    informer = pods.informer(client, config.node_name)
    spot = assemble_spot(base, container.access, container.prestart)
    audit = assemble_audit(base, informer, spot.lender.woke, spot.lender.sees_owners)
    outputs = _outputs(base, container, spot)
    base.agent.attach(informer, base.poller, outputs, base.slots)
    _register_metrics(base, outputs)
    hami = _hami(base)
    async with AsyncExitStack() as stack:
        _end_with(stack, base, informer, outputs, spot, hami, grace)
        yield App(
            config=config,
            agent=base.agent,
            pods=informer,
            poller=base.poller,
            access=container.access,
            plugins=outputs.plugins,
            time_slicer=audit.time_slicer,
            spot=spot,
            registry=base.registry,
            slots=base.slots,
            dra=base.dra,
            loops=(
                *_loops(base, informer, outputs, spot),
                *container.loops,
                *audit.loops,
                *_hami_loops(base, hami),
                *spot.loops,
            ),
        )


def _end_with(
    stack: AsyncExitStack,
    base: AgentBase,
    pods: Informer[Pod],
    outputs: Outputs,
    spot: SpotParts,
    hami: HamiAnnotations | None,
    grace: GracePeriods,
) -> None:
    """Have the parts end when the stack is closed: those that come last here end first."""
    stack.push_async_callback(base.podresources.close)
    stack.push_async_callback(_shutdown_cleanup(base, pods).run)
    stack.push_async_callback(base.checkpoint.write)
    if hami is not None:
        stack.push_async_callback(hami.withdraw)
    stack.push_async_callback(outputs.plugins.close)
    stack.push_async_callback(outputs.node.withdraw, grace.withdraw)
    stack.push_async_callback(spot.close, grace.withdraw)


def _shutdown_cleanup(base: AgentBase, pods: Informer[Pod]) -> ShutdownCleanup:
    return ShutdownCleanup(
        base.config.state_dir,
        base.state,
        base.slots,
        pods,
        base.poller,
        base.config.plugin_dir,
        lambda: base.agent.inventory.is_marked,
    )


def _outputs(base: AgentBase, container: ContainerParts, spot: SpotParts) -> Outputs:
    """The outputs through which plans are applied."""
    config, client = base.config, base.client

    def make_plugin(resource: str) -> ResourcePlugin:
        return ResourcePlugin(
            resource,
            config.plugin_dir,
            base.kubelet,
            base.poller.poll_devices,
            container.handlers,
            base.latencies,
        )

    return Outputs(
        plugins=PluginManager(make_plugin),
        node=NodeStatusWriter(client, config.node_name, base.agent.wake),
        statuses=ShadowStatusWriter(client, config.node_name),
        events=EventRecorder(client, FIELD_MANAGER_NODEAGENT, config.identity),
        limits=container.limits.update_with_pauses,
        lend=spot.lender.planned,
        planning_failed=planning_errors(base.registry).inc,
    )


def _register_metrics(base: AgentBase, outputs: Outputs) -> None:
    name, agent = base.config.node_name, base.agent
    base.registry.register(DeviceCollector(name, base.state, outputs.plugins.connected))
    base.registry.register(
        CardCollector(name, base.state, lambda: agent.inventory.readings, agent.xids)
    )


def _loops(
    base: AgentBase, informer: Informer[Pod], outputs: Outputs, spot: SpotParts
) -> tuple[Loop, ...]:
    """The loops that watch the node, plan, and apply the plan."""

    def served() -> set[str]:
        return {*outputs.plugins.connected(), *spot.plugins.connected()}

    stale = StaleResources(base.client, base.config.node_name, served)
    return (
        informer.run,
        base.poller.run,
        base.dra.run,
        base.agent.read_cards,
        base.agent.follow_faults,
        base.agent.run,
        base.checkpoint.run,
        outputs.node.run,
        *[outputs.statuses.run] * STATUS_WRITERS,
        outputs.events.run,
        stale.run,
        NodeLabel(base.client, base.config.node_name).run,
    )


def _hami(base: AgentBase) -> HamiAnnotations | None:
    """The writer of HAMi's annotations on the node, if the configuration enables them."""
    config = base.config
    if config.hami_annotations == "None":
        return None
    return HamiAnnotations(
        base.client, config.node_name, base.state, config.hami_annotations, time.monotonic
    )


def _hami_loops(base: AgentBase, hami: HamiAnnotations | None) -> tuple[Loop, ...]:
    if hami is None:
        return ()
    of_pods = HamiPodAnnotations(base.client, base.config.node_name, base.state)
    return hami.run, of_pods.run
