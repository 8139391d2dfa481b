"""The agent's checkpoint: its carvings, in one file that is complete or not used.

All of it can be rebuilt from the API server, podresources and NVML. The checkpoint lets a restarted
agent offer the same devices before any of these answers, and keeps what was promised to others (a
completed drain).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from mizar_kube.logs import get_logger
from mizar_nodeagent.files import write_atomically
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.plan import Carvings
from mizar_nodeagent.pods import Key

log = get_logger(__name__)

VERSION = 1


def to_bytes(carvings: Carvings) -> bytes:
    """The file's content: the same carvings always give the same bytes."""
    saved = [carvings[key].to_dict() for key in sorted(carvings)]
    body = {"version": VERSION, "checksum": _checksum(saved), "carvings": saved}
    return json.dumps(body, indent=1, sort_keys=True).encode()


def load(path: Path, now: float) -> dict[Key, Carving]:
    """The carvings. Empty when there is no file, or a damaged one, which is set aside. `now`:
    monotonic seconds."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.error("the checkpoint cannot be read: all is found out anew", error=error)
        return {}
    try:
        return _parsed(json.loads(raw), now)
    except (ValueError, LookupError, TypeError) as error:
        log.error("the checkpoint is damaged: all is found out anew", path=path, error=error)
        path.replace(path.with_suffix(".damaged"))
        return {}


def _parsed(body: dict[str, Any], now: float) -> dict[Key, Carving]:
    if body["version"] != VERSION:
        raise ValueError(f"version {body['version']} instead of {VERSION}")
    if body["checksum"] != _checksum(body["carvings"]):
        raise ValueError("the checksum is wrong")
    carvings = [Carving.from_dict(one, now) for one in body["carvings"]]
    return {carving.key: carving for carving in carvings}


def _checksum(carvings: Any) -> str:
    return hashlib.sha256(json.dumps(carvings, sort_keys=True).encode()).hexdigest()


class CheckpointFile:
    """Writes carvings in the background when they have changed, the newest only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted = self._saved = b""
        self._promises: frozenset[Key] = frozenset()
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()

    async def keep(self, carvings: Carvings) -> None:
        """Have the carvings written soon. Returns at once, unless a drain has been completed: the
        operator acts on that, so it must be on the disk before it is reported."""
        self._wanted = to_bytes(carvings)
        promises = frozenset(
            key for key, one in carvings.items() if one.stage is DrainStage.DRAINED
        )
        is_new, self._promises = bool(promises - self._promises), promises
        if is_new:
            await self.write()
        elif self._wanted != self._saved:
            self._wake.set()

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.write()

    async def write(self) -> None:
        """Write now. Errors are logged only, since everything can be found out anew."""
        async with self._writing:
            content = self._wanted
            if content == self._saved:
                return
            try:
                await asyncio.to_thread(write_atomically, self._path, content)
                self._saved = content
            except OSError as error:
                log.error("the checkpoint cannot be written", error=error)
