"""Writes files atomically, and opens files that tenants can open too without waiting for leases."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final


def write_atomically(path: Path, content: bytes, mode: int = 0o644, durable: bool = True) -> None:
    """Replace the file's content in one step, with these permissions. `durable`: sync it to the
    disk, so that it survives a power cut. Raises OSError.

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


def overwrite(path: Path, content: bytes) -> None:
    """Write over the beginning of a file and sync it to the disk. Needs no room if the file is as
    long. An interruption leaves neither the old content nor the new. Raises OSError."""
    with path.open("r+b") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def change_places(new: Path, path: Path) -> None:
    """Give the file `new` the name `path` in one step, and the file of that name, if there is one,
    the name `new`: it keeps its blocks. Where the file system cannot do that (NFS), the file is
    replaced. Survives a power cut. Raises OSError."""
    try:
        _exchange(new, path)
    except OSError:
        new.replace(path)
    _sync_folder(path.parent)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):  # C libraries from before 2018
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_AT_FDCWD: Final = -100
"""Relative paths start at the working directory."""
_RENAME_EXCHANGE: Final = 2


def open_promptly(path: Path, flags: int) -> int:
    """Open a file that is mounted into a container, and return the descriptor. Raises OSError.

    Root in the container may hold a lease on the file (fcntl's F_SETLEASE), for which an ordinary
    open, and with it the whole agent, would wait as long as the kernel lets it: 45 s. This open
    raises BlockingIOError instead and has the lease end, after which none can be taken for
    WITHOUT_LEASE_S, so that the caller can try again.
    """
    try:
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        _end_lease(path)
        raise


def allocate_exactly(descriptor: int, size: int) -> None:
    """Give a file of another size this one, with all of its blocks: if the disk became full later,
    the kernel would kill (SIGBUS) a process that writes to a mapped page without a block. Raises
    OSError."""
    if os.fstat(descriptor).st_size != size:
        # First the blocks: on a full disk the file keeps its wrong size, and the next try sees it.
        os.posix_fallocate(descriptor, 0, size)
        os.ftruncate(descriptor, size)


def read_promptly(path: Path) -> bytes:
    """The content of a small file that is mounted into a container. Raises OSError."""
    with os.fdopen(open_promptly(path, os.O_RDONLY), "rb") as file:
        return file.read()


def rewrite_promptly(path: Path, content: bytes) -> None:
    """Replace the content of a file that is mounted into a container, in place. Raises OSError."""
    with os.fdopen(open_promptly(path, os.O_RDWR), "r+b") as file:
        file.truncate(0)
        file.write(content)


WITHOUT_LEASE_S: Final = 10.0
"""Seconds for which no lease can be taken on a file again: within them, all parts of the agent that
failed to open it try again."""
_ending: Final = set[Path]()
_lock: Final = threading.Lock()


def _end_lease(path: Path) -> None:
    """Wait in a thread for the lease to end. A holder that gives up the lease at each attempt to
    open the file and takes it again cannot do so while the thread has the file open for writing."""
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
