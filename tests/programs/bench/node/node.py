"""A node of simulated cards: a simulated kubelet and API server, and the real agent between them,
over real gRPC and HTTP. It needs neither root nor a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

import simgpu
from bench.node.kubelet import TimedKubelet
from bench.node.process import PATIENCE_S, AgentProcess
from mizar_core.models import Isolation
from mizar_nodeagent import agent_checkpoint
from unit.kube import kubeconfigs
from unit.nodeagent.fake_api import FakeApi
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import shadow_object, share_object

ROOT = Path(__file__).resolve().parents[4]
CARDS = 16
TENANT = "team-a"
EARLIER = "an earlier boot"


class Node:
    """`api` and `kubelet` are simulated, `agent` is the real one. Shadow pods hold one card
    each."""

    def __init__(
        self, folder: Path, machine: simgpu.Machine, api: FakeApi, agent: AgentProcess
    ) -> None:
        self.api = api
        self.kubelet = TimedKubelet(folder / "kubelet")
        self.agent = agent
        self._folder = folder
        self._cards = [card.uuid for card in machine.cards]
        self._shadows: list[tuple[str, str]] = []
        self._started = 0

    def start_agent(self, **config: Any) -> None:
        """Start the agent's process. `config`: more settings, in camelCase."""
        self.agent.start(
            nodeName="node-1",
            kubeletDir=str(self._folder / "kubelet"),
            pluginDir=str(self._folder / "kubelet" / "device-plugins"),
            stateDir=str(self._folder / "state"),
            shimPath=str(ROOT / "build" / "shim" / "libmizar.so"),
            logLevel="WARNING",
            **config,
        )

    def resource(self, devices: int) -> str:
        """The resource of shadow pods with that many devices."""
        return f"{TENANT}.mizar.share/gpu.{devices}"

    def add_shadow(self, devices: int, compute: str = "Hard") -> str:
        """Add a shadow pod, bound to the node, with the next card. Returns its resource."""
        number, resource = len(self._shadows), self.resource(devices)
        name = f"shadow-{devices}-{number}"
        self._shadows.append((TENANT, name))
        how = Isolation.model_validate({"compute": compute})
        body = shadow_object(name, TENANT, resource=resource, devices=devices, isolation=how)
        self.kubelet.add_pod(KubePod(TENANT, name, f"uid-{name}"), pause=[self._cards[number]])
        self.api.put_shadow(TENANT, name, f"owner-{name}")
        self.api.put_pod(body)
        return resource

    def is_serving(self) -> bool:
        """Whether the status of every shadow pod says Ready."""
        ready = (self.api.condition(*one, "Ready")[0] for one in self._shadows)
        return all(one == "True" for one in ready)

    def pods(self, count: int, resource: str) -> list[KubePod]:
        """Bind that many share pods to the node at once."""
        first, self._started = self._started, self._started + count
        names = [f"share-{number}" for number in range(first, self._started)]
        for name in names:
            self.api.put_pod(share_object(name, TENANT, resource, admitted=False))
        return [KubePod(TENANT, name, f"uid-{name}") for name in names]

    async def admit(self, pod: KubePod, resource: str) -> None:
        """Call Allocate, as the kubelet does for one pod after the other."""
        await self.kubelet.allocate(pod, "main", resource, 1)

    async def start(self, pod: KubePod, resource: str) -> Allocated:
        """Call PreStartContainer, for any number of pods at once."""
        return await self.kubelet.start_container(pod, "main", resource)

    def remove(self, pod: KubePod) -> None:
        """Remove the pod."""
        self.kubelet.remove_pod(pod.uid)
        self.api.delete_pod(pod.namespace, pod.name)

    def pretend_reboot(self) -> None:
        """Make the agent's files look as if they were written before a boot. The agent must not
        run."""
        path = self._folder / "state" / "checkpoint.json"
        known = agent_checkpoint.load(path, 0.0, EARLIER)
        path.write_bytes(agent_checkpoint.to_bytes(known, EARLIER))


async def until(true: Callable[[], object], what: str) -> float:
    """Wait until the condition is true. Returns time.monotonic then. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")
        await asyncio.sleep(0.0005)
    return time.monotonic()


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    """A node whose kubelet runs and whose agent was not started yet."""
    with simgpu.create(folder / "simgpu", cards=CARDS) as machine:
        api = FakeApi()
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", api.handle)
        async with TestServer(app) as server:
            kubeconfig = kubeconfigs.write(folder, str(server.make_url("")).rstrip("/"), {})
            agent = AgentProcess(folder, kubeconfig, simgpu.environment(folder / "simgpu"))
            made = Node(folder, machine, api, agent)
            await made.kubelet.start()
            try:
                yield made
            finally:
                await agent.stop()
                api.end_watches()
                await made.kubelet.stop()
