"""Keeps a container's limits and usage files open, so that reading and writing them is cheap."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import layout, limits_file
from mizar_nodeagent.regions.layout import Compute, Limits, UsageCard
from mizar_nodeagent.regions.usage_snapshot import LedgerWords
from mizar_nodeagent.time_slicing import futex

_ACCOUNT: Final = UsageCard.compute.offset + Compute.charged_ns.offset
_LEARNED: Final = UsageCard.code_uses.offset - UsageCard.settled.offset - 8
_GAP: Final = _ACCOUNT - UsageCard.code_uses.offset - 8
_CARD_WORDS: Final = Struct(f"<QQ{UsageCard.settled.offset - 16}xQ{_LEARNED}xQ{_GAP}xQQQQ")
"""The fields of CardWords, from the start of a UsageCard."""
_WANTED: Final = UsageCard.compute.offset + Compute.wanted_at.offset
_ACTIVITY: Final = Struct(f"<QQ{_WANTED - 16}xQ")
"""The fields `ledger_lo`, `ledger_hi` and `wanted_at` of CardWords, from the start of a
UsageCard."""
_OF_ACTIVITY: Final = ctypes.c_size_t(_ACTIVITY.size)
# Unlike os.pread, this does not release the GIL: to reacquire it would mean waiting for the agent's
# other threads, once per container. The read does not block, since the pages are in memory.
_pread: Final = ctypes.PyDLL(None).pread64
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_ssize_t
# The same function without argument types, for arguments that are ctypes objects already and need
# no conversion in each call.
_pread_prepared: Final = ctypes.PyDLL(None)["pread64"]
_pread_prepared.restype = ctypes.c_ssize_t


@dataclass(frozen=True)
class Container:
    """A container, with the paths of its slot's two files. The windows of a card's containers are
    ordered by `name`."""

    name: str
    limits: Path
    usage: Path

    def __hash__(self) -> int:
        return hash(self.name)  # hashing paths is slow


class CardWords(NamedTuple):
    """Words of a container's account of one card.

    `ledger_lo`, `ledger_hi`: the words of the memory ledger. `settled`: how often memory of dead
    processes was given back. `code_uses`: first uses of code. `charged_ns`: GPU time charged.
    `wanted_at`: when GPU time was last wanted (CLOCK_MONOTONIC, in nanoseconds). `longest_ns`: the
    longest recent piece of work. `waited_ns`: time spent waiting for GPU time.
    """

    ledger_lo: int = 0
    ledger_hi: int = 0
    settled: int = 0
    code_uses: int = 0
    charged_ns: int = 0
    wanted_at: int = 0
    longest_ns: int = 0
    waited_ns: int = 0

    @property
    def memory(self) -> LedgerWords:
        """The memory ledger."""
        return self.ledger_lo, self.ledger_hi

    @classmethod
    def of(cls, raw: bytes) -> CardWords:
        """Parse the bytes that `ContainerFiles.card_bytes` returns."""
        return cls._make(_CARD_WORDS.unpack(raw))


Place = tuple[ctypes.c_int, ctypes.c_int64]
"""A card's part of an open usage file: file descriptor and offset in bytes."""


class ContainerFiles:
    """A container's two open files. The constructor raises OSError if one cannot be opened, and
    RegionDamaged if the limits file has a wrong size.

    Only the agent can change the limits file, so it is mapped. The tenant can write to the usage
    file and may truncate it at any moment, so it is read and never mapped. All offsets are in
    bytes.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self._seq: int | None = None
        # Opened for writing although it is only read: this prevents root in the container from
        # taking a lease on it (fcntl's F_SETLEASE), under which it could fill the disk while the
        # agent cannot truncate the file.
        self._usage = open_promptly(container.usage, os.O_RDWR)
        try:
            self._open_limits()
        except BaseException:
            os.close(self._usage)
            raise
        self._buffer = ctypes.create_string_buffer(_CARD_WORDS.size)

    def close(self) -> None:
        """Close both files."""
        del self._bytes
        self._words.release()
        self._longs.release()
        self._map.close()
        os.close(self._usage)

    def is_current(self) -> bool:
        """Whether the paths still refer to the open files."""
        return self._found == _identities(self.container)

    def new_limits(self) -> Limits | None:
        """The limits, if they were written since the last call. None if not, and while they are
        being written, are empty or damaged: the previous limits stay in force."""
        seq = self._words[Limits.seq.offset // 4]
        if seq == self._seq or seq % 2:
            return None
        try:
            found = limits_file.parse(bytes(self._map), self.container.limits)
        except RegionDamaged:
            return None
        self._seq = seq
        return found

    def card_bytes(self, offset: int) -> bytes:
        """The bytes of the usage file from which CardWords is parsed, for the UsageCard at
        `offset`; zeros if the file was truncated."""
        size = _CARD_WORDS.size
        if _pread(self._usage, self._buffer, size, offset) != size:
            return bytes(size)
        return self._buffer.raw

    def activity(self, offset: int) -> tuple[LedgerWords, int]:
        """`memory` and `wanted_at` of the CardWords at `offset`; zeros if the file was
        truncated."""
        size = _ACTIVITY.size
        if _pread(self._usage, self._buffer, size, offset) != size:
            return (0, 0), 0
        lo, hi, wanted_at = _ACTIVITY.unpack_from(self._buffer)
        return (lo, hi), wanted_at

    def place(self, offset: int) -> Place:
        """The place that `activity` reads. It is invalid once the files are closed."""
        return ctypes.c_int(self._usage), ctypes.c_int64(offset)

    def put(self, offset: int, value: int) -> None:
        """Set a 32-bit word of the limits in one store. Larger values, which may follow from what a
        tenant wrote into its usage file, become 0xFFFFFFFF."""
        self._words[offset // 4] = min(value, 0xFFFFFFFF)

    def put_long(self, offset: int, value: int) -> None:
        """Set a 64-bit word of the limits in one store. Larger values become 2^64 - 1."""
        self._longs[offset // 8] = min(value, 0xFFFFFFFFFFFFFFFF)

    def increment(self, offset: int) -> None:
        """Add one to a 32-bit word of the limits, modulo 2^32."""
        self._words[offset // 4] = (self._words[offset // 4] + 1) & 0xFFFFFFFF

    def wake(self, offset: int) -> None:
        """Increment a futex word of the limits and wake the processes that wait on it."""
        self.increment(offset)
        futex.wake_all(self._address + offset)

    def _open_limits(self) -> None:
        descriptor = open_promptly(self.container.limits, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != layout.LIMITS_SIZE:
                raise RegionDamaged(
                    f"{self.container.limits} is not {layout.LIMITS_SIZE} bytes long"
                )
            self._map = mmap.mmap(descriptor, layout.LIMITS_SIZE)
            self._found = (_identity(os.fstat(descriptor)), _identity(os.fstat(self._usage)))
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("I")
        self._longs = memoryview(self._map).cast("Q")
        self._bytes = ctypes.c_char.from_buffer(self._map)
        self._address = ctypes.addressof(self._bytes)


class ActivityWatch:
    """Detects whether any of several containers may have become active, by reading all of them
    into one buffer and comparing that as a whole, which is cheaper than parsing each."""

    def __init__(self, places: Sequence[Place]) -> None:
        count, size = len(places), _ACTIVITY.size
        self._now = (ctypes.c_char * (count * size))()
        self._seen = b""
        begin = ctypes.addressof(self._now)
        self._files = [file for file, _ in places]
        self._offsets = [offset for _, offset in places]
        self._buffers = [ctypes.c_void_p(begin + size * one) for one in range(count)]
        self._sizes = [_OF_ACTIVITY] * count

    def has_changed(self) -> bool:
        """Whether any byte has changed since the last call; True at the first call. Bytes that a
        truncated file no longer has count as unchanged."""
        deque(
            map(_pread_prepared, self._files, self._buffers, self._sizes, self._offsets), maxlen=0
        )
        if (now := self._now.raw) == self._seen:
            return False
        self._seen = now
        return True


def _identities(container: Container) -> Sequence[object] | None:
    try:
        return _identity(container.limits.stat()), _identity(container.usage.stat())
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


assert Compute.waited_ns.offset == Compute.charged_ns.offset + 3 * 8
assert UsageCard.ledger.offset == 0
