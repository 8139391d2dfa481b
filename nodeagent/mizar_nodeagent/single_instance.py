"""One node agent at a time on a node: in an upgrade, the old one ends before the new one begins."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from mizar_kube.logs import get_logger

log = get_logger(__name__)

RETRY_S = 0.2


class InstanceLock:
    """The lock of a state folder. Its file is removed with it if it is the last one there."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    async def acquire(cls, state_dir: Path) -> InstanceLock:
        """Wait until no other agent uses the folder. Raises OSError."""
        state_dir.mkdir(parents=True, exist_ok=True)
        path, logged = state_dir / "agent.lock", False
        while (descriptor := _locked(path)) is None:
            if not logged:
                log.warning("another node agent runs on this node: waiting for its end")
                logged = True
            await asyncio.sleep(RETRY_S)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let the next agent begin."""
        with suppress(OSError):
            if list(self._path.parent.iterdir()) == [self._path]:
                # While it is locked: an agent that waits for it finds that the file is not this one
                # any more.
                self._path.unlink()
        os.close(self._descriptor)


def _locked(path: Path) -> int | None:
    """A locked descriptor of the file that is there; None while another agent holds the lock."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
