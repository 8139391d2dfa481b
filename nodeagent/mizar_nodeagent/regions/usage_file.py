"""Creating and repairing a container's usage file, which its tenant may write to."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from mizar_nodeagent.files import open_promptly
from mizar_nodeagent.regions import layout

_HEADER: Final = Struct("<8sIIII")
"""Magic, version, size of the file, greatest numbers of cards and of slots."""
HEADER_SIZE: Final = _HEADER.size
_DISK_MAX: Final = layout.USAGE_SIZE + (256 << 10)
"""Bytes of the disk that a file takes at most, with what the file system adds."""


def create(path: Path) -> None:
    """Create the file, zero but for its header; every user of the container may write to it.
    Raises OSError.

    All of its blocks are taken now: where another tenant fills the disk later, the kernel would end
    (SIGBUS) whoever writes to a part that has none.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # whatever the umask is
        os.posix_fallocate(descriptor, 0, layout.USAGE_SIZE)
        _put_header(descriptor, layout.VERSION)
    finally:
        os.close(descriptor)


def repair_header(path: Path, version: int) -> None:
    """Write the header and the size again, before a container starts, if a tenant has damaged
    them. `version`: as its limits say, which no tenant writes. Raises OSError.

    Accounts are left alone: the shim settles what dead processes left.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        if os.fstat(descriptor).st_size != layout.USAGE_SIZE:
            os.ftruncate(descriptor, layout.USAGE_SIZE)
        if not header_is_good(os.pread(descriptor, HEADER_SIZE, 0), {version}):
            _put_header(descriptor, version)
    finally:
        os.close(descriptor)


def truncate_excess(path: Path) -> int:
    """Give back what a tenant added to the file: bytes behind its end, and blocks that fallocate
    reserved there without changing its size. Returns how many bytes of the disk that were, 0 if
    there was nothing. Raises OSError."""
    status = path.stat()
    excess = max(status.st_size - layout.USAGE_SIZE, status.st_blocks * 512 - _DISK_MAX, 0)
    if not excess:
        return 0
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, layout.USAGE_SIZE)
    finally:
        os.close(descriptor)
    return excess


def remove_attributes(path: Path) -> int:
    """Remove the extended attributes that a tenant gave the file, as whoever may write to a file
    can: they take space of the disk, and nobody else makes any. Returns how many there were. Raises
    OSError, with E2BIG where there are more than the kernel lists, so that none can be removed."""
    try:
        names = [one for one in os.listxattr(path) if one.startswith("user.")]
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # the file system has none
            return 0
        raise
    for name in names:
        with suppress(OSError):  # the tenant was first
            os.removexattr(path, name)
    return len(names)


def header_is_good(raw: bytes, versions: Collection[int]) -> bool:
    """Whether the first HEADER_SIZE bytes of a usage file are of one of these versions."""
    magic, version, size, cards, slots = _HEADER.unpack(raw)
    return bool(
        magic == layout.USAGE_MAGIC
        and version in versions
        and size == layout.USAGE_SIZE
        and (cards, slots) == (layout.CARD_MAX, layout.SLOT_MAX)
    )


def _put_header(descriptor: int, version: int) -> None:
    header = _HEADER.pack(
        layout.USAGE_MAGIC,
        version,
        layout.USAGE_SIZE,
        layout.CARD_MAX,
        layout.SLOT_MAX,
    )
    os.pwrite(descriptor, header, 0)
