"""Keeps copies of the shim ready before containers need them: the kubelet waits for Allocate, and
copying a file during it would take longer than all the rest."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from itertools import count
from pathlib import Path

from mizar_kube.logs import get_logger
from mizar_nodeagent.container.shim_install import Shim

log = get_logger(__name__)

SPARES = 16
"""Number of copies that are kept ready. More are needed only while pods start faster than a thread
can copy."""
RETRY_S = 30.0
"""Seconds to wait after a failed copy, for example on a full disk."""


class SpareCopies:
    """Copies of the library in a folder beside it. Copies that an earlier agent left are removed,
    since they may be of another version."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._spare: deque[Path] = deque()
        self._taken = asyncio.Event()
        self._numbers = count()

    def take(self, library: Path) -> None:
        """Put a copy of the library at this path: a spare one if there is one, else a new one.
        Raises OSError."""
        try:
            self._spare.popleft().replace(library)
        except (IndexError, FileNotFoundError):
            self._shim.copy_library(library)
        self._taken.set()

    @property
    def _folder(self) -> Path:
        return self._shim.library.parent / "spare"

    async def run(self) -> None:
        """Keep SPARES copies ready, for ever."""
        self.remove_all()
        while True:
            self._taken.clear()
            try:
                await self.fill()
            except OSError as error:
                log.warning("no copy of the shim can be made ahead", error=error)
                await asyncio.sleep(RETRY_S)
            else:
                await self._taken.wait()

    def remove_all(self) -> None:
        """Remove all copies that no container has."""
        self._spare.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def fill(self) -> None:
        """Make copies until there are SPARES. Raises OSError."""
        while len(self._spare) < SPARES:
            self._spare.append(await asyncio.to_thread(self._make))

    def _make(self) -> Path:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / str(next(self._numbers))
        self._shim.copy_library(path)
        return path
