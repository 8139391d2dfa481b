"""One node agent at a time on a node: during an upgrade, the old one ends before the new begins."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from mizar_kube.logs import get_logger

log = get_logger(__name__)

LOOK_EVERY_S = 0.2


class OnlyOne:
    """Holds the lock of a state folder. Its file goes with the agent when it is the last there."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    async def on(cls, state_dir: Path) -> OnlyOne:
        """Wait until no other agent works with the folder. Raises OSError."""
        state_dir.mkdir(parents=True, exist_ok=True)
        path, told = state_dir / "agent.lock", False
        while (descriptor := _locked(path)) is None:
            if not told:
                log.warning("another node agent runs on this node: waiting for its end")
                told = True
            await asyncio.sleep(LOOK_EVERY_S)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let the next one begin."""
        with suppress(OSError):
            if list(self._path.parent.iterdir()) == [self._path]:
                # While it is locked: whoever waits for it finds that it is the folder's no more.
                self._path.unlink()
        os.close(self._descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor of the file that is there, locked; None while somebody else has it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
