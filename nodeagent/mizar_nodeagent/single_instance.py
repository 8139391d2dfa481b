"""Ensures that one node agent runs at a time on a node, by a lock: in an upgrade, the old agent
ends before the new one begins."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from mizar_kube.logs import get_logger

log = get_logger(__name__)

RETRY_S = 0.2
"""Seconds between two attempts to take the lock."""


class InstanceLock:
    """The lock of a state folder. Releasing it removes its file if no other file is left there."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    async def acquire(cls, state_dir: Path) -> InstanceLock:
        """Wait until no other agent uses the folder, and lock it. Raises OSError."""
        state_dir.mkdir(parents=True, exist_ok=True)
        path, logged = state_dir / "agent.lock", False
        while (descriptor := _locked(path)) is None:
            if not logged:
                log.warning("another node agent runs on this node: waiting for its end")
                logged = True
            await asyncio.sleep(RETRY_S)
        return cls(path, descriptor)

    def release(self) -> None:
        """Release the lock, so that the next agent can begin."""
        with suppress(OSError):
            if list(self._path.parent.iterdir()) == [self._path]:
                # Remove it while it is locked: an agent that then gets the lock of the removed file
                # notices that the path does not refer to that file any more.
                self._path.unlink()
        os.close(self._descriptor)


def _locked(path: Path) -> int | None:
    """A locked descriptor of the file at this path; None while another agent holds the lock."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
