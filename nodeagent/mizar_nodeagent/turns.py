"""Letting the kubelet's calls come in between parts of work that takes the event loop for long."""

from __future__ import annotations

import asyncio
from typing import Final

ROUNDS: Final = 5
"""Rounds of the event loop that a call of gRPC takes from its coming until it is answered. In each
of them, the loop does all else that is due."""


async def let_calls_in() -> None:
    """Give calls that have come in meanwhile the time to be answered."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


class Turns:
    """Those who ask at the same moment, as after an answer that all of them have waited for, go on
    one after the other, with calls that come in between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the caller's turn. It ends when the caller waits for anything else."""
        async with self._lock:
            await let_calls_in()
