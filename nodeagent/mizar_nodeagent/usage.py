"""Reading what the processes of a container hold of each card, from its usage file."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Mapping
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path

from mizar_nodeagent import regions
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import Usage, UsageCard, UsageHead, UsageSlot

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhxxxxqqixxxx")
_SEQ_BITS = 32
_SLOT_BITS = 10
_LOW_BITS = 21
_SEQ = (1 << _SEQ_BITS) - 1

_HEAD_SIZE = sizeof(UsageHead)
_GATES = slice(UsageHead.cards.offset, _HEAD_SIZE)
_ATTEMPTS = 4

Slots = ctypes.Array[UsageSlot]


@dataclass(frozen=True)
class Copied:
    """Copies of one kind, or memsets: how many, and of how many bytes together."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CardUse:
    """What living processes hold of one card (bytes), how often memory was refused, the GPU time
    that was charged for work and spent waiting for a turn, what all processes that ever were have
    copied, by kind (regions.COPY_*, MEMSET), and the first uses of code whose code has come."""

    bytes: int
    refused: int
    charged_ns: int = 0
    waited_ns: int = 0
    copied: tuple[Copied, ...] = (Copied(),) * regions.COPY_KINDS
    code_uses: int = 0


Member = tuple[int, int]
"""A process in its container's own eyes: pid and start time."""


@dataclass(frozen=True)
class Holding:
    """What one process holds of one card. Two that are equal, and not `busy`, have stood still in
    between; `busy`: the driver is at something of which it is not known yet what it takes. As many
    as `absent` of its bytes may not be on the card."""

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
class Survey:
    """A usage file at one instant. `attached`: processes that ever shook hands. `members`: those
    that live. `holdings`: of these, and of those whose bytes were not given back yet, by card."""

    cards: tuple[CardUse, ...]
    attached: int
    members: frozenset[Member]
    holdings: tuple[Mapping[Member, Holding], ...]


def nothing(cards: int) -> Survey:
    """What a file says that cannot be read."""
    return Survey((CardUse(0, 0),) * cards, 0, frozenset(), ({},) * cards)


@dataclass(frozen=True)
class Gate:
    """A card's 128-bit word taken apart; see the header."""

    slot: int
    slot_bytes: int
    total: int
    seq: int


def initialise(path: Path) -> None:
    """Create the file, zero but for its header; every user of the container may write to it."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # whatever the umask is
        os.ftruncate(descriptor, regions.USAGE_SIZE)
        _put_header(descriptor)
    finally:
        os.close(descriptor)


def heal(path: Path) -> None:
    """Before a container starts: put the header right if a tenant has damaged it.

    Accounts are left alone: the shim settles what dead processes left.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        if os.fstat(descriptor).st_size != regions.USAGE_SIZE:
            os.ftruncate(descriptor, regions.USAGE_SIZE)
        if not _header_is_good(os.pread(descriptor, 24, 0)):
            _put_header(descriptor)
    finally:
        os.close(descriptor)


def trim(path: Path) -> bool:
    """Cut off what a tenant has written behind the region, which would fill the node's disk;
    whether there was anything. Raises OSError.
    """
    if path.stat().st_size <= regions.USAGE_SIZE:
        return False
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, regions.USAGE_SIZE)
    finally:
        os.close(descriptor)
    return True


def read(path: Path, cards: int) -> tuple[CardUse, ...]:
    """What living processes hold of the first `cards` cards. Raises RegionDamaged, OSError."""
    return survey(path, cards).cards


def survey(path: Path, cards: int) -> Survey:
    """Who lives in the container and holds what. Raises RegionDamaged, OSError.

    The file is the tenant's to write and to cut short: it is read, never mapped (a cut would kill
    us), and nothing in it is trusted beyond its own figures.
    """
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        head, slots = _of_one_instant(descriptor, path)
        living = [
            index for index, slot in enumerate(slots) if slot.pid and is_alive(descriptor, index)
        ]
    finally:
        os.close(descriptor)
    return Survey(
        tuple(_use(head, slots, card, living) for card in range(cards)),
        head.attached,
        frozenset((slots[index].pid, slots[index].start_time) for index in living),
        tuple(_holdings(head, slots, card) for card in range(cards)),
    )


def is_alive(descriptor: int, slot: int) -> bool:
    """Whether a process lives in the slot: the kernel drops its lock when it dies."""
    ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, regions.slot_lock(slot), 1, 0)
    kind = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, ask))[0]
    return bool(kind != fcntl.F_UNLCK)


def take_apart(lo: int, hi: int) -> Gate:
    """The statement of a gate's two words."""
    high = lo >> (_SEQ_BITS + _SLOT_BITS)
    return Gate(
        slot=(lo >> _SEQ_BITS) & ((1 << _SLOT_BITS) - 1),
        slot_bytes=(high << _LOW_BITS) | (hi & ((1 << _LOW_BITS) - 1)),
        total=hi >> _LOW_BITS,
        seq=lo & _SEQ,
    )


def _of_one_instant(descriptor: int, path: Path) -> tuple[UsageHead, Slots]:
    """Head and used slots while no gate moved; after some attempts, as good as it gets."""
    for _ in range(_ATTEMPTS):
        head = _head(descriptor, path)
        used = min(head.slot_high, regions.SLOT_MAX)
        raw = os.pread(descriptor, used * sizeof(UsageSlot), _HEAD_SIZE)
        slots = (UsageSlot * (len(raw) // sizeof(UsageSlot))).from_buffer_copy(raw)
        if bytes(head)[_GATES] == bytes(_head(descriptor, path))[_GATES]:
            break
    return head, slots


def _head(descriptor: int, path: Path) -> UsageHead:
    raw = os.pread(descriptor, _HEAD_SIZE, 0)
    whole = os.fstat(descriptor).st_size == regions.USAGE_SIZE and len(raw) == _HEAD_SIZE
    if not whole or not _header_is_good(raw[:24]):
        raise RegionDamaged(f"{path} is no usage file of version {regions.VERSION}")
    return UsageHead.from_buffer_copy(raw)


def _holdings(head: UsageHead, slots: Slots, index: int) -> dict[Member, Holding]:
    card: UsageCard = head.cards[index]
    gate = take_apart(card.gate.lo, card.gate.hi)
    found: dict[Member, Holding] = {}
    for number, slot in enumerate(slots):
        if not slot.pid:
            continue
        size, stamp = _held(gate, slots, number, index)
        absent = min(slot.cards[index].absent_bytes, regions.BYTES_MAX)
        busy = slot.code_begun[index] > 0
        one = Holding(min(size, regions.BYTES_MAX), (stamp,), busy, absent)
        member = (slot.pid, slot.start_time)
        found[member] = found[member] + one if member in found else one
    return found


def _held(gate: Gate, slots: Slots, slot: int, index: int) -> tuple[int, int]:
    """Bytes that the slot holds of the card, and which move of the gate made it so."""
    # The gate states what its slot holds; the slot itself says so when another one has moved.
    if slot == gate.slot:
        return gate.slot_bytes, gate.seq
    held = slots[slot].held[index]
    return held.bytes, held.seq & _SEQ


def _use(head: UsageHead, slots: Slots, index: int, living: list[int]) -> CardUse:
    card: UsageCard = head.cards[index]
    gate = take_apart(card.gate.lo, card.gate.hi)
    held = sum(_held(gate, slots, slot, index)[0] for slot in living)
    compute = card.compute
    return CardUse(
        min(held, regions.BYTES_MAX),
        card.refused,
        compute.charged_ns,
        compute.waited_ns,
        _copied(head, slots, index),
        max(0, card.code_uses - sum(slots[slot].code_begun[index] for slot in living)),
    )


def _copied(head: UsageHead, slots: Slots, index: int) -> tuple[Copied, ...]:
    """What living and dead processes counted, in their slots and where all of them do."""
    own = (slot.copies for slot in slots)
    places = [head.copies[index], *(copies for copies in own if copies.card == index + 1)]
    return tuple(
        Copied(
            sum(place.kinds[kind].count for place in places),
            sum(place.kinds[kind].bytes for place in places),
        )
        for kind in range(regions.COPY_KINDS)
    )


def _put_header(descriptor: int) -> None:
    header = struct.pack(
        "<8sIIII",
        regions.USAGE_MAGIC,
        regions.VERSION,
        regions.USAGE_SIZE,
        regions.CARD_MAX,
        regions.SLOT_MAX,
    )
    os.pwrite(descriptor, header, 0)


def _header_is_good(raw: bytes) -> bool:
    magic, version, size, cards, slots = struct.unpack("<8sIIII", raw)
    return bool(
        magic == regions.USAGE_MAGIC
        and (version, size) == (regions.VERSION, regions.USAGE_SIZE)
        and (cards, slots) == (regions.CARD_MAX, regions.SLOT_MAX)
    )


assert sizeof(Usage) == regions.USAGE_SIZE
