"""Files that are complete or not there, and files that tenants can open too."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final


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
    open, and with it the whole agent, waiting for as long as the kernel lets it: 45 s. Such an open
    fails with BlockingIOError, and from then on the lease ends and none can be taken, until there
    was time to try again.
    """
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        _end_lease(path)
        raise


def read_promptly(path: Path) -> bytes:
    """The content of a small file that is mounted into a container. Raises OSError."""
    with os.fdopen(open_promptly(path, os.O_RDONLY), "rb") as file:
        return file.read()


def rewrite_promptly(path: Path, content: bytes) -> None:
    """Give that file, which stays the same one, another content. Raises OSError."""
    with os.fdopen(open_promptly(path, os.O_RDWR), "r+b") as file:
        file.truncate(0)
        file.write(content)


WITHOUT_LEASE_S: Final = 10.0
"""Seconds for which nobody can take a lease on a file again: all that open it do so anew within."""
_ending: Final = set[Path]()
_lock: Final = threading.Lock()


def _end_lease(path: Path) -> None:
    """Wait in a thread for the lease to end. A holder that gives it up and takes it again, each
    time that somebody tries to open the file, cannot do so while that thread is opening it to
    write."""
    with _lock:
        if path in _ending:
            return
        _ending.add(path)
    threading.Thread(target=_wait_for_lease, args=(path,), name="lease", daemon=True).start()


def _wait_for_lease(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        time.sleep(WITHOUT_LEASE_S)
        os.close(descriptor)
    except OSError:
        pass  # the slot was removed meanwhile
    finally:
        with _lock:
            _ending.discard(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
