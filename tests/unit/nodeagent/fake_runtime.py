"""A container runtime that speaks NRI. It has its own code for the wire: bytes are put together by
hand."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from mizar_nodeagent.proto import nri_pb2 as pb
from mizar_nodeagent.proto import ttrpc_pb2 as ttrpc
from support.waiting import PATIENCE_S

Frame = tuple[int, int, int, bytes]
"""Connection, stream, type, payload."""


class Refused(Exception):
    """The plugin answered with an error; `code` is gRPC's."""

    def __init__(self, status: ttrpc.Status) -> None:
        super().__init__(status.message)
        self.code = status.code


class Connection:
    """The connection of one plugin, from the runtime's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._stream = -1
        self.registered = pb.RegisterPluginRequest()
        self.events = 0

    def put(self, connection: int, stream: int, kind: int, payload: bytes) -> None:
        message = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
        self.writer.write(struct.pack(">II", connection, len(message)) + message)

    async def frame(self) -> Frame:
        """The plugin's next message, which it sends in one frame."""
        connection, length = struct.unpack(">II", await self._reader.readexactly(8))
        data = await self._reader.readexactly(length)
        size, stream, kind, _ = struct.unpack(">IIBB", data[:10])
        while len(data) < size + 10:
            _, length = struct.unpack(">II", await self._reader.readexactly(8))
            data += await self._reader.readexactly(length)
        return connection, stream, kind, data[10:]

    async def take_registration(self, answer: ttrpc.Response | None = None) -> None:
        connection, stream, kind, payload = await self.frame()
        assert (connection, stream, kind) == (2, 1, 1)
        request = ttrpc.Request.FromString(payload)
        assert (request.service, request.method) == (
            "nri.pkg.api.v1alpha1.Runtime",
            "RegisterPlugin",
        )
        self.registered = pb.RegisterPluginRequest.FromString(request.payload)
        self.put(2, stream, 2, (answer or ttrpc.Response()).SerializeToString())

    def ask(self, method: str, request: Message) -> int:
        """Send a request without waiting for the answer; returns its stream."""
        self._stream += 2
        asked = ttrpc.Request(
            service="nri.pkg.api.v1alpha1.Plugin",
            method=method,
            payload=request.SerializeToString(),
        )
        self.put(1, self._stream, 1, asked.SerializeToString())
        return self._stream

    async def call(self, method: str, request: Message) -> bytes:
        """Raises Refused."""
        stream = self.ask(method, request)
        connection, answered, kind, payload = await self.frame()
        assert (connection, answered, kind) == (1, stream, 2)
        response = ttrpc.Response.FromString(payload)
        if response.status.code:
            raise Refused(response.status)
        return response.payload

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        request = pb.CreateContainerRequest(pod=pod, container=container)
        answer = await self.call("CreateContainer", request)
        return pb.CreateContainerResponse.FromString(answer).adjust

    async def set_up(
        self,
        *parts: pb.SynchronizeRequest,
        patience_ms: int = int(PATIENCE_S * 1000),
        version: str = "v2.2.9",
    ) -> None:
        """Do all that the runtime does before it asks about containers. `patience_ms`: how long it
        says that it waits for an answer."""
        await self.take_registration()
        request = pb.ConfigureRequest(
            runtime_name="containerd", runtime_version=version, request_timeout=patience_ms
        )
        answer = pb.ConfigureResponse.FromString(await self.call("Configure", request))
        self.events = answer.events
        for part in parts or (pb.SynchronizeRequest(),):
            response = await self.call("Synchronize", part)
            assert pb.SynchronizeResponse.FromString(response).more == part.more


class FakeRuntime:
    """The runtime's socket; `connections` gives the plugins that connect."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        self._open: list[Connection] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, str(self.socket))

    async def stop(self) -> None:
        """Stop as if the runtime was killed: the socket's file stays, and no process listens."""
        if self._server:
            self._server.close()
        for connection in self._open:
            connection.writer.close()
        self._open.clear()

    async def connection(
        self, *parts: pb.SynchronizeRequest, version: str = "v2.2.9"
    ) -> Connection:
        """The next plugin, set up."""
        found = await self.connections.get()
        await found.set_up(*parts, version=version)
        return found

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not (self._server and self._server.is_serving()):
            writer.close()
            return
        connection = Connection(reader, writer)
        self._open.append(connection)
        await self.connections.put(connection)


@asynccontextmanager
async def running(socket: Path) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime(socket)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


@asynccontextmanager
async def in_background(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Run a coroutine that goes on for ever."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
