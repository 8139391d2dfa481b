"""Makes the folders of slots before containers need them: the kubelet waits for Allocate, which a
file system may delay by half a millisecond for each new file."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.container.shim_install import Shim
from mizar_nodeagent.regions import limits_file, usage_file

log = get_logger(__name__)

SPARES = 16
"""Number of folders that are kept ready. More are needed only while pods start faster than a thread
can make them."""
RETRY_S = 30.0
"""Seconds to wait after a failure, for example on a full disk."""

RECORD: Final = "slot.json"
"""Name of a slot's file that says which devices and container it is for."""
LIMITS: Final = "limits"
"""Name of a slot's file with the container's limits."""
USAGE: Final = "usage"
"""Name of a slot's file with the container's usage."""
LIBRARY: Final = "libmizar.so"
"""Name of a slot's copy of the shim."""
PRELOAD_LIST: Final = "ld.so.preload"
"""Name of a slot's file by which the dynamic loader loads the shim."""


class SpareSlots:
    """Folders with all files of a slot, in which slot.json is still empty. They lie next to the
    installed shim."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._spare: deque[Path] = deque()
        self._taken = asyncio.Event()

    def take(self) -> Path:
        """The folder of a spare slot, which the caller has to move away: one that was made before
        if there is one, else a new one. Raises OSError."""
        self._taken.set()
        while self._spare:
            if (folder := self._spare.popleft()).is_dir():
                return folder
        return self._make()

    @property
    def _folder(self) -> Path:
        return self._shim.library.parent / "spare"

    async def run(self) -> None:
        """Keep SPARES folders ready, for ever."""
        self.remove_all()
        while True:
            self._taken.clear()
            try:
                await self.fill()
            except OSError as error:
                log.warning("no slot can be made ahead", error=error)
                await asyncio.sleep(RETRY_S)
            else:
                await self._taken.wait()

    def remove_all(self) -> None:
        """Remove all folders that no container has. Those that an earlier agent left may be of
        another version."""
        self._spare.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def fill(self) -> None:
        """Make folders until there are SPARES. Raises OSError."""
        while len(self._spare) < SPARES:
            self._spare.append(await asyncio.to_thread(self._make))

    def _make(self) -> Path:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            self._make_files(folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _make_files(self, folder: Path) -> None:
        folder.chmod(0o755)
        limits_file.create_empty(folder / LIMITS)
        usage_file.create(folder / USAGE)
        self._shim.copy_library(folder / LIBRARY)
        self._shim.copy_preload(folder / PRELOAD_LIST)
        (folder / RECORD).touch(mode=0o644)
