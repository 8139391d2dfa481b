"""The device plugin of one resource: registers with the kubelet, again whenever the kubelet
restarts, and keeps exactly one stream to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc

from mizar_kube.backoff import Backoff
from mizar_kube.logs import get_logger
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet.socket_watch import CONNECTED_S, Identity, KubeletSocket
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.plugin.server import OPTIONS, Handlers, Server, Servicer, Timed
from mizar_nodeagent.plugin.streams import Streams
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc

log = get_logger(__name__)

VERSION: Final = "v1beta1"
REGISTER_TIMEOUT_S = 5.0
"""Seconds within which the kubelet must answer a registration."""
STREAM_TIMEOUT_S = 5.0
"""Seconds within which the kubelet must open its stream after a registration; otherwise the plugin
registers again."""
END_TIMEOUT_S = 2.0
"""Seconds within which streams must end after `end_all`; otherwise their server is stopped."""
SETTLE_S = 0.5
"""Seconds to wait after the end of a stream. The kubelet handles it with a delay, which is longer
on a busy node, and would undo a registration that came before."""
FORGET_TIMEOUT_S = 5.0
"""Most seconds to wait before a registration until the kubelet has no healthy device of the
resource, which shows that it has handled the end of the last stream. If it did so later and undid
the registration, that could go unnoticed when the list changes just then."""
FORGET_POLL_S = 0.1
"""Seconds between two queries of the kubelet's devices during that wait."""
STABLE_S = 10.0
"""Seconds after which an attempt to serve counts as successful, so that the back-off starts
anew."""


KubeletDevices = Callable[[str], Awaitable[frozenset[str]]]
"""Returns the IDs of the devices of a resource that the kubelet considers healthy. Raises
KubeletAway."""


class ResourcePlugin:
    """Serves one resource and stays registered. `run` goes on until cancelled."""

    def __init__(
        self,
        resource: str,
        plugin_dir: Path,
        kubelet: KubeletSocket,
        kubelet_devices: KubeletDevices,
        handlers: Handlers,
        timed: Timed,
    ) -> None:
        self.resource = resource
        self.streams = Streams()
        self._plugin_dir = plugin_dir
        self._kubelet = kubelet
        self._kubelet_devices = kubelet_devices
        self._servicer = Servicer(resource, self.streams, handlers, timed)
        self._server: Server | None = None
        self._failing = False
        self._undone = asyncio.Event()
        # A delay is drawn at random, and is at least half of its bound: SETTLE_S at first.
        self._backoff = Backoff(first=2 * SETTLE_S, most=5.0)

    @property
    def connected(self) -> bool:
        """Whether the kubelet has exactly one stream open, over which it gets the list."""
        return self.streams.open == 1

    def update(self, devices: tuple[Device, ...]) -> None:
        """Send this list to the kubelet."""
        self.streams.update(devices)

    def register_again(self) -> None:
        """End the stream and register anew: the kubelet has undone the registration, though it left
        the stream open."""
        self._undone.set()

    async def run(self) -> None:
        """Serve and register, and do both again whenever the kubelet has lost the plugin."""
        try:
            while True:
                await self._serve_once()
        finally:
            await self._stop()

    async def _serve_once(self) -> None:
        kubelet = await self._kubelet.there()
        loop = asyncio.get_running_loop()
        began = loop.time()
        if await self._connect():
            await self._until_lost(kubelet)
        if loop.time() - began > STABLE_S:
            self._backoff.reset()
        await self._end_streams()
        await self._rest(kubelet)

    async def _rest(self, kubelet: Identity) -> None:
        """Wait before the next attempt, but no longer than until the kubelet is restarted."""
        try:
            async with asyncio.timeout(self._backoff.next()):
                await self._kubelet.changed_from(kubelet)
        except TimeoutError:
            return
        self._backoff.reset()

    async def _connect(self) -> bool:
        """Register. Returns whether the kubelet has opened its stream."""
        server = await self._reachable_server()
        await self._until_forgotten()
        try:
            await register(self._kubelet.path, server.socket, self.resource)
        except (grpc.aio.AioRpcError, TimeoutError, OSError) as error:
            (log.debug if self._failing else log.warning)(
                "registering with the kubelet failed", resource=self.resource, error=_text(error)
            )
            self._failing = True
            return False
        self._failing = False
        if not await self.streams.until_open(1, STREAM_TIMEOUT_S):
            log.warning("the kubelet does not ask for the devices", resource=self.resource)
            return False
        log.info("registered with the kubelet", resource=self.resource)
        return True

    async def _until_forgotten(self) -> None:
        """Wait until the kubelet has handled the end of the last stream, if it answers, for at most
        FORGET_TIMEOUT_S."""
        try:
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                while await self._kubelet_devices(self.resource):  # noqa: ASYNC110
                    await asyncio.sleep(FORGET_POLL_S)
        except (KubeletAway, TimeoutError) as error:
            log.debug("registering anyway", resource=self.resource, error=_text(error))

    async def _until_lost(self, kubelet: Identity) -> None:
        self._undone.clear()
        waiting = {
            asyncio.ensure_future(self._kubelet.changed_from(kubelet, CONNECTED_S)),
            asyncio.ensure_future(self.streams.until_other_than(1)),
            asyncio.ensure_future(self._undone.wait()),
        }
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        log.info(
            "registering again: the kubelet is gone, or it undid the registration",
            resource=self.resource,
            count=self.streams.open,
        )

    async def _reachable_server(self) -> Server:
        if self._server is not None and not self._server.reachable:
            await self._stop()
        if self._server is None:
            self._server = await Server.start(self._plugin_dir, self.resource, self._servicer)
        return self._server

    async def _end_streams(self) -> None:
        """End all open streams, and give the kubelet, if it still runs, time to notice."""
        if not self.streams.open:
            return
        self.streams.end_all()
        if not await self.streams.until_open(0, END_TIMEOUT_S):
            await self._stop()
        await asyncio.sleep(SETTLE_S)

    async def _stop(self) -> None:
        server, self._server = self._server, None
        self.streams.end_all()
        if server is not None:
            await server.stop()
            self.streams.forget_all()


def _text(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return str(error.details())
    return str(error) or type(error).__name__


async def register(kubelet_socket: Path, endpoint: Path, resource: str) -> None:
    """Register the resource with the kubelet. `endpoint`: the socket of a server that already
    answers. Raises grpc.aio.AioRpcError, TimeoutError."""
    request = pb.RegisterRequest(
        version=VERSION, endpoint=endpoint.name, resource_name=resource, options=OPTIONS
    )
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix://{kubelet_socket}", options=options) as channel:
        stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        async with asyncio.timeout(REGISTER_TIMEOUT_S + 1):
            await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
