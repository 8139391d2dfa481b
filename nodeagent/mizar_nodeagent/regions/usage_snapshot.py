"""Reads a container's usage file at one instant: which of its processes live, how much memory of
each card each of them holds, and what the container did there."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import time
from collections.abc import Mapping
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import layout, usage_file
from mizar_nodeagent.regions.layout import Usage, UsageCard, UsageHead, UsageSlot

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhxxxxqqixxxx")
_SEQ_BITS = 32
_SLOT_BITS = 10
_LOW_BITS = 21
_SEQ = (1 << _SEQ_BITS) - 1

_HEAD_SIZE = sizeof(UsageHead)
_GATES = slice(UsageHead.cards.offset, _HEAD_SIZE)
_SLOT_HIGH = slice(UsageHead.slot_high.offset, UsageHead.slot_high.offset + 4)
_ATTEMPTS = 4
"""The most reads of a usage file for one snapshot, if accounts change during each."""

Slots = ctypes.Array[UsageSlot]
LedgerWords = tuple[int, int]
"""The two 64-bit words of a card's memory ledger: see `unpack_ledger`."""


@dataclass(frozen=True)
class Copied:
    """Number of the copies of one kind, or of the memsets, and their bytes in total."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CardUsage:
    """A container's use of one card.

    `bytes`: memory held by living processes. `refused`: number of refused requests for memory.
    `charged_ns`: GPU time charged for work, in nanoseconds. `waited_ns`: nanoseconds spent waiting
    for GPU time. `copied`: copies by all processes that ever lived, indexed by kind
    (layout.COPY_*, MEMSET). `code_uses`: number of first uses of code whose code has been loaded.
    `wanted_at`: when GPU time was last asked for (ns of CLOCK_MONOTONIC; 0: never).
    """

    bytes: int
    refused: int
    charged_ns: int = 0
    waited_ns: int = 0
    copied: tuple[Copied, ...] = (Copied(),) * layout.COPY_KINDS
    code_uses: int = 0
    wanted_at: int = 0


@dataclass(frozen=True)
class CardActivity:
    """The fields of a container's account of one card that change when it works there.

    `wanted_at`: when GPU time was last asked for (ns of CLOCK_MONOTONIC; 0: never). `memory`: the
    two words of the ledger. `charged_ns`: nanoseconds of GPU time charged. `code_uses`: number of
    first uses of code. `copies`: number of copies and memsets.
    """

    wanted_at: int
    memory: LedgerWords
    charged_ns: int
    code_uses: int
    copies: int


LIVING_S: Final = 0.2
"""Most seconds of CPU time for finding a container's living processes: ten times as long as 1,024
processes take."""

ProcessKey = tuple[int, int]
"""A process as its container identifies it: (PID in its namespace, start time)."""


@dataclass(frozen=True)
class Holding:
    """The memory that one process holds on one card, by its own account.

    `bytes`: memory charged to it. `stamps`: sequence numbers of the last change, one for each of
    its slots: nothing changed between two equal holdings that are not `busy`. `busy`: the driver
    is loading code whose size is not known yet. `absent`: at most this many of the bytes are not on
    the card.
    """

    bytes: int
    stamps: tuple[int, ...]
    busy: bool
    absent: int = 0

    def __add__(self, other: Holding) -> Holding:
        return Holding(
            self.bytes + other.bytes,
            self.stamps + other.stamps,
            self.busy or other.busy,
            self.absent + other.absent,
        )


@dataclass(frozen=True)
class UsageSnapshot:
    """A usage file at one instant.

    `cards`: the container's use of each card. `attached`: number of processes that ever registered.
    `alive`: the living ones. `holdings`: for each card, the holding of each living process, and of
    dead processes whose bytes were not given back yet. `past`: the living processes that have a
    second driver, which the shim does not limit. `charged`: for each card, the bytes that count
    against the container's limit.
    """

    cards: tuple[CardUsage, ...]
    attached: int
    alive: frozenset[ProcessKey]
    holdings: tuple[Mapping[ProcessKey, Holding], ...]
    past: frozenset[ProcessKey] = frozenset()
    charged: tuple[int, ...] = ()


def empty(cards: int) -> UsageSnapshot:
    """A snapshot of `cards` cards without processes, in place of a file that cannot be read. It
    does not say what is charged."""
    return UsageSnapshot((CardUsage(0, 0),) * cards, 0, frozenset(), ({},) * cards)


@dataclass(frozen=True)
class Ledger:
    """A card's memory ledger, unpacked from its 128-bit word (see shim/include/mizar_regions.h).

    The container holds `total` bytes. Its last change, number `seq`, was by process slot `slot`,
    which has held `slot_bytes` of them since.
    """

    slot: int
    slot_bytes: int
    total: int
    seq: int


def card_usage(path: Path, cards: int) -> tuple[CardUsage, ...]:
    """The use of the first `cards` cards. Raises RegionDamaged, OSError."""
    return take(path, cards).cards


def activity_bytes(path: Path) -> bytes:
    """The bytes that `card_activity` parses. Comparing them with an earlier read costs much less
    than parsing them. Raises RegionDamaged, OSError."""
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        raw = _head_bytes(descriptor, path)
        used = min(int.from_bytes(raw[_SLOT_HIGH], "little"), layout.SLOT_MAX)
        return raw + os.pread(descriptor, used * sizeof(UsageSlot), _HEAD_SIZE)
    finally:
        os.close(descriptor)


def card_activity(raw: bytes) -> tuple[CardActivity, ...]:
    """The container's activity on each of CARD_MAX cards, parsed from the result of
    `activity_bytes`."""
    head = UsageHead.from_buffer_copy(raw)
    copies = _copies(head, _parsed_slots(raw[_HEAD_SIZE:]))
    return tuple(
        CardActivity(
            card.compute.wanted_at,
            (card.ledger.lo, card.ledger.hi),
            card.compute.charged_ns,
            card.code_uses,
            copied,
        )
        for card, copied in zip(head.cards, copies, strict=True)
    )


def take(path: Path, cards: int) -> UsageSnapshot:
    """A snapshot of the file, with the container's first `cards` cards. Raises RegionDamaged,
    OSError.

    The tenant may write to the file and truncate it. So the file is read and never mapped (a
    truncation would kill the agent), and its figures are used only as the container's own account.
    """
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        head, slots = _read_consistently(descriptor, path)
        living = _living(descriptor, path, slots)
    finally:
        os.close(descriptor)
    past = [index for index in living if slots[index].shim_version == layout.SHIM_PAST]
    return UsageSnapshot(
        tuple(_use(head, slots, card, living) for card in range(cards)),
        head.attached,
        _keys(slots, living),
        tuple(_holdings(head, slots, card) for card in range(cards)),
        _keys(slots, past),
        tuple(_charged(head, card) for card in range(cards)),
    )


def _living(descriptor: int, path: Path, slots: Slots) -> list[int]:
    """The indices of the slots whose processes live. Raises RegionDamaged if finding them takes
    longer than LIVING_S: for each slot the kernel searches all locks of the file, of which a tenant
    may take any number."""
    until = time.thread_time() + LIVING_S
    found = []
    for index, slot in enumerate(slots):
        if slot.pid and is_alive(descriptor, index):
            found.append(index)
        if time.thread_time() > until:
            raise RegionDamaged(f"{path} has too many locks to tell which processes live")
    return found


def _keys(slots: Slots, indexes: list[int]) -> frozenset[ProcessKey]:
    return frozenset((slots[index].pid, slots[index].start_time) for index in indexes)


def is_alive(descriptor: int, slot: int) -> bool:
    """Whether the process of this slot lives: the kernel drops the slot's lock when it dies.
    `descriptor`: the open usage file."""
    ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, layout.slot_lock(slot), 1, 0)
    kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, ask))[0]
    return bool(kind != fcntl.F_UNLCK)


def takes_memory(before: LedgerWords, now: LedgerWords) -> bool:
    """Whether a container may have taken memory between two looks at its ledger. One that has less
    of it than before has freed memory, as every program does that ends. If it took some as well,
    its shim tells so by `wanted_at`, as long as the card is lent."""
    return now != before and now[1] >> _LOW_BITS >= before[1] >> _LOW_BITS


def unpack_ledger(lo: int, hi: int) -> Ledger:
    """A ledger's two 64-bit words as fields."""
    high = lo >> (_SEQ_BITS + _SLOT_BITS)
    return Ledger(
        slot=(lo >> _SEQ_BITS) & ((1 << _SLOT_BITS) - 1),
        slot_bytes=(high << _LOW_BITS) | (hi & ((1 << _LOW_BITS) - 1)),
        total=hi >> _LOW_BITS,
        seq=lo & _SEQ,
    )


def _read_consistently(descriptor: int, path: Path) -> tuple[UsageHead, Slots]:
    """The head and the used slots, read while no card's account changed; after _ATTEMPTS, the last
    read even if one did."""
    for _ in range(_ATTEMPTS):
        raw = _head_bytes(descriptor, path)
        head = UsageHead.from_buffer_copy(raw)
        slots = _slots(descriptor, head)
        if raw[_GATES] == _head_bytes(descriptor, path)[_GATES]:
            break
    return head, slots


def _slots(descriptor: int, head: UsageHead) -> Slots:
    used = min(head.slot_high, layout.SLOT_MAX)
    return _parsed_slots(os.pread(descriptor, used * sizeof(UsageSlot), _HEAD_SIZE))


def _parsed_slots(raw: bytes) -> Slots:
    return (UsageSlot * (len(raw) // sizeof(UsageSlot))).from_buffer_copy(raw)


def _head_bytes(descriptor: int, path: Path) -> bytes:
    raw = os.pread(descriptor, _HEAD_SIZE, 0)
    complete = os.fstat(descriptor).st_size == layout.USAGE_SIZE and len(raw) == _HEAD_SIZE
    if not complete or not usage_file.header_is_good(raw[: usage_file.HEADER_SIZE], layout.SERVED):
        raise RegionDamaged(f"{path} is no usage file of a version that is served")
    return raw


def _holdings(head: UsageHead, slots: Slots, index: int) -> dict[ProcessKey, Holding]:
    card: UsageCard = head.cards[index]
    ledger = unpack_ledger(card.ledger.lo, card.ledger.hi)
    found: dict[ProcessKey, Holding] = {}
    for number, slot in enumerate(slots):
        if not slot.pid:
            continue
        size, stamp = _held(ledger, slots, number, index)
        absent = min(slot.cards[index].absent_bytes, layout.BYTES_MAX)
        busy = slot.code_begun[index] > 0
        one = Holding(min(size, layout.BYTES_MAX), (stamp,), busy, absent)
        key = (slot.pid, slot.start_time)
        found[key] = found[key] + one if key in found else one
    return found


def _charged(head: UsageHead, index: int) -> int:
    ledger = head.cards[index].ledger
    return min(unpack_ledger(ledger.lo, ledger.hi).total, layout.BYTES_MAX)


def _held(ledger: Ledger, slots: Slots, slot: int, index: int) -> tuple[int, int]:
    """Bytes that the slot holds of the card, and the sequence number of their last change."""
    # The ledger has the bytes of the slot that changed last; all other slots keep their own.
    if slot == ledger.slot:
        return ledger.slot_bytes, ledger.seq
    held = slots[slot].held[index]
    return held.bytes, held.seq & _SEQ


def _use(head: UsageHead, slots: Slots, index: int, living: list[int]) -> CardUsage:
    card: UsageCard = head.cards[index]
    ledger = unpack_ledger(card.ledger.lo, card.ledger.hi)
    held = sum(_held(ledger, slots, slot, index)[0] for slot in living)
    compute = card.compute
    return CardUsage(
        min(held, layout.BYTES_MAX),
        card.refused,
        compute.charged_ns,
        compute.waited_ns,
        _copied(head, slots, index),
        max(0, card.code_uses - sum(slots[slot].code_begun[index] for slot in living)),
        compute.wanted_at,
    )


def _copies(head: UsageHead, slots: Slots) -> list[int]:
    """The number of copies and memsets on each card, by living and dead processes."""
    found = [_count(common) for common in head.copies]
    for slot in slots:
        # The tenant may have written any number as the card.
        if 0 < slot.copies.card <= len(found):
            found[slot.copies.card - 1] += _count(slot.copies)
    return found


def _count(copies: layout.Copies) -> int:
    return sum(kind.count for kind in copies.kinds)


def _copied(head: UsageHead, slots: Slots, index: int) -> tuple[Copied, ...]:
    """The copies on a card by living and dead processes, from the slots' counters and the shared
    one."""
    own = (slot.copies for slot in slots)
    counters = [head.copies[index], *(copies for copies in own if copies.card == index + 1)]
    return tuple(
        Copied(
            sum(one.kinds[kind].count for one in counters),
            sum(one.kinds[kind].bytes for one in counters),
        )
        for kind in range(layout.COPY_KINDS)
    )


assert sizeof(Usage) == layout.USAGE_SIZE
