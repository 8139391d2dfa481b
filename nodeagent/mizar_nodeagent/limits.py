"""Writing a container's limits so that its shim never sees half of them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_core.carve import CardLimit
from mizar_core.models import ComputeMode, MemoryMode
from mizar_nodeagent import regions
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import Limits

COMPUTE: Final[dict[int, ComputeMode]] = {
    number: name  # type: ignore[misc]
    for name, number in regions.COMPUTE_MODES.items()
}
_MEMORY: Final[dict[int, MemoryMode]] = {
    number: name  # type: ignore[misc]
    for name, number in regions.MEMORY_MODES.items()
}
_SEQ = slice(16, 20)
_BODY = slice(regions.CRC_FROM, regions.CRC_TO)


@dataclass(frozen=True)
class Identity:
    """For which container the limits are."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    slot: str


def create_empty(path: Path) -> None:
    """The file before anybody knows whose it is: CUDA fails closed in its container."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.ftruncate(descriptor, regions.LIMITS_SIZE)
    finally:
        os.close(descriptor)


def write(
    path: Path,
    identity: Identity,
    limits: Sequence[CardLimit],
    physical: Mapping[str, int],
    contexts: Mapping[str, int] | None = None,
) -> None:
    """Write the limits in place, under the sequence number. `physical`: bytes of each card;
    `contexts`: of a context on it, as far as that is known.

    Nothing is written when the file says so already. Raises RegionDamaged when the file has
    another size (it would be mapped by a shim that expects this one), OSError.
    """
    body = _body(identity, limits, physical, contexts or {})
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        _replace(descriptor, _read_all(descriptor, path), body)
    finally:
        os.close(descriptor)


def stop(path: Path, uuids: Collection[str] | None = None) -> bool:
    """On these cards, or on all: no new work and no more memory; whether that is new.

    Raises RegionDamaged when the file is none that a shim would accept, OSError.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        now = _checked(_read_all(descriptor, path), path)
        wanted = Limits.from_buffer_copy(now)
        for card in wanted.cards[: min(wanted.card_count, regions.CARD_MAX)]:
            if uuids is None or card.uuid.decode(errors="replace") in uuids:
                card.compute_mode = regions.COMPUTE_STOPPED
                card.core_share = card.memory_limit = 0
        return _replace(descriptor, now, bytes(wanted)[_BODY])
    finally:
        os.close(descriptor)


def _replace(descriptor: int, now: Limits, body: bytes) -> bool:
    """Write the body under the sequence number, unless it is there; whether it was not."""
    if bytes(now)[_BODY] == body and _is_good(now):
        return False
    seq = now.seq | 1
    _put_head(descriptor, seq, 0)
    os.pwrite(descriptor, body, regions.CRC_FROM)
    # The last word but one, and only then the even number that lets readers in.
    _put_head(descriptor, seq, zlib.crc32(body))
    os.pwrite(descriptor, ((seq + 1) & 0xFFFFFFFF).to_bytes(4, "little"), _SEQ.start)
    return True


def read(path: Path) -> Limits:
    """The file's content. Raises RegionDamaged when it is none that a shim would accept."""
    descriptor = open_promptly(path, os.O_RDONLY)
    try:
        found = _read_all(descriptor, path)
    finally:
        os.close(descriptor)
    return _checked(found, path)


def cards_of(region: Limits) -> tuple[CardLimit, ...]:
    """The limits in it, as they were given to `write`."""
    return tuple(
        CardLimit(
            uuid=card.uuid.decode(errors="replace"),
            memory_bytes=card.memory_limit,
            core_share=card.core_share,
            memory_mode=_MEMORY.get(card.memory_mode, "Hard"),
            compute_mode=COMPUTE.get(card.compute_mode, "None"),
            priority=card.priority,
        )
        for card in region.cards[: min(region.card_count, regions.CARD_MAX)]
    )


def parsed(raw: bytes, path: Path) -> Limits:
    """The content of a file that was read elsewhere. Raises RegionDamaged as `read` does."""
    return _checked(Limits.from_buffer_copy(raw), path)


def _checked(limits: Limits, path: Path) -> Limits:
    if not _is_good(limits):
        raise RegionDamaged(f"{path} is empty, half written or damaged")
    return limits


def _read_all(descriptor: int, path: Path) -> Limits:
    raw = os.pread(descriptor, regions.LIMITS_SIZE + 1, 0)
    if len(raw) != regions.LIMITS_SIZE:
        raise RegionDamaged(f"{path} has {len(raw)} bytes instead of {regions.LIMITS_SIZE}")
    return Limits.from_buffer_copy(raw)


def _is_good(limits: Limits) -> bool:
    return bool(
        limits.magic == regions.LIMITS_MAGIC
        and limits.version == regions.VERSION
        and limits.seq % 2 == 0
        and limits.state == regions.STATE_READY
        and limits.crc == zlib.crc32(bytes(limits)[_BODY])
    )


def _put_head(descriptor: int, seq: int, crc: int) -> None:
    head = Limits(
        magic=regions.LIMITS_MAGIC,
        version=regions.VERSION,
        size=regions.LIMITS_SIZE,
        seq=seq,
        crc=crc,
    )
    os.pwrite(descriptor, bytes(head)[: regions.CRC_FROM], 0)


def _body(
    identity: Identity,
    limits: Sequence[CardLimit],
    physical: Mapping[str, int],
    contexts: Mapping[str, int],
) -> bytes:
    if len(limits) > regions.CARD_MAX:
        raise RegionDamaged(f"{len(limits)} cards: a container can have {regions.CARD_MAX}")
    region = Limits(
        state=regions.STATE_READY,
        card_count=len(limits),
        pod_namespace=identity.namespace.encode(),
        pod_name=identity.pod.encode(),
        pod_uid=identity.pod_uid.encode(),
        container=identity.container.encode(),
        slot_name=identity.slot.encode(),
    )
    for place, limit in zip(region.cards, limits, strict=False):
        place.uuid = limit.uuid.encode()
        place.memory_limit = min(limit.memory_bytes, regions.BYTES_MAX)
        place.memory_physical = physical.get(limit.uuid, 0)
        place.memory_mode = regions.MEMORY_MODES[limit.memory_mode]
        place.compute_mode = regions.COMPUTE_MODES[limit.compute_mode]
        place.core_share = limit.core_share
        place.priority = limit.priority
        place.context_bytes = contexts.get(limit.uuid, 0)
    return bytes(region)[_BODY]


assert sizeof(Limits) == regions.LIMITS_SIZE
