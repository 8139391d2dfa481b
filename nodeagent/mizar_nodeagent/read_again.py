"""When to read again what the agent has written: an API server that is restored from a backup has
older statuses, and the agent writes only what differs from what it knows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

READ_AGAIN_S: Final = 300.0
"""Seconds between two reads of a key, on average (see `spread`)."""

K = TypeVar("K", bound=Hashable)


def spread(seconds: float, random: Callable[[], float]) -> float:
    """A quarter more or less, so that nodes do not ask all at once. `random` gives numbers in
    [0, 1)."""
    return seconds * (0.75 + random() / 2)


class ReadAgain(Generic[K]):
    """Says of each key every READ_AGAIN_S or so that it is due. `clock` counts seconds; `random`
    gives numbers in [0, 1)."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._random = random
        self._due_at: dict[K, float] = {}

    def due(self, keys: Iterable[K]) -> list[K]:
        """Those of the keys that are due now; none that was not among the keys of the last call.
        Keys that are not given any more are forgotten."""
        now, before = self._clock(), self._due_at
        found = {key: before.get(key, float("inf")) <= now for key in keys}
        self._due_at = {
            key: now + spread(READ_AGAIN_S, self._random)
            if due or key not in before
            else before[key]
            for key, due in found.items()
        }
        return [key for key, due in found.items() if due]
