"""A folder of things that took long to make; each is there as a whole or not at all.

An entry is filled in a temporary folder beside it and renamed into place under a lock, so
two runs at once make it once, and a kill in the middle leaves only a temporary folder that
the next run removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.binaries.errors import Busy
from cluster.binaries.progress import Progress

LOCK_LIMIT = 2700.0  # seconds; longer than the longest build may take


def root() -> Path:
    """The cache's folder: $MIZAR_CACHE, or mizar in the user's cache folder."""
    named = os.environ.get("MIZAR_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mizar"


def logs() -> Path:
    """The folder of the build logs; each is kept until the next build of the same thing."""
    folder = root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def entry(
    folder: Path, name: str, fill: Callable[[Path], None], progress: Progress | None = None
) -> Path:
    """`folder/name`, made by `fill(empty temporary folder)` if it is not there yet.

    A name is `thing-version`; only one version of a thing is made at a time.
    """
    wanted = folder / name
    if wanted.exists():
        return wanted
    thing = name.rpartition("-")[0] or name
    with locked(folder / f".{thing}.lock", progress or Progress.silent()):
        if not wanted.exists():  # another run may have made it meanwhile
            _fill(wanted, folder / f".{thing}.tmp", fill)
    return wanted


def _fill(wanted: Path, temporary: Path, fill: Callable[[Path], None]) -> None:
    remove(temporary)  # of a run that was killed: we hold the lock
    temporary.mkdir()
    try:
        fill(temporary)
        temporary.rename(wanted)
    finally:
        remove(temporary)


@contextmanager
def locked(path: Path, progress: Progress, limit: float = LOCK_LIMIT) -> Iterator[None]:
    """Hold `path` as a lock among processes; the kernel lets go of it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        if not _try_lock(file.fileno()):
            with progress.step(f"waiting for {_holder(path)}, which makes the same"):
                _wait_for_lock(file.fileno(), path, limit)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(fd: int, path: Path, limit: float) -> None:
    deadline = time.monotonic() + limit
    while not _try_lock(fd):
        if time.monotonic() > deadline:
            raise Busy(f"{_holder(path)} has held {path} for {limit:.0f} s: end it, then try again")
        time.sleep(0.2)


def _holder(path: Path) -> str:
    pid = path.read_text().strip()
    return f"process {pid}" if pid else "another process"


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it; nothing happens when it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def keep_latest(folder: Path, pattern: str, used: Path, count: int) -> None:
    """Mark the entry `used` as used now; of those that match, keep the `count` used last."""
    os.utime(used)
    entries = [path for path in folder.glob(pattern) if not path.name.startswith(".")]
    entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for old in entries[count:]:
        remove(old)
