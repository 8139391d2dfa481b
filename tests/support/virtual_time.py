"""An event loop without waiting: when nothing can be done now, its time jumps to the next timer.

Everything in it is in a fixed order, so that what runs in it twice does the same twice.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingToDo(Exception):
    """All tasks wait, and none of them for a time: they would wait for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` are the seconds since its start, which pass only between callbacks."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        super().__init__(_Jumping(self))
        self.set_task_factory(_numbered())

    def time(self) -> float:
        """Virtual seconds."""
        return self._elapsed

    def jump(self, seconds: float) -> None:
        """Time goes by."""
        self._elapsed += seconds


class _Jumping(selectors.SelectSelector):
    """Knows files, as a loop needs them, and never waits for any."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingToDo
        if timeout > 0:
            self._loop.jump(timeout)
        return []


def _numbered() -> Callable[..., asyncio.Task[Any]]:
    """Makes tasks whose order in a set does not depend on where they lie in memory."""
    numbers = itertools.count()

    class Numbered(asyncio.Task[T]):
        def __init__(self, *args: Any, **more: Any) -> None:
            self._number = next(numbers)
            super().__init__(*args, **more)

        def __hash__(self) -> int:
            return self._number

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        return Numbered(coro, loop=loop, **more)

    return make


def run(job: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time; tasks that are left when the job ends are cancelled."""
    loop = VirtualLoop()
    try:
        try:
            return loop.run_until_complete(job)
        finally:
            _end(loop)
    finally:
        loop.close()


def _end(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
