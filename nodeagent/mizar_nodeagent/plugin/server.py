"""The gRPC server of one resource, which answers the kubelet's calls."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from mizar_core.errors import MizarError
from mizar_kube.logs import bound, get_logger
from mizar_nodeagent.errors import NotYet, StartRefused
from mizar_nodeagent.kubelet.socket_watch import identity
from mizar_nodeagent.plugin.streams import Streams
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc

log = get_logger(__name__)

GRACE_S = 0.5
"""Seconds that running calls have to finish when their server stops."""
STOP_TIMEOUT_S = 5.0
"""Seconds after which a server that does not stop is abandoned."""

OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

T = TypeVar("T")


@dataclass(frozen=True)
class Handlers:
    """The functions that answer the kubelet's calls for all resources. Each takes the resource's
    name first, and raises MizarError to refuse the call."""

    preferred: Callable[[str, Sequence[str], Sequence[str], int], Awaitable[Sequence[str]]]
    """Answers GetPreferredAllocation: takes the IDs of the available devices, the IDs that must be
    included, and the number of devices; returns the preferred IDs."""
    allocate: Callable[[str, Sequence[str]], Awaitable[pb.ContainerAllocateResponse]]
    """Answers Allocate for one container: takes the IDs of its devices."""
    prestart: Callable[[str, Sequence[str]], Awaitable[None]]
    """Answers PreStartContainer: takes the IDs of the container's devices."""


Timed = Callable[[str, float], None]
"""Called with the name of each answered call and the seconds that it took."""


class Servicer(rpc.DevicePluginServicer):
    """Answers the kubelet's calls for one resource."""

    def __init__(self, resource: str, streams: Streams, handlers: Handlers, timed: Timed) -> None:
        self._resource = resource
        self._streams = streams
        self._handlers = handlers
        self._timed = timed

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return OPTIONS

    async def ListAndWatch(self, request: Any, context: Any) -> None:
        await self._streams.stream(context.write)

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        async def ask() -> pb.PreferredAllocationResponse:
            return pb.PreferredAllocationResponse(
                container_responses=[
                    pb.ContainerPreferredAllocationResponse(
                        deviceIDs=await self._handlers.preferred(
                            self._resource,
                            one.available_deviceIDs,
                            one.must_include_deviceIDs,
                            one.allocation_size,
                        )
                    )
                    for one in request.container_requests
                ]
            )

        return await self._answer("preferred", ask, context)

    async def Allocate(self, request: Any, context: Any) -> Any:
        async def ask() -> pb.AllocateResponse:
            return pb.AllocateResponse(
                container_responses=[
                    await self._handlers.allocate(self._resource, one.devices_ids)
                    for one in request.container_requests
                ]
            )

        device = sorted(id for one in request.container_requests for id in one.devices_ids)
        with bound(device=device):
            return await self._answer("allocate", ask, context)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        async def ask() -> pb.PreStartContainerResponse:
            await self._handlers.prestart(self._resource, request.devices_ids)
            return pb.PreStartContainerResponse()

        with bound(device=sorted(request.devices_ids)):
            return await self._answer("prestart", ask, context)

    async def _answer(self, name: str, ask: Callable[[], Awaitable[T]], context: Any) -> T:
        began = time.perf_counter()
        with bound(call=name, resource=self._resource):
            try:
                answer = await ask()
            except MizarError as error:
                log.warning("refused", error=error)
                await context.abort(_code(error), _said(error))
                raise
            self._timed(name, time.perf_counter() - began)
        return answer


def _said(error: MizarError) -> str:
    """What the kubelet shows as the reason why the container waits: with the reason of the event on
    its pod, by which the operator knows pods to replace."""
    return f"{error.reason}: {error}" if isinstance(error, StartRefused) else str(error)


def _code(error: MizarError) -> grpc.StatusCode:
    if isinstance(error, NotYet):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, StartRefused):
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.INVALID_ARGUMENT


class Server:
    """A running gRPC server, on a socket with a new name: a server that ends unlinks the path of
    its socket, which must not be its successor's."""

    def __init__(self, server: grpc.aio.Server, socket: Path) -> None:
        self.socket = socket
        self._server = server
        self._identity = identity(socket)

    @classmethod
    async def start(cls, plugin_dir: Path, resource: str, servicer: Servicer) -> Server:
        """Start a server on a new socket in `plugin_dir`, the kubelet's folder for device
        plugins."""
        socket = plugin_dir / _socket_name(resource)
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        return cls(server, socket)

    @property
    def reachable(self) -> bool:
        """Whether the server's socket still exists: a starting kubelet deletes all plugins'
        sockets, perhaps even before this object was created."""
        return self._identity is not None and identity(self.socket) == self._identity

    async def stop(self) -> None:
        """Stop when the running calls have ended, after GRACE_S at the latest. A server that has
        not stopped after STOP_TIMEOUT_S is abandoned without its socket: its successor has
        another."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._server.stop(GRACE_S)
        except TimeoutError:
            log.warning("a plugin's server did not stop", path=str(self.socket))
        with suppress(OSError):
            self.socket.unlink()


def _socket_name(resource: str) -> str:
    """A new name for a socket; short, since the socket's whole path must fit in 107 bytes."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    return f"mizar-{digest}-{secrets.token_hex(4)}.sock"


def remove_old_sockets(plugin_dir: Path) -> None:
    """Remove the sockets that a killed agent left behind."""
    for socket in plugin_dir.glob("mizar-*.sock"):
        with suppress(OSError):
            socket.unlink()
