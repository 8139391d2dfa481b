"""Waits with a timeout for a call that may hang, such as one of NVML when the driver hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SlowCall(Generic[T]):
    """Makes one call at a time. A call that takes too long goes on, and the next caller gets its
    answer, since another call would only wait behind it."""

    def __init__(self) -> None:
        self._running: asyncio.Task[T] | None = None

    async def answer(self, call: Callable[[], Coroutine[Any, Any, T]], within: float) -> T:
        """The answer to `call`, or to an earlier call that still runs. Raises what that call
        raises, and TimeoutError after `within` seconds."""
        if self._running is None:
            self._running = asyncio.create_task(call())
        await asyncio.wait({self._running}, timeout=within)
        if not self._running.done():
            raise TimeoutError
        running, self._running = self._running, None
        return running.result()

    def cancel(self) -> None:
        """Stop waiting for the answer."""
        if self._running is not None:
            self._running.cancel()
