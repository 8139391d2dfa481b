"""Remembers which events were posted, so that no event is repeated with every plan, and new
messages are posted soon."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.snapshot import Announcement, Subject, Wording

SUBJECT_S = 300.0
"""Least seconds between two events of a subject (an object and a reason), even if a count in the
message changes all the time: 10,000 waiting pods whose messages all change cost 33 events a second.
Kubernetes' own recorder permits an object one event in as many seconds too, after its first 25."""

WORDING_S = 1800.0
"""Seconds after which an event is posted again where it still holds. API servers keep events for an
hour: a pod that waits for longer must not seem to wait for no reason."""

TOGETHER_S = 5.0
"""Seconds between two plans that are made only to post postponed messages, however many there
are."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The last event of a subject. `at`: when it was posted (seconds of the clock). `wordings`: its
    message, or several if the subject had several events at once."""

    at: float
    wordings: frozenset[Wording]


class PostedEvents:
    """The last message of each subject that had an event in the last WORDING_S seconds. Earlier
    messages are forgotten, since they count as news again; so there is one entry per object and
    reason, however often the message changes. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Subject, Announced] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, posted: Iterable[EmitEvent]) -> None:
        """Note that these were posted now."""
        found: defaultdict[Subject, set[Wording]] = defaultdict(set)
        for one in posted:
            found[one.subject].add(one.wording)
        now = self._clock()
        self._last.update({key: Announced(now, frozenset(said)) for key, said in found.items()})

    def known(self, uids: Collection[str]) -> frozenset[Announcement]:
        """The events about objects with these UIDs that must not be posted again yet; all others
        are forgotten."""
        now = self._clock()
        self._last = {
            key: last
            for key, last in self._last.items()
            if key[0] in uids and now < last.at + WORDING_S
        }
        subjects = (key for key, last in self._last.items() if now < last.at + SUBJECT_S)
        return frozenset[Announcement](subjects).union(
            *(last.wordings for last in self._last.values())
        )

    def next(self, held_back: Iterable[Subject]) -> float | None:
        """Seconds until the next plan is due, which posts the first of the messages about these
        subjects that were held back; None if there are none."""
        now = self._clock()
        ends = (self._last[one].at + SUBJECT_S for one in held_back if one in self._last)
        first = min(ends, default=None)
        return None if first is None else max(TOGETHER_S, first - now)
