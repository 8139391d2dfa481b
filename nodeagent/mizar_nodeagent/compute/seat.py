"""A container's files as the steward keeps them open, and its seats: one for each of its cards."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from mizar_core.models import ComputeMode
from mizar_nodeagent.audit.unaccounted import Unaccounted
from mizar_nodeagent.compute import futex
from mizar_nodeagent.compute.appetite import Appetite
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import layout, limits_file
from mizar_nodeagent.regions.layout import Compute, Limits, LimitsLive, UsageCard, UsageHead

BUSY_NS: Final = 50_000_000
"""Who asked for GPU time so lately is busy ..."""
DROWSY_NS: Final = 100_000_000
"""... and stays so for this long, since every change moves everybody's windows."""
FUTURE_NS: Final = 1_000_000_000
"""Who waits may say until when; no honest shim waits longer."""
STEP_NS: Final = 50_000
LONGEST_NS: Final = 50_000_000
"""Windows are made for pieces as long as this: longer ones would keep the others waiting."""

_ACCOUNT: Final = UsageCard.compute.offset + Compute.charged_ns.offset
_LEARNED: Final = UsageCard.code_uses.offset - UsageCard.settled.offset - 8
_GAP: Final = _ACCOUNT - UsageCard.code_uses.offset - 8
# settled; code_uses; charged_ns, wanted_at, longest_ns, waited_ns
_SEEN: Final = Struct(f"<Q{_LEARNED}xQ{_GAP}xQQQQ")
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


class Seat:
    """One container on one card. `busy`, `longest_ns` and `new_code`, whether it used code for the
    first time since the look before, or what the dead had was given back, are as of the last look.
    """

    def __init__(self, desk: Desk, index: int, mode: ComputeMode, share: int, priority: int):
        self.name = desk.container.name
        self.mode: ComputeMode = mode
        self.busy = False
        self.longest_ns = 0
        self.new_code = False
        self._code = 0, 0
        self._appetite = Appetite()
        self._told: TimeGrant | None = None
        self._share = self._due = share
        self._priority = priority
        self._desk = desk
        card = UsageHead.cards.offset + index * ctypes.sizeof(UsageCard)
        self._seen = card + UsageCard.settled.offset
        self._live = Limits.live.offset + index * ctypes.sizeof(LimitsLive)

    @property
    def sharer(self) -> Sharer:
        """For the plan."""
        told = self._told or TimeGrant()
        return Sharer(
            name=self.name,
            mode=self.mode,
            share=self._share,
            priority=self._priority,
            busy=self.busy,
            longest_ns=self.longest_ns,
            grant=told,
            need=self._appetite.need,
        )

    @property
    def state(self) -> tuple[bool, int | None]:
        """What others' grants depend on."""
        return self.busy, self._appetite.need

    def look(self, now: int) -> None:
        """See whether it wants GPU time, and in what pieces."""
        settled, uses, charged, wanted, longest, waited = self._desk.peek(self._seen)
        self.new_code, self._code = (settled, uses) != self._code, (settled, uses)
        patience = DROWSY_NS if self.busy else BUSY_NS
        self.busy = -FUTURE_NS < now - wanted < patience
        # Rounded up, so that a figure that trembles is no reason to plan anew.
        self.longest_ns = min(-(-longest // STEP_NS) * STEP_NS, LONGEST_NS)
        if self.busy:
            self._appetite.see(now, charged, waited, self._due)
        else:
            self._appetite.pause()

    def beat(self) -> None:
        """Somebody has thought of this container."""
        self._desk.count(self._live + LimitsLive.beat.offset)

    def set_unaccounted(self, unaccounted: Unaccounted) -> None:
        """What NVML tells; the shim stops keeping room for the uses of code that are in it."""
        self._desk.put_long(self._live + LimitsLive.unaccounted_bytes.offset, unaccounted.bytes)
        self._desk.put_long(self._live + LimitsLive.code_seen.offset, unaccounted.code_uses)

    def tell(self, words: TimeGrant) -> None:
        """Write what differs from before, and wake those who wait for it."""
        if words == self._told:
            return
        desk, live = self._desk, self._live
        desk.put(live + LimitsLive.spare_share.offset, words.spare_share)
        desk.put(live + LimitsLive.paused.offset, int(words.paused))
        desk.put(live + LimitsLive.active_weight.offset, words.active_weight)
        desk.put_long(live + LimitsLive.window.offset, words.window.word if words.window else 0)
        desk.ring(live + LimitsLive.wake.offset)
        self._told = words
        self._due = allowed_share(self.sharer, replace(words, spare_share=0))


class Desk:
    """A container's two files. Raises RegionDamaged, OSError when they cannot be opened.

    The limits are ours alone to change, so they can be mapped. The usage is the tenant's, who may
    cut it short at any moment: it is read, never mapped.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self.seats: dict[str, Seat] = {}
        self._seq: int | None = None
        self._usage = open_promptly(container.usage, os.O_RDONLY)
        try:
            self._open_limits()
        except BaseException:
            os.close(self._usage)
            raise
        self._buffer = ctypes.create_string_buffer(_SEEN.size)

    def close(self) -> None:
        """Let go of the files."""
        del self._bytes
        self._words.release()
        self._longs.release()
        self._map.close()
        os.close(self._usage)

    def is_current(self) -> bool:
        """Whether the paths still lead to the files that are open."""
        return self._found == _identities(self.container)

    def refresh(self) -> bool:
        """Read the limits again if they were written since; whether the seats have changed."""
        seq = self._words[Limits.seq.offset // 4]
        if seq == self._seq or seq % 2:
            return False
        try:
            found = limits_file.parse(bytes(self._map), self.container.limits)
        except RegionDamaged:
            # Being written, empty or damaged: what held until now goes on.
            return False
        self._seq = seq
        self.seats = self._seats(found)
        return True

    def peek(self, offset: int) -> tuple[int, int, int, int, int, int]:
        """Six numbers of the usage file; zeros where it was cut short."""
        if _pread(self._usage, self._buffer, _SEEN.size, offset) != _SEEN.size:
            return 0, 0, 0, 0, 0, 0
        settled, uses, charged, wanted, longest, waited = _SEEN.unpack_from(self._buffer)
        return settled, uses, charged, wanted, longest, waited

    def put(self, offset: int, value: int) -> None:
        """Set a word of the limits, in one store."""
        self._words[offset // 4] = min(value, 0xFFFFFFFF)

    def put_long(self, offset: int, value: int) -> None:
        """Set a word of 64 bits, in one store."""
        self._longs[offset // 8] = value

    def count(self, offset: int) -> None:
        """Let a word count up."""
        self._words[offset // 4] = (self._words[offset // 4] + 1) & 0xFFFFFFFF

    def ring(self, offset: int) -> None:
        """Change a futex and wake those who sleep on it."""
        self.count(offset)
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

    def _seats(self, found: Limits) -> dict[str, Seat]:
        cards = found.cards[: min(found.card_count, layout.CARD_MAX)]
        return {
            card.uuid.decode(errors="replace"): Seat(
                self,
                index,
                limits_file.COMPUTE_MODE_NAMES.get(card.compute_mode, "None"),
                card.core_share,
                card.priority,
            )
            for index, card in enumerate(cards)
        }


def _identities(container: Container) -> Sequence[object] | None:
    try:
        return _identity(container.limits.stat()), _identity(container.usage.stat())
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


assert Compute.waited_ns.offset == Compute.charged_ns.offset + 3 * 8
