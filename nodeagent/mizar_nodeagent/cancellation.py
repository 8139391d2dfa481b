"""Detects unrequested cancellations: gRPC raises CancelledError when a channel is closed,
and a TaskGroup treats a task that ends that way as finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


def is_asked_to_end() -> bool:
    """Whether a cancellation of the present task was requested."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_for_ever(loop: Callable[[], Awaitable[None]]) -> None:
    """Run the loop until this task is cancelled. Raises RuntimeError if the loop ends with
    CancelledError although it was not."""
    try:
        await loop()
    except asyncio.CancelledError:
        if is_asked_to_end():
            raise
        raise RuntimeError(f"{loop!r} ended as if cancelled, without a cancellation") from None
