"""Creates and repairs a container's usage file, which its tenant may write to."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from mizar_nodeagent.files import allocate_exactly, open_promptly
from mizar_nodeagent.regions import layout

_HEADER: Final = Struct("<8sIIII")
"""Fields of the header: magic, version, size of the file in bytes, numbers of card entries and of
process slots."""
HEADER_SIZE: Final = _HEADER.size
_DISK_MAX: Final = layout.USAGE_SIZE + (256 << 10)
"""Most bytes of disk space that an intact file takes: its size, and 256 KiB for blocks that the
file system itself adds."""


def create(path: Path) -> None:
    """Create the file with its header and zeros, writable by every user of the container. Raises
    OSError.

    All of its blocks are allocated now. If another tenant filled the disk later, the kernel would
    kill (SIGBUS) each process that writes to a mapped page without a block.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        os.fchmod(descriptor, 0o666)  # whatever the umask is
        os.posix_fallocate(descriptor, 0, layout.USAGE_SIZE)
        _put_header(descriptor, layout.VERSION)
    finally:
        os.close(descriptor)


def repair_header(path: Path, version: int) -> None:
    """Restore the file's header and size before its container starts, if a tenant has damaged
    them. `version`: from the limits file, which no tenant can write to. Raises OSError.

    Accounts are left alone, since the shim settles those of dead processes.
    """
    descriptor = open_promptly(path, os.O_RDWR)
    try:
        allocate_exactly(descriptor, layout.USAGE_SIZE)
        if not header_is_good(os.pread(descriptor, HEADER_SIZE, 0), {version}):
            _put_header(descriptor, version)
    finally:
        os.close(descriptor)


def truncate_excess(path: Path) -> int:
    """Cut off what a tenant added to the file: bytes beyond its proper end, and blocks that
    fallocate reserved there without changing its size. Returns the number of bytes that were
    added, 0 if there were none. Raises OSError."""
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
    """Remove the file's extended attributes, which take disk space. Only its tenant adds any, for
    which write permission suffices. Returns how many there were. Raises OSError, with errno E2BIG
    if there are more than the kernel lists, so that none can be removed."""
    try:
        names = [one for one in os.listxattr(path) if one.startswith("user.")]
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # the file system has no extended attributes
            return 0
        raise
    for name in names:
        with suppress(OSError):  # the tenant has removed it already
            os.removexattr(path, name)
    return len(names)


def header_is_good(raw: bytes, versions: Collection[int]) -> bool:
    """Whether `raw`, the first HEADER_SIZE bytes of a file, is a usage file's header of one of
    these versions."""
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
