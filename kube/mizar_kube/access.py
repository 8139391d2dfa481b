"""The address of an API server and the proof of who asks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext

TOKEN_REFRESH_S = 60.0

Tokens = Callable[[bool], "str | None"]
"""Gives the Authorization header's value; True asks for a fresh one, because the last failed."""


class ConfigError(Exception):
    """There is no usable way to reach an API server; the message says what to set."""


@dataclass(frozen=True)
class Access:
    """The address of an API server and what is needed to talk to it."""

    server: str
    ssl: SSLContext | bool = True
    tokens: Tokens = field(default=lambda fresh: None)
    proxy: str | None = None
    server_hostname: str | None = None


class TokenFile:
    """A service account's token, read again every minute: the kubelet renews it in place."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")
        self._header = ""

    def __call__(self, fresh: bool = False) -> str:
        if fresh or self._clock() - self._read_at > TOKEN_REFRESH_S:
            self._header = f"Bearer {self._path.read_text().strip()}"
            self._read_at = self._clock()
        return self._header
