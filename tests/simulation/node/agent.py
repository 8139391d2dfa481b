"""One node agent's process in a simulation: its own parts, put together as in assembly.py, between
a simulated kubelet, API server, disk and cards. It can be killed at any await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, cast

from mizar_core.errors import MizarError
from mizar_core.names import SPOT_RESOURCE, EventReason
from mizar_kube.client import KubeClient
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_nodeagent import agent_checkpoint
from mizar_nodeagent.agent_checkpoint import CheckpointFile
from mizar_nodeagent.agent_loop import Agent, Outputs
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.allocate import Allocator
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slot_gc import EVERY_S as COLLECT_S
from mizar_nodeagent.container.slot_gc import SlotGarbageCollector
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.cuda_context.costs import CONTEXTS, ContextCosts
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards, ResourceSlice
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.shadow_status_writer import ShadowStatusWriter
from mizar_nodeagent.shutdown_cleanup import ShutdownCleanup
from simulation.node.api import NodeStatus, Statuses, Watch, now
from simulation.node.disk import Killed
from simulation.node.dra import POOL, SliceApi, SliceWatch
from simulation.node.kubelet import AgentGone, Plugins, Podresources
from simulation.node.lending import Lending
from simulation.node.world import World

BOOT = "boot-1"
ENDING = (
    EventReason.DEVICE_GIVEN_TWICE,
    EventReason.CARD_LOST,
    EventReason.CARD_RENUMBERED,
    EventReason.ISOLATION_NOT_ENFORCED,
)
"""Reasons of events for which the operator or a user deletes the pod."""


class Events:
    """Has EventRecorder's method: operator and users act on some events."""

    def __init__(self, world: World) -> None:
        self._world = world

    def emit(self, about: Any, reason: str, note: str, **_: Any) -> None:
        """As EventRecorder.emit."""
        self._world.tell(f"event {reason} on {about.name}: {note[:160]}")
        if reason in ENDING:
            # The agent may not know the pod's UID yet.
            pod = self._world.api.pods.get((about.namespace, about.name))
            self._world.evicted.add(about.uid or (pod.uid if pod else ""))


class AgentProcess:
    """Runs from its creation until it is killed or ended. Raises OSError if it cannot start."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        folder = world.state_dir
        folder.mkdir(exist_ok=True)
        self.slots = Slots(folder / "slots", shim_install.install(world.shim, folder), BOOT)
        self.slots.load(world.wall())
        path = folder / "checkpoint.json"
        saved = agent_checkpoint.load(path, now(), BOOT)
        self.state = AgentState(saved.carvings, saved.taken_back)
        self.checkpoint = CheckpointFile(path, BOOT, saved)
        self.checkpoint.reserve()
        self.agent = Agent(self.state, world.cards, self.checkpoint, now, world.time)
        self.agent.inventory.restore(
            saved.faults, [one for each in saved.carvings.values() for one in each.cards]
        )
        owners = (one.owner for one in self.slots.all())
        users = {(one.namespace, one.pod) for one in owners if one is not None}
        self.dra = self._dra()
        self.poller = KubeletPoller(
            cast(
                PodResources,
                Podresources(world.kubelet, world.healthy_cards, world.driver, self.dra),
            ),
            self.agent.wake,
            now,
            expected=users | saved.carvings.keys(),
        )
        if self.dra is not None:
            self.dra.changed, self.poller.taken = self.poller.poll_soon, self.dra.keep
        self._container()
        self._rest()
        self._start()

    def _dra(self) -> AllocatedDraCards | None:
        world, driver = self.world, self.world.driver
        if driver is None:
            return None
        api = SliceApi(world.api, driver, self.random, world.lag)
        watch = SliceWatch(world.api, driver, self.random, world.lag)
        return AllocatedDraCards(
            cast(KubeClient, api),
            POOL,
            world.state_dir,
            BOOT,
            cast("Informer[ResourceSlice]", watch),
            now,
            uptime=lambda: float("inf"),  # cards get other numbers while pods run, not at a boot
        )

    def _container(self) -> None:
        world, state, slots, agent = self.world, self.state, self.slots, self.agent
        access = AccessChoice(
            CardAccess(pass_device_specs=world.names_nodes, device_nodes=()),
            instance_of=agent.inventory.instance_of,
            minors=world.cards.minors,
        )
        self.access = access
        self.allocator = Allocator(
            state,
            slots,
            access,
            world.cards.minors,
            self.poller.poll_claims,
            now,
            world.wall,
            self._allocated,
        )
        contexts = ContextCosts(
            world.state_dir / CONTEXTS, state, world.cards.context_bytes, clock=now
        )
        self.prestart = PreStart(
            state,
            slots,
            self.poller.poll_claims,
            lambda: device_checkpoint.read(world.kubelet.plugin_dir),
            agent.notify,
            agent.warn,
            contexts,
            world.cards.minors,
            access.check,
            pods=agent.pods,
        )
        self.limits = LimitsUpdater(state, slots, agent.notify, agent.warn, contexts.of)
        self.collector = SlotGarbageCollector(
            state, slots, world.kubelet.plugin_dir, now, world.wall
        )

    def _rest(self) -> None:
        world, random = self.world, self.random
        self.watch = Watch(world.api, random, world.lag)
        pods = cast("Informer[Pod]", self.watch)
        self.node = NodeStatus(world.api, random, self.agent.wake)
        self.statuses = Statuses(world.api, random)
        self.plugins = Plugins(world.kubelet, self.spawn)
        self.events = Events(world)
        self.lending = Lending(self)
        outputs = Outputs(
            plugins=cast(PluginManager, self.plugins),
            node=cast(NodeStatusWriter, self.node),
            statuses=cast(ShadowStatusWriter, self.statuses),
            events=cast(EventRecorder, self.events),
            limits=self.limits.update_with_pauses,
            lend=self.lending.lender.planned,
            planning_failed=lambda: world.broken("planning fails for a shadow pod"),
        )
        self.agent.attach(pods, self.poller, outputs, self.slots)
        self.cleanup = ShutdownCleanup(
            world.state_dir,
            self.state,
            self.slots,
            pods,
            self.poller,
            world.kubelet.plugin_dir,
            lambda: self.agent.inventory.is_marked,
            world.wall,
        )

    def _start(self) -> None:
        for loop in (
            self.watch.run,
            self.poller.run,
            self.agent.read_cards,
            self.agent.follow_faults,
            self.agent.run,
            self.checkpoint.run,
            self.node.run,
            self.statuses.run,
            self._collect,
            *self.lending.loops,
            *([self.dra.run] if self.dra else ()),
        ):
            self.spawn(loop()).add_done_callback(self._loop_ended)
        self.agent.wake()

    def spawn(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as long as the process lives."""
        task = asyncio.ensure_future(job)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or isinstance(task.exception(), Killed):
            return
        self.world.broken(f"a loop of the agent ended: {task.exception()!r}")

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(COLLECT_S)
            try:
                await self.collector.collect()
            except (KubeletAway, OSError) as error:
                self.world.tell(f"unused slots are not removed for now: {error}")

    def _allocated(self) -> None:
        asyncio.get_running_loop().call_later(0.02, self.poller.poll_soon)
        self.agent.wake()

    async def call(self, name: str, resource: str, *args: Any) -> Any:
        """A call of the kubelet. Raises AgentGone if it is refused or the agent ends before."""
        spot = resource == SPOT_RESOURCE
        handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "preferred": self.lending.allocator.preferred if spot else self.allocator.preferred,
            "allocate": self.lending.allocator.allocate if spot else self.allocator.allocate,
            "prestart": self.lending.prestart.prepare if spot else self.prestart.prepare,
        }
        task = self.spawn(handlers[name](resource, *args))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if self.dead or task.cancelled():
            raise AgentGone("the agent ended")
        error = task.exception()
        if isinstance(error, MizarError):
            raise AgentGone(str(error)) from error
        if isinstance(error, Killed):
            raise AgentGone("the agent was killed")
        if error is not None:
            self.world.broken(f"{name} of {resource} {args} failed: {error!r}")
            raise AgentGone(repr(error)) from error
        return task.result()

    def kill(self) -> None:
        """The process dies at once."""
        self.dead = True
        for task in list(self.tasks):
            task.cancel()
        self.lending.stop_timers()

    async def end(self) -> None:
        """The process ends by itself, as for an upgrade."""
        self.world.kubelet.disconnect()
        await self.checkpoint.write()
        await self.cleanup.run()
        self.kill()
