"""A call whose answer is shared by concurrent callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes `call` once for all concurrent callers, one call after the other. No caller gets the
    answer of a call that began before it asked."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """Make or share a call. Returns its answer, or raises what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            # No caller may be left to receive the exception.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._call()
