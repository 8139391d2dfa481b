"""Detects restarts of the kubelet by its registration socket: a starting kubelet deletes all
plugins' sockets, and then creates its own anew.

Each plugin registers again by itself: see plugin/registration.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

SOCKET = "kubelet.sock"
EVERY_S = 0.1
"""Seconds between two checks of the socket. A check takes some microseconds, and a pod that starts
before the plugins have registered again gets no device."""

Identity = tuple[int, int]
"""A socket's inode number and its change time in nanoseconds, since the number alone may be reused
at once."""


def identity(socket: Path) -> Identity | None:
    """The identity of the socket, or None while there is none."""
    try:
        found = socket.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


class KubeletSocket:
    """The kubelet's registration socket. `run` watches it until cancelled."""

    def __init__(
        self, plugin_dir: Path, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.path = plugin_dir / SOCKET
        self._sleep = sleep
        self._seen = identity(self.path)
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Check the socket every EVERY_S seconds, for ever."""
        while True:
            now = identity(self.path)
            if now != self._seen:
                self._seen = now
                self._changed.set()
                self._changed = asyncio.Event()
            await self._sleep(EVERY_S)

    async def changed_from(self, before: Identity | None) -> Identity:
        """Wait until the socket exists and is not `before`. Returns its identity."""
        while (now := identity(self.path)) is None or now == before:
            await self._changed.wait()
        return now

    async def there(self) -> Identity:
        """Wait until there is a socket. Returns its identity."""
        return await self.changed_from(None)
