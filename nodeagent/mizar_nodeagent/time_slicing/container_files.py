"""A container's limits and usage files, kept open so that each can be read and written quickly."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import layout, limits_file
from mizar_nodeagent.regions.layout import Compute, Limits, UsageCard
from mizar_nodeagent.time_slicing import futex

_ACCOUNT: Final = UsageCard.compute.offset + Compute.charged_ns.offset
_LEARNED: Final = UsageCard.code_uses.offset - UsageCard.settled.offset - 8
_GAP: Final = _ACCOUNT - UsageCard.code_uses.offset - 8
_CARD_USAGE: Final = Struct(f"<Q{UsageCard.settled.offset - 8}xQ{_LEARNED}xQ{_GAP}xQQQQ")
"""The fields of CardUsage, from the beginning of UsageCard on."""
_WANTED: Final = UsageCard.compute.offset + Compute.wanted_at.offset
_ACTIVITY: Final = Struct(f"<Q{_WANTED - 8}xQ")
"""Its `memory` and `wanted_at`."""
# Unlike os.pread, this keeps the interpreter's lock: giving it away means waiting for it again,
# once per container, behind whatever else the agent is doing. The pages are in memory.
_pread: Final = ctypes.PyDLL(None).pread64
_pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_pread.restype = ctypes.c_ssize_t


@dataclass(frozen=True)
class Container:
    """A container by its slot's two files; windows of a card follow one another by `name`."""

    name: str
    limits: Path
    usage: Path

    def __hash__(self) -> int:
        return hash(self.name)  # Paths take long.


class CardUsage(NamedTuple):
    """Words of a container's account of a card: its memory's last change, how often memory of the
    dead was given back, first uses of code, ns of GPU time charged, when time was wanted last
    (CLOCK_MONOTONIC), ns of the longest piece of work of late, ns waited."""

    memory: int = 0
    settled: int = 0
    code_uses: int = 0
    charged_ns: int = 0
    wanted_at: int = 0
    longest_ns: int = 0
    waited_ns: int = 0


class ContainerFiles:
    """A container's two files. Raises RegionDamaged, OSError when they cannot be opened.

    Only the agent can change the limits, so they are mapped. The usage is the tenant's, who may
    truncate it at any moment: it is read, never mapped.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self._seq: int | None = None
        # For writing, although it is only read: so root in the container can hold no lease on it
        # (fcntl's F_SETLEASE), behind which it would fill the disk while nobody can cut it off.
        self._usage = open_promptly(container.usage, os.O_RDWR)
        try:
            self._open_limits()
        except BaseException:
            os.close(self._usage)
            raise
        self._buffer = ctypes.create_string_buffer(_CARD_USAGE.size)

    def close(self) -> None:
        """Close both files."""
        del self._bytes
        self._words.release()
        self._longs.release()
        self._map.close()
        os.close(self._usage)

    def is_current(self) -> bool:
        """Whether the paths still lead to the files that are open."""
        return self._found == _identities(self.container)

    def new_limits(self) -> Limits | None:
        """The limits, if they were written since the last call; None while they are being written,
        empty or damaged: what was known before goes on."""
        seq = self._words[Limits.seq.offset // 4]
        if seq == self._seq or seq % 2:
            return None
        try:
            found = limits_file.parse(bytes(self._map), self.container.limits)
        except RegionDamaged:
            return None
        self._seq = seq
        return found

    def card_usage(self, offset: int) -> CardUsage:
        """What the usage file has of the card whose UsageCard is at `offset`; zeros where the file
        was truncated."""
        size = _CARD_USAGE.size
        if _pread(self._usage, self._buffer, size, offset) != size:
            return CardUsage()
        return CardUsage._make(_CARD_USAGE.unpack_from(self._buffer))

    def activity(self, offset: int) -> tuple[int, int]:
        """`memory` and `wanted_at` of what `card_usage` would return."""
        size = _ACTIVITY.size
        if _pread(self._usage, self._buffer, size, offset) != size:
            return 0, 0
        memory, wanted_at = _ACTIVITY.unpack_from(self._buffer)
        return memory, wanted_at

    def put(self, offset: int, value: int) -> None:
        """Set a word of 32 bits of the limits, in one store."""
        self._words[offset // 4] = min(value, 0xFFFFFFFF)

    def put_long(self, offset: int, value: int) -> None:
        """Set a word of 64 bits of the limits, in one store."""
        self._longs[offset // 8] = value

    def increment(self, offset: int) -> None:
        """Add one to a word of 32 bits of the limits."""
        self._words[offset // 4] = (self._words[offset // 4] + 1) & 0xFFFFFFFF

    def wake(self, offset: int) -> None:
        """Change a futex in the limits and wake the processes that wait on it."""
        self.increment(offset)
        futex.wake_all(self._address + offset)

    def _open_limits(self) -> None:
        descriptor = open_promptly(self.container.limits, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != layout.LIMITS_SIZE:
                raise RegionDamaged(f"{self.container.limits} has another size")
            self._map = mmap.mmap(descriptor, layout.LIMITS_SIZE)
            self._found = (_identity(os.fstat(descriptor)), _identity(os.fstat(self._usage)))
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("I")
        self._longs = memoryview(self._map).cast("Q")
        self._bytes = ctypes.c_char.from_buffer(self._map)
        self._address = ctypes.addressof(self._bytes)


def _identities(container: Container) -> Sequence[object] | None:
    try:
        return _identity(container.limits.stat()), _identity(container.usage.stat())
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


assert Compute.waited_ns.offset == Compute.charged_ns.offset + 3 * 8
assert UsageCard.ledger.offset == 0
