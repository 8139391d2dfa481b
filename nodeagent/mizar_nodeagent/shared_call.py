"""A call whose answer is shared by those who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes `call` once for all who ask at the same time, one call after the other. Nobody gets an
    answer that was asked for before he came."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """What the call answers, or raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            # Nobody may be left who waits for it.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._call()
