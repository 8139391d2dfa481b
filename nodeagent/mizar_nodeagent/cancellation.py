"""Cancellations that were not requested: gRPC raises CancelledError where a channel is closed, and
a TaskGroup treats a task that ends that way as finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


def is_asked_to_end() -> bool:
    """Whether the present task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_for_ever(loop: Callable[[], Awaitable[None]]) -> None:
    """Run it until this task is cancelled. Raises RuntimeError when it ends as if it had been."""
    try:
        await loop()
    except asyncio.CancelledError:
        if is_asked_to_end():
            raise
        raise RuntimeError(f"{loop!r} ended as if cancelled, without a cancellation") from None
