"""One connection to the container runtime as its plugin, from registration to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.errors import RuntimeAway, RuntimeRefused
from mizar_nodeagent.nri.rpc import Rpc, parsed
from mizar_nodeagent.proto import nri_pb2 as pb

NAME: Final = "mizar"
"""The name by which the agent registers as an NRI plugin."""
INDEX: Final = "80"
"""The agent's place in the order in which the runtime calls NRI plugins: after most others, so that
the agent also sees their changes."""
CREATE_CONTAINER: Final = 4
"""NRI's number of the event CreateContainer: a container is about to be created."""
REGISTERED_WITHIN_S: Final = 10.0
"""Seconds within which the runtime must have listed its containers; otherwise the agent
reconnects."""
RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
"""NRI's name of the service that the runtime offers."""
PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"
"""NRI's name of the service that a plugin offers."""

Create = Callable[[pb.PodSandbox, pb.Container], Awaitable[pb.ContainerAdjustment]]
"""Returns the changes to a container that is about to be created. Raises MizarError to refuse
it."""
Synchronized = Callable[[str, Sequence[pb.PodSandbox], Sequence[pb.Container]], None]
"""Called with the runtime's name and version, and the pods and containers that exist already.
Raises RuntimeRefused to end the connection."""


class Session:
    """A connection to the runtime. `create` is called for each new container; `synchronized` once,
    just before the runtime begins to ask about new containers."""

    def __init__(self, create: Create, synchronized: Synchronized) -> None:
        self._create = create
        self._synchronized = synchronized
        self._runtime = ""
        self._pods: list[pb.PodSandbox] = []
        self._containers: list[pb.Container] = []
        self._complete = asyncio.Event()
        self._refused: RuntimeRefused | None = None

    async def run(self, socket: Path) -> None:
        """Connect, register, and answer until the connection ends. Raises RuntimeAway,
        RuntimeRefused."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(socket))
        except OSError as error:
            raise RuntimeAway(str(error)) from error
        handlers = {(PLUGIN, name): one for name, one in self._handlers().items()}
        self._rpc = Rpc(reader, writer, handlers)
        tasks = {asyncio.create_task(self._rpc.run()), asyncio.create_task(self._register())}
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # Before anything is awaited: a second cancellation would leave the socket open.
            writer.transport.abort()
            await asyncio.wait(tasks)
            with suppress(OSError):
                await writer.wait_closed()

    def _handlers(self) -> dict[str, Callable[[bytes], Awaitable[bytes]]]:
        return {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": self._shutdown,
            "CreateContainer": self._create_container,
        }

    async def _register(self) -> None:
        request = pb.RegisterPluginRequest(plugin_name=NAME, plugin_idx=INDEX)
        method = RUNTIME, "RegisterPlugin"
        await self._rpc.call(method, request, pb.Empty, REGISTERED_WITHIN_S)
        if not await wait_until_set(self._complete, REGISTERED_WITHIN_S):
            raise RuntimeAway(f"it has not listed its containers within {REGISTERED_WITHIN_S:g} s")
        if self._refused:
            raise self._refused

    async def _configure(self, payload: bytes) -> bytes:
        request = parsed(pb.ConfigureRequest, payload)
        self._runtime = f"{request.runtime_name} {request.runtime_version}".strip()
        if request.request_timeout > 0:
            self._rpc.patience_s = request.request_timeout / 1000
        return pb.ConfigureResponse(events=1 << CREATE_CONTAINER - 1).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = parsed(pb.SynchronizeRequest, payload)
        self._pods += request.pods
        self._containers += request.containers
        if not request.more:
            # The runtime creates no container before it has this answer, and then asks about each.
            self._accept()
        return pb.SynchronizeResponse(more=request.more).SerializeToString()

    def _accept(self) -> None:
        """Pass on what the runtime has listed. Raises RuntimeRefused if the connection must end."""
        try:
            self._synchronized(self._runtime, self._pods, self._containers)
        except RuntimeRefused as error:
            self._refused = error  # for _register, which ends the connection
            self._complete.set()
            raise
        self._complete.set()

    async def _shutdown(self, payload: bytes) -> bytes:
        """Acknowledge that the runtime is about to end the connection."""
        return pb.Empty().SerializeToString()

    async def _create_container(self, payload: bytes) -> bytes:
        request = parsed(pb.CreateContainerRequest, payload)
        adjust = await self._create(request.pod, request.container)
        return pb.CreateContainerResponse(adjust=adjust).SerializeToString()
