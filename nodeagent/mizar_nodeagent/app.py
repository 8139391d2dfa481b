"""Runs the agent's loops, answers its health probes, and serves metrics and the device map by
HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import web

from mizar_kube import probes
from mizar_kube.informer import Informer
from mizar_nodeagent import device_map
from mizar_nodeagent.agent_base import Loop
from mizar_nodeagent.agent_loop import Agent
from mizar_nodeagent.cancellation import run_for_ever
from mizar_nodeagent.config import Config
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.spot.assembly import SpotParts
from mizar_nodeagent.time_slicing.time_slicer import TimeSlicer

STANDS_STILL_S = 600.0
"""Seconds without a request to the API server or an answer, or without a poll of the kubelet, after
which the agent is unhealthy."""
CLAIMS_STALE_S = 30.0
"""Seconds without an answer from the kubelet after which the agent is not ready."""
PLAN_STALE_S = 60.0
"""Seconds without a plan after which the agent is unhealthy."""
SLICING_STALE_S = 60.0
"""Seconds without a round of the time slicer after which the agent is unhealthy."""


@dataclass(frozen=True)
class App:
    """The agent's parts; each of `loops` runs until cancelled."""

    config: Config
    agent: Agent
    pods: Informer[Pod]
    poller: KubeletPoller
    access: AccessChoice
    plugins: PluginManager
    time_slicer: TimeSlicer
    spot: SpotParts
    registry: probes.Registry
    slots: Slots
    dra: AllocatedDraCards
    loops: tuple[Loop, ...]

    def unwell(self) -> Iterable[str]:
        """A sentence for each loop that hangs, for which the agent should be restarted.

        An unreachable API server or kubelet is not a reason, however long it lasts: a restart would
        withdraw the devices from the kubelet for a moment, and would not help.
        """
        if self.pods.since_attempt() > STANDS_STILL_S:
            yield f"pods: the API server was not asked for {self.pods.since_attempt():.0f} s"
        if min(self.poller.age, self.poller.since_attempt) > STANDS_STILL_S:
            yield f"podresources: not asked for {self.poller.since_attempt:.0f} s"
        if self.agent.idle_for > PLAN_STALE_S:
            yield f"nothing planned for {self.agent.idle_for:.0f} s"
        if self.time_slicer.idle_for > SLICING_STALE_S:
            yield f"no GPU time granted for {self.time_slicer.idle_for:.0f} s"

    def unready(self) -> Iterable[str]:
        """A sentence for each reason why the agent cannot do its work now."""
        for copy in (self.pods, self.dra):
            if found := copy.problem():
                yield found
        if self.poller.age > CLAIMS_STALE_S:
            yield f"podresources: no answer for {self.poller.age:.0f} s"
        if self.agent.inventory.problem:
            yield self.agent.inventory.problem
        if self.access.problem:
            yield self.access.problem

    def application(self) -> web.Application:
        """The HTTP application with probes, metrics, and the device map."""
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
                group.create_task(run_for_ever(loop))
            self.agent.wake()
