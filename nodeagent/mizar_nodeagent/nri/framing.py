"""Encodes and decodes NRI's two layers of framing, both big endian, without I/O.

One socket carries several connections, in frames of connection (u32), length (u32) and payload. The
payloads of one connection form a stream, which the frames may cut anywhere, of ttrpc messages:
length (u32), stream (u32), type (u8), flags (u8) and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from mizar_nodeagent.errors import RuntimeRefused

_FRAME: Final = struct.Struct(">II")
_MESSAGE: Final = struct.Struct(">IIBB")

MESSAGE_MAX: Final = 4 << 20
"""Longest payload of a ttrpc message, in bytes."""
FRAME_MAX: Final = _MESSAGE.size + MESSAGE_MAX
"""Longest payload of a frame, in bytes."""
FRAME_SENT_MAX: Final = 4096
"""Longest payload of a frame that the agent sends, in bytes. The runtime reads frames into a buffer
of this size at least, and ends the connection if a frame does not fit."""


class Kind(IntEnum):
    """Types of ttrpc messages. DATA belongs to streams of messages, which NRI does not have."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True)
class Message:
    """A ttrpc message. `stream`: a number that a request shares with its response; odd, and
    increasing from request to request."""

    stream: int
    kind: Kind
    payload: bytes


@dataclass
class Frames:
    """Splits the bytes of a socket, which arrive in pieces of any length, into frames."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield connection and payload of each frame that is complete with this data. Raises
        RuntimeRefused if a frame is too long."""
        self._rest += data
        while len(self._rest) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._rest)
            if length > FRAME_MAX:
                raise RuntimeRefused(f"a frame of {length} bytes: {FRAME_MAX} at most are allowed")
            end = _FRAME.size + length
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_FRAME.size : end])
            del self._rest[:end]
            yield connection, payload


@dataclass
class Messages:
    """Splits the payloads of one connection's frames into ttrpc messages."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message that is complete with this data. Raises RuntimeRefused if a message is
        too long or of an unknown type."""
        self._rest += data
        while len(self._rest) >= _MESSAGE.size:
            length, stream, kind, _ = _MESSAGE.unpack_from(self._rest)
            if length > MESSAGE_MAX:
                raise RuntimeRefused(
                    f"a message of {length} bytes: {MESSAGE_MAX} at most are allowed"
                )
            end = _MESSAGE.size + length
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_MESSAGE.size : end])
            del self._rest[:end]
            yield Message(stream, _kind(kind), payload)


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise RuntimeRefused(f"a message of the unknown type {number}") from None


def message(one: Message) -> bytes:
    """The message as bytes. Raises RuntimeRefused if it is too long to be sent."""
    if len(one.payload) > MESSAGE_MAX:
        raise RuntimeRefused(f"{len(one.payload)} bytes are too long for a message")
    return _MESSAGE.pack(len(one.payload), one.stream, one.kind, 0) + one.payload


def frames(connection: int, data: bytes) -> bytes:
    """The data, split into frames of this connection that are short enough for the runtime."""
    parts = (data[at : at + FRAME_SENT_MAX] for at in range(0, len(data), FRAME_SENT_MAX))
    return b"".join(_FRAME.pack(connection, len(part)) + part for part in parts)
