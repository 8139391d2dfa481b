"""Keeps the agent connected to the container runtime as an NRI plugin, and says why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from mizar_kube.backoff import Backoff
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.errors import RuntimeAway, RuntimeRefused
from mizar_nodeagent.nri.session import Create, Session
from mizar_nodeagent.proto import nri_pb2 as pb

log = get_logger(__name__)

Found = Callable[[Sequence[pb.PodSandbox], Sequence[pb.Container]], None]
"""Receives the pods and containers that the runtime had when the agent connected."""
Named = Callable[[str], None]
"""Receives the runtime's name and version."""


class RuntimePlugin:
    """The agent's connection to the runtime. `socket`: the runtime's NRI socket. `create` is called
    for each new container, `found` at each connection with the containers that exist already.
    `own`: namespace and name of the agent's own pod; None if they are not known. `named` is called
    at each connection, before any container is created."""

    def __init__(
        self,
        socket: Path,
        create: Create,
        found: Found,
        backoff: Backoff | None = None,
        own: tuple[str, str] | None = None,
        named: Named = lambda runtime: None,
    ) -> None:
        self.runtime = ""
        """Name and version of the runtime that was connected last; empty before any was."""
        self.problem = f"NRI at {socket}: not tried yet"
        """Why there is no connection; empty while there is one."""
        self.connections = 0
        """How often the kubelet's runtime was connected to."""
        self.is_foreign = False
        """Whether another runtime was at the socket last."""
        self._connected = asyncio.Event()
        self._socket = socket
        self._create = create
        self._found = found
        self._own = own
        self._named = named
        self._backoff = backoff or Backoff(first=0.1, most=2.0)

    async def wait(self, within: float) -> None:
        """Wait until there is a connection, `within` seconds at most."""
        await wait_until_set(self._connected, within)

    async def run(self) -> None:
        """Connect, and reconnect whenever the connection ends, for ever."""
        while True:
            try:
                await Session(self._create, self._synchronized).run(self._socket)
            except (RuntimeAway, RuntimeRefused) as error:
                self._lost(f"NRI at {self._socket}: {error}")
            await asyncio.sleep(self._backoff.next())

    def _lost(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the container runtime is not connected", error=problem)
        self.problem = problem
        self._connected.clear()

    def _synchronized(
        self, runtime: str, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]
    ) -> None:
        self._check_kubelets(runtime, pods)
        self.runtime = runtime
        self._named(runtime)
        self._found(pods, containers)
        log.info("the container runtime is connected", runtime=runtime)
        self.problem = ""
        self.connections += 1
        self._backoff.reset()
        self._connected.set()

    def _check_kubelets(self, runtime: str, pods: Sequence[pb.PodSandbox]) -> None:
        """Check that this is the kubelet's runtime: it has the agent's own pod. A runtime that
        starts replaces the socket of any other one of the node, and would not ask about the
        kubelet's containers. Raises RuntimeRefused."""
        pods_there = {(pod.namespace, pod.name) for pod in pods}
        self.is_foreign = self._own is not None and self._own not in pods_there
        if self._own and self.is_foreign:
            raise RuntimeRefused(
                f"{runtime} there is not the kubelet's container runtime, since it does not have "
                f"the agent's own pod {'/'.join(self._own)}: have the two runtimes use different "
                "sockets, and set cardAccess.nriSocket to that of the kubelet's; or, if that has "
                "no NRI, use another cardAccess.strategy"
            )
