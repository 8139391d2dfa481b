"""All parts of the node agent put together, in one place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry

from mizar_core.names import FIELD_MANAGER_NODEAGENT
from mizar_kube import probes
from mizar_kube.client import KubeClient
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_nodeagent import checkpoint, device_map, pods
from mizar_nodeagent.agent_loop import DEFAULT_GRACE, Agent, Outputs
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.audit.isolation_condition import IsolationConditions
from mizar_nodeagent.boot import boot_id
from mizar_nodeagent.card_health import take_repaired
from mizar_nodeagent.card_metrics import CardCollector
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.checkpoint import CheckpointFile
from mizar_nodeagent.config import Config
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.access_discovery import discover
from mizar_nodeagent.container.access_report import AccessCollector, AccessReporter
from mizar_nodeagent.container.allocate import Allocator
from mizar_nodeagent.container.granted_cards import Grants
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.runtime_component import RuntimeComponent
from mizar_nodeagent.container.slot_gc import SlotGarbageCollector
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.container.usage_trim import UsageTrimmer
from mizar_nodeagent.container_metrics import ContainerCollector
from mizar_nodeagent.cuda_context.costs import CONTEXTS, ContextCosts
from mizar_nodeagent.hami_annotations import HamiAnnotations
from mizar_nodeagent.hami_pod_annotations import HamiPodAnnotations
from mizar_nodeagent.kubelet import allocation_record
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.kubelet.socket_watch import KubeletSocket
from mizar_nodeagent.metrics import AnswerLatency, DeviceCollector, planning_errors
from mizar_nodeagent.mig import Instance
from mizar_nodeagent.node_status import NodeStatusWriter, runtime_version
from mizar_nodeagent.nri.plugin import RuntimePlugin
from mizar_nodeagent.planning.snapshot import GracePeriods
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.plugin.resource_plugin import ResourcePlugin
from mizar_nodeagent.plugin.server import Handlers, remove_old_sockets
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.shadow_status import ShadowStatusWriter
from mizar_nodeagent.shutdown_cleanup import ShutdownCleanup
from mizar_nodeagent.spot.assembly import SpotParts, assemble_spot, told_by_thread
from mizar_nodeagent.stale_resources import StaleResources
from mizar_nodeagent.time_slicing.containers import containers_of
from mizar_nodeagent.time_slicing.time_slicer import TimeSlicer

STATUS_WRITERS = 4
"""ShadowPods whose status may be written at the same time."""
STANDS_STILL_S = 600.0
"""Without a question to the API server or word of it, or without a poll of the kubelet: the agent
is unhealthy."""
CLAIMS_STALE_S = 30.0
"""Without an answer of the kubelet: the agent is not ready."""
PLAN_STALE_S = 60.0
"""Without a plan: the agent is unhealthy."""
SLICING_STALE_S = 60.0
"""Without a round of the time slicer: the agent is unhealthy."""
RECORDED_AFTER_S = 0.02
"""The kubelet records an allocation some milliseconds after the agent's answer."""


@dataclass(frozen=True)
class App:
    """The agent's parts; each of `loops` goes on for ever."""

    config: Config
    agent: Agent
    pods: Informer[Pod]
    poller: KubeletPoller
    access: AccessChoice
    plugins: PluginManager
    time_slicer: TimeSlicer
    spot: SpotParts
    registry: CollectorRegistry
    slots: Slots
    loops: tuple[Callable[[], Coroutine[None, None, None]], ...]

    def unwell(self) -> Iterable[str]:
        """Why the agent should be restarted: a loop that stands still.

        An API server or kubelet that is away is no reason, however long: a restart takes the
        devices away from the kubelet for a moment, and brings nobody back.
        """
        if self.pods.since_attempt() > STANDS_STILL_S:
            yield f"pods: the API server was not asked for {self.pods.since_attempt():.0f} s"
        if min(self.poller.age, self.poller.since_attempt) > STANDS_STILL_S:
            yield f"podresources: not asked for {self.poller.since_attempt:.0f} s"
        if self.agent.idle_for > PLAN_STALE_S:
            yield f"nothing planned for {self.agent.idle_for:.0f} s"
        if self.time_slicer.idle_for > SLICING_STALE_S:
            yield f"no GPU time dealt out for {self.time_slicer.idle_for:.0f} s"

    def unready(self) -> Iterable[str]:
        """Why the agent cannot do its work now."""
        if found := self.pods.problem():
            yield found
        if self.poller.age > CLAIMS_STALE_S:
            yield f"podresources: no answer for {self.poller.age:.0f} s"
        if self.agent.inventory.problem:
            yield self.agent.inventory.problem
        if self.access.problem:
            yield self.access.problem

    def application(self) -> web.Application:
        """What it serves: probes, metrics, and who has what."""
        made = probes.application(self.registry, self.unwell, self.unready)

        async def devices(_: web.Request) -> web.Response:
            return web.json_response(
                device_map.device_map(self.agent.state, self.slots.all(), time.monotonic())
            )

        made.router.add_get(device_map.PATH, devices)
        return made

    async def run(self) -> None:
        """Run all loops, until cancelled or until one fails."""
        async with (
            probes.serving(self.application(), self.config.metrics_port),
            asyncio.TaskGroup() as group,
        ):
            for loop in self.loops:
                group.create_task(loop())
            self.agent.wake()


@asynccontextmanager
async def assemble(
    config: Config, client: KubeClient, cards: CardSource, grace: GracePeriods = DEFAULT_GRACE
) -> AsyncIterator[App]:
    """Put the parts together, with the state that an earlier run left. Raises ConfigRefused,
    OSError."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    shim = shim_install.install(config.shim_path, config.state_dir)
    boot = boot_id()
    slots = Slots(config.state_dir / "slots", shim, boot)
    slots.load(time.time())
    remove_old_sockets(config.plugin_dir)
    path = config.state_dir / "checkpoint.json"
    saved = checkpoint.load(path, time.monotonic(), boot)
    state = AgentState(saved.carvings, saved.taken_back)
    kept = CheckpointFile(path, boot)
    registry = probes.registry("nodeagent")

    repaired = partial(take_repaired, config.state_dir)
    agent = Agent(state, cards, kept, grace=grace, repaired=repaired)
    agent.inventory.restore(
        saved.faults, [card for one in saved.carvings.values() for card in one.cards]
    )
    podresources = PodResources(config.podresources_socket)
    poller = KubeletPoller(podresources, agent.wake)
    kubelet = KubeletSocket(config.plugin_dir)

    def allocated() -> None:
        asyncio.get_running_loop().call_later(RECORDED_AFTER_S, poller.poll_soon)
        agent.wake()

    def instance_of(uuid: str) -> Instance | None:
        card = state.snapshot.cards.get(uuid)
        return card.instance if card else None

    access = AccessChoice(config.access, instance_of=instance_of)
    component = RuntimeComponent(Grants(state, slots), access, cards.minors, agent.warn)
    runtime = RuntimePlugin(config.card_access.nri_socket, component.create, component.look)
    if access.may_use_nri:
        access.runtime = runtime
    if access.looks:
        version = await runtime_version(client, config.node_name)
        access.settle(await discover(config.access, version))
    allocator = Allocator(
        state,
        slots,
        access,
        cards.minors,
        time.monotonic,
        time.time,
        allocated,
        one_each=config.fail_requests_greater_than_one,
    )
    records = partial(allocation_record.read, config.plugin_dir)
    contexts = ContextCosts(config.state_dir / CONTEXTS, state, cards.context_bytes)
    prestart = PreStart(
        state,
        slots,
        poller.poll_claims,
        records,
        agent.notify,
        agent.warn,
        contexts,
        cards.minors,
        access.check,
    )
    handlers = Handlers(allocator.preferred, allocator.allocate, prestart.prepare)
    latencies = AnswerLatency(registry)

    def make_plugin(resource: str) -> ResourcePlugin:
        return ResourcePlugin(resource, config.plugin_dir, kubelet, handlers, latencies)

    plugins = PluginManager(make_plugin)
    node = NodeStatusWriter(client, config.node_name, agent.wake)
    statuses = ShadowStatusWriter(client, config.node_name)
    events = EventRecorder(client, FIELD_MANAGER_NODEAGENT, config.identity)
    informer = pods.informer(client, config.node_name)
    loop = asyncio.get_running_loop()

    def audit_soon() -> None:
        with suppress(RuntimeError):  # the loop has ended before the time slicer's thread
            loop.call_soon_threadsafe(auditor.audit_soon)

    time_slicer = TimeSlicer(
        containers_of(slots),
        new_code=audit_soon,
        woke=told_by_thread(loop, lambda: spot.lender),
    )
    stale_resources = StaleResources(client, config.node_name, plugins.connected)
    slot_gc = SlotGarbageCollector(state, slots, config.plugin_dir)
    usage_trimmer = UsageTrimmer(slots, agent.warn)
    cleanup = ShutdownCleanup(config.state_dir, state, slots, informer, poller, config.plugin_dir)
    auditor = Auditor(state, slots, cards, time_slicer.set_unaccounted, agent.warn)
    isolation = IsolationConditions(client, informer.values, lambda: auditor.unbound)
    registry.register(DeviceCollector(state, plugins.connected))
    registry.register(ContainerCollector(config.node_name, state, slots, auditor))
    registry.register(CardCollector(config.node_name, state, lambda: agent.inventory.readings))
    registry.register(AccessCollector(config.node_name, access, component.counts))
    reporter = AccessReporter(client, access, config.namespace, config.identity)
    limits = LimitsUpdater(state, slots, agent.notify, agent.warn, contexts.of)
    failures = planning_errors(registry)
    hami = (
        None
        if config.hami_annotations == "None"
        else HamiAnnotations(
            client, config.node_name, state, config.hami_annotations, time.monotonic
        )
    )
    hami_pods = HamiPodAnnotations(client, config.node_name, state)
    spot = assemble_spot(
        config, client, cards, agent, slots, access, poller, kubelet, prestart, latencies, registry
    )

    def planned() -> None:
        limits.update()
        spot.lender.planned()

    agent.attach(informer, poller, Outputs(plugins, node, statuses, events, planned, failures.inc))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(podresources.close)
        stack.push_async_callback(cleanup.run)
        stack.push_async_callback(kept.write)
        if hami is not None:
            stack.push_async_callback(hami.withdraw)
        stack.push_async_callback(plugins.close)
        stack.push_async_callback(node.withdraw, grace.withdraw)
        stack.push_async_callback(spot.close, grace.withdraw)
        yield App(
            config=config,
            agent=agent,
            pods=informer,
            poller=poller,
            access=access,
            plugins=plugins,
            time_slicer=time_slicer,
            spot=spot,
            registry=registry,
            slots=slots,
            loops=(
                informer.run,
                kubelet.run,
                poller.run,
                agent.read_cards,
                agent.follow_faults,
                agent.run,
                kept.run,
                node.run,
                *[statuses.run] * STATUS_WRITERS,
                events.run,
                slot_gc.run,
                usage_trimmer.run,
                stale_resources.run,
                time_slicer.serve,
                auditor.run,
                isolation.run,
                contexts.run,
                *([runtime.run] if access.runtime else []),
                *([reporter.run] if config.namespace else []),
                *([hami.run, hami_pods.run] if hami is not None else []),
                *spot.loops,
            ),
        )
