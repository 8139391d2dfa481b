"""Files that are complete or not there, and files that tenants can open too."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o644, durable: bool = True) -> None:
    """Replace the file in one step; `durable`: it survives a power cut from then on. Raises
    OSError.

    Not for a file that is mounted into a container: the container would keep the old one.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    if durable:
        _sync_folder(path.parent)


def open_promptly(path: Path, flags: int) -> int:
    """A descriptor of a file that is mounted into a container. Raises OSError.

    Root in the container may hold a lease on it (fcntl's F_SETLEASE), which would keep an ordinary
    open, and with it the whole agent, waiting for as long as the kernel lets it: 45 s.
    """
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
