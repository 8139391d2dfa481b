"""NRI's two layers of frames, both big endian, without I/O.

One socket carries several connections: frames of connection (u32), length (u32) and payload. What
one connection carries is a stream of ttrpc messages, wherever the frames cut it: length (u32),
stream (u32), type (u8), flags (u8) and payload.
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
"""The runtime reads a frame into a buffer of this size at least, and ends the connection where one
does not fit."""


class Kind(IntEnum):
    """Types of ttrpc messages. DATA belongs to streams of messages, which NRI does not have."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True)
class Message:
    """A ttrpc message. `stream`: joins request and response; odd, and rising with each request."""

    stream: int
    kind: Kind
    payload: bytes


@dataclass
class Frames:
    """Takes a socket's bytes, however they are cut, and gives whole frames."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Connection and payload of each frame that is whole now. Raises RuntimeRefused."""
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
    """Takes the payloads of one connection's frames and gives whole ttrpc messages."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Each message that is whole now. Raises RuntimeRefused."""
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
    """The message as bytes. Raises RuntimeRefused when it is too long to be sent."""
    if len(one.payload) > MESSAGE_MAX:
        raise RuntimeRefused(f"{len(one.payload)} bytes are too long for a message")
    return _MESSAGE.pack(len(one.payload), one.stream, one.kind, 0) + one.payload


def frames(connection: int, data: bytes) -> bytes:
    """The data in frames of that connection, each short enough for the runtime."""
    parts = (data[at : at + FRAME_SENT_MAX] for at in range(0, len(data), FRAME_SENT_MAX))
    return b"".join(_FRAME.pack(connection, len(part)) + part for part in parts)
