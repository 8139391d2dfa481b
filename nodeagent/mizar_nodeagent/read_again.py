"""Decides when the agent reads again the objects that it has written: an API server that is
restored from a backup has older statuses, and the agent writes only what differs from its own
knowledge."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

READ_AGAIN_S: Final = 300.0
"""Seconds between two reads of a key, on average (see `spread`)."""

K = TypeVar("K", bound=Hashable)


def spread(seconds: float, random: Callable[[], float]) -> float:
    """An interval of up to a quarter more or less, so that nodes do not send requests all at once.
    `random` returns numbers in [0, 1)."""
    return seconds * (0.75 + random() / 2)


class ReadAgain(Generic[K]):
    """Makes each key due about every READ_AGAIN_S. `clock` returns seconds, `random` numbers in
    [0, 1)."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._random = random
        self._due_at: dict[K, float] = {}

    def due(self, keys: Iterable[K]) -> list[K]:
        """The keys that are due now. A key that was not among the keys of the last call is not due
        yet; keys that are not given any more are forgotten."""
        now, before = self._clock(), self._due_at
        found = {key: before.get(key, float("inf")) <= now for key in keys}
        self._due_at = {
            key: now + spread(READ_AGAIN_S, self._random)
            if due or key not in before
            else before[key]
            for key, due in found.items()
        }
        return [key for key, due in found.items() if due]
