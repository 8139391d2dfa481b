"""Writes and reads a container's limits file so that its shim never accepts a half-written one.
layout.py has the file's format."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_core.carve import CardLimit
from mizar_core.models import ComputeMode, MemoryMode
from mizar_nodeagent.errors import RegionDamaged, RegionUnserved
from mizar_nodeagent.files import allocate_exactly, open_promptly
from mizar_nodeagent.regions import layout
from mizar_nodeagent.regions.layout import Limits, LimitsCard, LimitsLive

COMPUTE_MODE_NAMES: Final[dict[int, ComputeMode]] = {
    number: name  # type: ignore[misc]
    for name, number in layout.COMPUTE_MODES.items()
}
_MEMORY_MODE_NAMES: Final[dict[int, MemoryMode]] = {
    number: name  # type: ignore[misc]
    for name, number in layout.MEMORY_MODES.items()
}
_BORROWED = Limits.live.offset + LimitsLive.borrowed.offset
_SEQ = slice(16, 20)
_BODY = slice(layout.CRC_FROM, layout.CRC_TO)


@dataclass(frozen=True)
class ContainerIdentity:
    """The container that a limits file belongs to. `slot`: the name of its slot."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    slot: str


@dataclass(frozen=True)
class ShimTimes:
    """How long a container's shim waits, in ms; 0: as long as the shim itself says. `heartbeat`:
    after that time without a heartbeat, the agent counts as dead. `owner_wait`: the most that an
    allocation waits for memory on a card that is lent."""

    heartbeat: int = 0
    owner_wait: int = 0


BY_THE_SHIM: Final = ShimTimes()
"""The shim's own times."""


def create_empty(path: Path) -> None:
    """Create the file before its container is known, with magic, version and size and zeros
    otherwise: CUDA fails in the container until limits are written. Raises OSError."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        # Allocate all blocks now, as for the usage file: the agent maps this file too.
        os.posix_fallocate(descriptor, 0, layout.LIMITS_SIZE)
        _put_head(descriptor, 0, 0, layout.VERSION)
    finally:
        os.close(descriptor)


def repair_size(path: Path) -> None:
    """Give the file its size again before its container starts, if a power cut has left less of it.
    Its content is damaged then until limits are written. Raises OSError."""
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        allocate_exactly(descriptor, layout.LIMITS_SIZE)
    finally:
        os.close(descriptor)


def write(
    path: Path,
    identity: ContainerIdentity,
    limits: Sequence[CardLimit],
    physical: Mapping[str, int],
    contexts: Mapping[str, int] | None = None,
    times: ShimTimes = BY_THE_SHIM,
) -> None:
    """Write the limits in place, under the sequence number, unless the file has them already.

    `physical`: bytes of memory of each whole card, by UUID. `contexts`: bytes of a CUDA context on
    each card, by UUID, if known. `times`: for the container's shim.
    Raises RegionDamaged if the file has another size than the shim maps or there are more than
    CARD_MAX cards, RegionUnserved, OSError.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        now = _read_all(descriptor, path)
        found = _served_version(now, path)
        body = _body(identity, limits, physical, contexts or {}, times, found)
        _replace(descriptor, now, body, found)
    finally:
        os.close(descriptor)


def version(path: Path) -> int:
    """The version of the container's shim, which is that of both files. Raises RegionDamaged,
    RegionUnserved, OSError."""
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        return _served_version(_read_all(descriptor, path), path)
    finally:
        os.close(descriptor)


def stop_cards(path: Path, uuids: Collection[str] | None = None) -> bool:
    """Permit no new work and no more memory on the cards with these UUIDs (None: on all cards).
    Returns whether the file was changed. Raises RegionDamaged if no shim would accept the file,
    RegionUnserved, OSError.
    """

    def stop(card: LimitsCard) -> None:
        card.compute_mode = layout.COMPUTE_STOPPED
        card.core_share = card.memory_limit = 0

    return _change_cards(path, uuids, stop)


def give_notice(path: Path, uuids: Collection[str]) -> bool:
    """Begin the notice period of a container that borrows these cards: active owners no longer
    pause it. It still gets GPU time only while an agent runs that lends it. Returns whether the
    file was changed, and raises as `stop_cards` does."""

    def put_first(card: LimitsCard) -> None:
        card.priority = layout.PRIORITY_NOTICE

    return _change_cards(path, uuids, put_first)


def is_stopped(region: Limits, uuid: str) -> bool:
    """Whether `stop_cards` was applied to this card, so that the container starts no work there."""
    return any(card.compute_mode == layout.COMPUTE_STOPPED for card in _cards_of(region, uuid))


def is_in_notice(region: Limits, uuid: str) -> bool:
    """Whether the container borrows this card and is in its notice period (see `give_notice`)."""
    return any(card.priority == layout.PRIORITY_NOTICE for card in _cards_of(region, uuid))


def _cards_of(region: Limits, uuid: str) -> list[LimitsCard]:
    found = region.cards[: min(region.card_count, layout.CARD_MAX)]
    return [card for card in found if card.uuid.decode(errors="replace") == uuid]


def _change_cards(
    path: Path, uuids: Collection[str] | None, change: Callable[[LimitsCard], None]
) -> bool:
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        now = _checked(_read_all(descriptor, path), path)
        wanted = Limits.from_buffer_copy(now)
        for card in wanted.cards[: min(wanted.card_count, layout.CARD_MAX)]:
            if uuids is None or card.uuid.decode(errors="replace") in uuids:
                change(card)
        return _replace(descriptor, now, bytes(wanted)[_BODY], now.version)
    finally:
        os.close(descriptor)


def set_borrowed(path: Path, uuids: Collection[str]) -> None:
    """Tell a container's processes which of its cards are lent while it is idle (none: empty).
    While a card is lent, each launch reports that the container is active, and on that card
    allocations that do not fit wait for memory. Raises RegionDamaged if no shim would accept the
    file, RegionUnserved, OSError.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        now = _checked(_read_all(descriptor, path), path)
        cards = now.cards[: min(now.card_count, layout.CARD_MAX)]
        lent = [card.uuid.decode(errors="replace") in uuids for card in cards]
        for index, is_lent in enumerate(lent):
            _put_word(descriptor, _BORROWED + index * sizeof(LimitsLive), is_lent)
        _put_word(descriptor, Limits.asleep.offset, any(lent))
    finally:
        os.close(descriptor)


def _put_word(descriptor: int, offset: int, value: int) -> None:
    os.pwrite(descriptor, int(value).to_bytes(4, "little"), offset)


def _replace(descriptor: int, now: Limits, body: bytes, version: int) -> bool:
    """Write the body under the sequence number, unless it is there already; returns whether it was
    written. The file keeps its version, since the container's shim reads no other."""
    if bytes(now)[_BODY] == body and _is_good(now):
        return False
    seq = now.seq | 1
    _put_head(descriptor, seq, 0, version)
    os.pwrite(descriptor, body, layout.CRC_FROM)
    # Write the checksum before the even sequence number, which permits reading.
    _put_head(descriptor, seq, zlib.crc32(body), version)
    os.pwrite(descriptor, ((seq + 1) & 0xFFFFFFFF).to_bytes(4, "little"), _SEQ.start)
    return True


def read(path: Path) -> Limits:
    """The file's content. Raises RegionDamaged if no shim would accept it, RegionUnserved,
    OSError."""
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        found = _read_all(descriptor, path)
    finally:
        os.close(descriptor)
    return _checked(found, path)


def card_limits(region: Limits) -> tuple[CardLimit, ...]:
    """The limits of each card, as they were given to `write`."""
    return tuple(
        CardLimit(
            uuid=card.uuid.decode(errors="replace"),
            memory_bytes=card.memory_limit,
            core_share=card.core_share,
            memory_mode=_MEMORY_MODE_NAMES.get(card.memory_mode, "Hard"),
            compute_mode=COMPUTE_MODE_NAMES.get(card.compute_mode, "None"),
            priority=card.priority,
        )
        for card in region.cards[: min(region.card_count, layout.CARD_MAX)]
    )


def parse(raw: bytes, path: Path) -> Limits:
    """The content of a limits file, parsed from its bytes. `path`: named in errors. Raises
    RegionDamaged and RegionUnserved as `read` does."""
    return _checked(Limits.from_buffer_copy(raw), path)


def _served_version(limits: Limits, path: Path) -> int:
    """The file's version: if the checksum is right, the one that it covers. An empty or damaged
    file has the version in its header if that is served, else it counts as this agent's, in which
    it will be rewritten. Raises RegionUnserved."""
    if limits.crc != zlib.crc32(bytes(limits)[_BODY]):
        return int(limits.version) if limits.version in layout.SERVED else layout.VERSION
    found = int(limits.body_version or limits.version)
    if found not in layout.SERVED:
        serves = " and ".join(str(one) for one in sorted(layout.SERVED))
        raise RegionUnserved(
            f"{path} is of version {found}, as its container's shim is, and this node agent serves "
            f"version {serves}: the container keeps the limits and the share of time that it has "
            "until its pod is deleted and created again"
        )
    return found


def _checked(limits: Limits, path: Path) -> Limits:
    _served_version(limits, path)
    if not _is_good(limits):
        raise RegionDamaged(f"{path} is empty, half written or damaged")
    return limits


def _read_all(descriptor: int, path: Path) -> Limits:
    raw = os.pread(descriptor, layout.LIMITS_SIZE + 1, 0)
    if len(raw) != layout.LIMITS_SIZE:
        raise RegionDamaged(f"{path} has {len(raw)} bytes instead of {layout.LIMITS_SIZE}")
    return Limits.from_buffer_copy(raw)


def _is_good(limits: Limits) -> bool:
    return bool(
        limits.magic == layout.LIMITS_MAGIC
        and limits.version in layout.SERVED
        and limits.seq % 2 == 0
        and limits.state == layout.STATE_READY
        and limits.crc == zlib.crc32(bytes(limits)[_BODY])
    )


def _put_head(descriptor: int, seq: int, crc: int, version: int) -> None:
    head = Limits(
        magic=layout.LIMITS_MAGIC,
        version=version,
        size=layout.LIMITS_SIZE,
        seq=seq,
        crc=crc,
    )
    os.pwrite(descriptor, bytes(head)[: layout.CRC_FROM], 0)


def _body(
    identity: ContainerIdentity,
    limits: Sequence[CardLimit],
    physical: Mapping[str, int],
    contexts: Mapping[str, int],
    times: ShimTimes,
    version: int,
) -> bytes:
    if len(limits) > layout.CARD_MAX:
        raise RegionDamaged(f"{len(limits)} cards: a container can have {layout.CARD_MAX}")
    region = Limits(
        state=layout.STATE_READY,
        card_count=len(limits),
        body_version=version,
        heartbeat_ms=times.heartbeat,
        owner_wait_ms=times.owner_wait,
        pod_namespace=identity.namespace.encode(),
        pod_name=identity.pod.encode(),
        pod_uid=identity.pod_uid.encode(),
        container=identity.container.encode(),
        slot_name=identity.slot.encode(),
    )
    for card, limit in zip(region.cards, limits, strict=False):
        card.uuid = limit.uuid.encode()
        card.memory_limit = min(limit.memory_bytes, layout.BYTES_MAX)
        card.memory_physical = physical.get(limit.uuid, 0)
        card.memory_mode = layout.MEMORY_MODES[limit.memory_mode]
        card.compute_mode = layout.COMPUTE_MODES[limit.compute_mode]
        card.core_share = limit.core_share
        card.priority = limit.priority
        card.context_bytes = contexts.get(limit.uuid, 0)
    return bytes(region)[_BODY]


assert sizeof(Limits) == layout.LIMITS_SIZE
