"""Lets the kubelet's calls be answered between the parts of work that keeps the event loop busy."""

from __future__ import annotations

import asyncio
from typing import Final

ROUNDS: Final = 5
"""Number of rounds of the event loop that a gRPC call takes from its arrival until it is answered.
In each round, the loop also does everything else that is due."""


async def let_calls_in() -> None:
    """Yield to the event loop until calls that have arrived meanwhile are answered."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


class Turns:
    """Lets tasks that wake up at the same moment, for example since all have awaited the same
    answer, go on one after the other, with the kubelet's calls answered in between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for the caller's turn, which ends when the caller awaits anything else."""
        async with self._lock:
            await let_calls_in()
