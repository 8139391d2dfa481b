"""Which events were posted, so that none is repeated with every plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

Announcement = tuple[str, str]
"""The UID of an object and the reason of an event about it."""

ANNOUNCED_FOR_S = 1800.0
"""Seconds after which an event is posted again where it still holds. API servers keep events for an
hour: a pod that waits for longer must not seem to wait for no reason."""


class Announcements:
    """The events of the last ANNOUNCED_FOR_S seconds. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[Announcement, float] = {}

    def note(self, posted: Iterable[Announcement]) -> None:
        """Note that these were posted now."""
        until = self._clock() + ANNOUNCED_FOR_S
        self._until.update(dict.fromkeys(posted, until))

    def known(self, uids: Collection[str]) -> frozenset[Announcement]:
        """Those about the objects with these UIDs that need no repeating yet; the others are
        forgotten."""
        now = self._clock()
        self._until = {
            one: until for one, until in self._until.items() if one[0] in uids and until > now
        }
        return frozenset(self._until)
