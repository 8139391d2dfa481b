"""Detects restarts of the kubelet by its registration socket: a starting kubelet deletes all
plugins' sockets, and then creates its own anew.

Each plugin registers again by itself: see plugin/registration.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

SOCKET = "kubelet.sock"
"""Name of the registration socket in the kubelet's folder for device plugins."""
EVERY_S = 0.1
"""Seconds between two checks of the socket while a plugin is not registered: a pod that starts
before the plugins have registered again gets no device."""
CONNECTED_S = 2.0
"""Seconds between two checks of the socket while the kubelet has a plugin's stream open: if the
kubelet restarts, the stream ends, which shows the restart sooner."""

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
    """The kubelet's registration socket. Several may wait for it at the same time."""

    def __init__(
        self, plugin_dir: Path, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.path = plugin_dir / SOCKET
        self._sleep = sleep

    async def changed_from(self, before: Identity | None, every: float = EVERY_S) -> Identity:
        """Wait until the socket exists and is not `before`. Returns its identity. `every`: seconds
        between two checks."""
        while (now := identity(self.path)) is None or now == before:
            await self._sleep(every)
        return now

    async def there(self) -> Identity:
        """Wait until there is a socket. Returns its identity."""
        return await self.changed_from(None)
