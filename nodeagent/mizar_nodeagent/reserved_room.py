"""Room on the disk that is reserved for a file, so that it can be replaced while the disk is full
or a quota is used up.

Two files beside it have the room. One gets the new content, padded with spaces, and changes places
with the file in one step: whoever reads the file, also after a power cut, finds the old content or
the new. The next content goes into the other one. A single one would do only once, since the file
that comes back in its place may be small.

This holds where a block that is written again stays the file's own, as on ext4, XFS and tmpfs. File
systems that write each block to a new place (btrfs, ZFS, a snapshot of LVM) may have no room for
that: then the content cannot be written, as without a reserve.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_nodeagent.files import change_places, overwrite, write_atomically

RESERVED_BYTES: Final = 256 << 10
"""Size of each of the two files: a checkpoint has 1 to 2 KiB for each shadow pod, and no node has
more than 16 cards of 7 MIG devices each."""


class ReservedRoom:
    """The room that is reserved for the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = tuple(path.with_suffix(f".reserve-{number}") for number in (1, 2))

    def reserve(self, used: int) -> None:
        """Reserve room for twice the bytes that the file uses now, if the disk has it: after an
        error, what was reserved before stays as it is."""
        size = _size_for(used)
        with suppress(OSError):
            for file in self._files:
                if not file.exists() or file.stat().st_size < size:
                    write_atomically(file, b" " * size)

    def put(self, content: bytes) -> bool:
        """Replace the file's content, and append spaces. Returns False after an error, or if there
        is not enough room: the file is as it was, except that an error of the disk may keep the new
        content from being durable."""
        return any(self._put(file, content) for file in self._files)

    def _put(self, file: Path, content: bytes) -> bool:
        try:
            size = file.stat().st_size
            if len(content) > size:
                return False
            overwrite(file, content.ljust(size))
            change_places(file, self._path)
        except OSError:
            return False
        return True


def _size_for(used: int) -> int:
    """The size of each file, in steps, so that they are rarely written anew."""
    return RESERVED_BYTES * -(-max(1, 2 * used) // RESERVED_BYTES)
