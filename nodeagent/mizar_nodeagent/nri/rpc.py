"""Requests and responses in both directions over one NRI socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from mizar_core.errors import MizarError
from mizar_kube.logs import get_logger
from mizar_nodeagent.errors import RuntimeAway, RuntimeRefused
from mizar_nodeagent.nri import framing
from mizar_nodeagent.nri.framing import Frames, Kind, Messages
from mizar_nodeagent.proto import ttrpc_pb2 as ttrpc

log = get_logger(__name__)

PLUGIN_SERVES: Final = 1
"""Number of the connection on the socket on which the runtime asks and the agent answers."""
RUNTIME_SERVES: Final = 2
"""Number of the connection on the socket on which the agent asks and the runtime answers."""

READ_BYTES: Final = 1 << 16
"""The most bytes of one read from the runtime's socket."""
ANSWER_WITHIN: Final = 0.75
"""Fraction of the runtime's timeout that an answer may take. After the whole timeout the runtime
drops the plugin and creates the container without it; an error before that makes it refuse the
container."""
PATIENCE_S: Final = 2.0
"""The runtime's timeout for an answer, in seconds, unless it names another when it connects."""
INTERNAL, UNIMPLEMENTED, DEADLINE_EXCEEDED, FAILED_PRECONDITION = 13, 12, 4, 9
"""Status codes of gRPC."""

Method = tuple[str, str]
"""Names of a service and of its method."""
Handler = Callable[[bytes], Awaitable[bytes]]
"""Answers a request; both are serialised protobuf messages. The runtime gets the text of a
MizarError that it raises."""

_P = TypeVar("_P", bound=Proto)


class Rpc:
    """Requests in both directions over one socket: `handlers` answer those of the runtime, `call`
    sends one to it.

    Both work only while `run` runs. The runtime's requests are answered concurrently. `patience_s`:
    the runtime's timeout for an answer, in seconds.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[Method, Handler],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._frames = Frames()
        self._messages = {PLUGIN_SERVES: Messages(), RUNTIME_SERVES: Messages()}
        self._waiting: dict[int, asyncio.Future[ttrpc.Response]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._next = 1
        self.patience_s = PATIENCE_S

    async def call(self, method: Method, request: Proto, answer: type[_P], within: float) -> _P:
        """Send a request to the runtime. Returns its answer, parsed as `answer`. Raises RuntimeAway
        if there is none within `within` seconds, RuntimeRefused if it is an error or cannot be
        parsed."""
        stream, self._next = self._next, self._next + 2
        future = asyncio.get_running_loop().create_future()
        self._waiting[stream] = future
        asked = ttrpc.Request(
            service=method[0], method=method[1], payload=request.SerializeToString()
        )
        self._send(RUNTIME_SERVES, stream, Kind.REQUEST, asked)
        try:
            async with asyncio.timeout(within):
                response = await future
        except TimeoutError:
            raise RuntimeAway(f"no answer to {method[1]} within {within:g} s") from None
        finally:
            del self._waiting[stream]
        if response.status.code:
            raise RuntimeRefused(f"{method[1]} was refused: {response.status.message}")
        return parsed(answer, response.payload)

    async def run(self) -> None:
        """Read messages until the connection ends. Raises RuntimeAway then, and RuntimeRefused at a
        message that breaks the protocol."""
        try:
            await self._read()
        finally:
            for task in self._answering:
                task.cancel()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError as error:
                raise RuntimeAway(f"the connection was lost: {error}") from error
            if not data:
                raise RuntimeAway("the runtime closed the connection")
            for connection, payload in self._frames.feed(data):
                if connection in self._messages:
                    for message in self._messages[connection].feed(payload):
                        self._take(connection, message)

    def _take(self, connection: int, message: framing.Message) -> None:
        if (connection, message.kind) == (PLUGIN_SERVES, Kind.REQUEST):
            request = parsed(ttrpc.Request, message.payload)
            task = asyncio.create_task(self._answer(message.stream, request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (connection, message.kind) == (RUNTIME_SERVES, Kind.RESPONSE):
            future = self._waiting.get(message.stream)
            if future and not future.done():
                future.set_result(parsed(ttrpc.Response, message.payload))
        else:
            raise RuntimeRefused(f"a {message.kind.name} on connection {connection}")

    async def _answer(self, stream: int, request: ttrpc.Request) -> None:
        self._send(PLUGIN_SERVES, stream, Kind.RESPONSE, await self._response(request))

    async def _response(self, request: ttrpc.Request) -> ttrpc.Response:
        handler = self._handlers.get((request.service, request.method))
        if handler is None:
            return _failed(UNIMPLEMENTED, f"mizar has no {request.service}/{request.method}")
        try:
            async with asyncio.timeout(within := ANSWER_WITHIN * self.patience_s):
                return ttrpc.Response(payload=await handler(request.payload))
        except TimeoutError:
            sentence = f"mizar had no answer to {request.method} within {within:g} s"
            return _failed(DEADLINE_EXCEEDED, sentence)
        except MizarError as error:
            return _failed(FAILED_PRECONDITION, f"mizar: {error}")
        except Exception:
            # A bug of the agent must not end the connection, without which no container gets cards.
            log.exception("a request of the container runtime failed", call=request.method)
            return _failed(INTERNAL, f"mizar failed in {request.method}: see the node agent's log")

    def _send(self, connection: int, stream: int, kind: Kind, payload: Proto) -> None:
        """Send a message. The write is not awaited, since messages are small compared to the
        socket's buffer."""
        message = framing.message(framing.Message(stream, kind, payload.SerializeToString()))
        if not self._writer.is_closing():
            self._writer.write(framing.frames(connection, message))


def parsed(kind: type[_P], payload: bytes) -> _P:
    """The payload, parsed as a protobuf message of this type. Raises RuntimeRefused if it cannot be
    parsed."""
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise RuntimeRefused(f"no {kind.DESCRIPTOR.name} could be read: {error}") from error


def _failed(code: int, message: str) -> ttrpc.Response:
    return ttrpc.Response(status=ttrpc.Status(code=code, message=message))
