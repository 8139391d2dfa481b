"""What the operator remembers from plan to plan; losing it costs a repeated event or call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from mizar_core.planning.exclusion import Part, PartName
from mizar_core.planning.snapshot import Attempt, Key, Refused

K = TypeVar("K")


@dataclass(frozen=True)
class Backoff:
    """Until when something is believed, for how long it was, and what was said about it."""

    until: float
    delay: float
    message: str


class Backoffs(Generic[K]):
    """What was learned by trying, and is believed for a while: longer each time that it turns out
    to be still so, so that a lasting obstacle costs few calls and a passing one little time."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._entries: dict[K, Backoff] = {}

    def record(self, key: K, now: float, message: str = "", *, anew: bool = False) -> None:
        """It was so just now; believe it from now on, for a while: a short one if `anew` and
        something else was said before."""
        before = self._entries.get(key)
        if anew and before is not None and before.message != message:
            before = None
        delay = min(2 * before.delay, self._most) if before else self._first
        self._entries[key] = Backoff(now + delay, delay, message)

    def is_waiting(self, key: K, now: float) -> bool:
        """Whether it is too soon to try again."""
        entry = self._entries.get(key)
        return entry is not None and entry.until > now

    def active(self, now: float) -> Iterator[tuple[K, str]]:
        """All that is believed now, and what was said."""
        return ((key, one.message) for key, one in self._entries.items() if one.until > now)

    def next(self, now: float) -> float | None:
        """In how many seconds the next may be tried again; None if nothing is believed."""
        left = [one.until - now for one in self._entries.values() if one.until > now]
        return min(left, default=None)

    def forget_after(self, seconds: float, now: float) -> None:
        """Forget what nobody has found to be so for that long after it could be tried."""
        self._entries = {k: e for k, e in self._entries.items() if e.until + seconds > now}

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget all others."""
        self._entries = {k: e for k, e in self._entries.items() if k in keys}


# Long enough for a node agent to have said who got the device.
CONTESTED_FIRST_S = 1.0
CONTESTED_MOST_S = 10.0
REFUSED_FIRST_S = 2.0
REFUSED_MOST_S = 30.0
TRIED_FIRST_S = 60.0
TRIED_MOST_S = 3600.0
EXCLUDED_FOR_S = 300.0

Excluded = Mapping[PartName, tuple[Part, Exception]]


@dataclass
class ReconcileState:
    """`announced`: (uid, reason) of events. `contested`: UIDs of shadow pods that somebody used
    when asked live. `refused`: (quota, devices) of shadow pods that the API server refused.
    `tried`: what was done on a guess, and the UID of whom it was to help. `gone`: what was missing
    when asked live, until when that is believed. `taken`: whole cards that other pods had on a
    node, until when that is believed. `free_since`: since when 1, 2, … devices of a
    resource have been free on a node. `left_out`: what cannot be planned for. `unanswered`: (quota,
    devices, sequence) of shadow pods whose creation nobody answered."""

    announced: set[tuple[str, str]] = field(default_factory=set)
    contested: Backoffs[str] = field(
        default_factory=lambda: Backoffs(CONTESTED_FIRST_S, CONTESTED_MOST_S)
    )
    refused: Backoffs[tuple[Key, int]] = field(
        default_factory=lambda: Backoffs(REFUSED_FIRST_S, REFUSED_MOST_S)
    )
    attempted: Backoffs[str] = field(default_factory=lambda: Backoffs(TRIED_FIRST_S, TRIED_MOST_S))
    gone: dict[str, float] = field(default_factory=dict)
    taken: dict[str, tuple[float, Counter[str]]] = field(default_factory=dict)
    free_since: dict[tuple[str, str], tuple[datetime, ...]] = field(default_factory=dict)
    unanswered: set[tuple[Key, int, int]] = field(default_factory=set)
    excluded: Excluded = field(default_factory=dict)
    excluded_until: float = 0.0
    statuses_late_since: float | None = None

    def note_status_writes(self, postponed: bool, now: float) -> None:
        """Statuses were written, or postponed because there was news."""
        if not postponed:
            self.statuses_late_since = None
        elif self.statuses_late_since is None:
            self.statuses_late_since = now

    def excluded_now(self, now: float) -> Excluded:
        """What is to be left out of the plan again, without trying it."""
        return self.excluded if now < self.excluded_until else {}

    def exclude(self, found: Excluded, now: float) -> None:
        """This was left out just now; what is new in it starts the time anew."""
        if found.keys() - self.excluded.keys() or now >= self.excluded_until:
            self.excluded_until = now + EXCLUDED_FOR_S
        self.excluded = found

    def note_free(self, free: Mapping[tuple[str, str], int], at: datetime) -> None:
        """So many devices of each resource are free on each node now; on all others none."""
        before, self.free_since = self.free_since, {}
        for key, count in free.items():
            known = before.get(key, ())[:count]
            self.free_since[key] = known + (at,) * (count - len(known))

    def note_attempts(self, attempts: Iterable[Attempt], now: float) -> None:
        """This is being tried; when the last time was for somebody else, it helped that one."""
        for one in attempts:
            self.attempted.record(one.what, now, one.about, anew=True)

    def attempts(self, now: float, waiting: Collection[str]) -> frozenset[str]:
        """What is not to be tried again yet, since those whom it was to help still wait."""
        return frozenset(what for what, about in self.attempted.active(now) if about in waiting)

    def refusals(self, now: float) -> tuple[Refused, ...]:
        """What the API server is not to be asked for again yet."""
        return tuple(Refused(*key, message) for key, message in self.refused.active(now))

    def next_try(self, now: float) -> float | None:
        """In how many seconds something may be tried again."""
        times = [one.next(now) for one in (self.contested, self.refused, self.attempted)]
        return min((one for one in times if one is not None), default=None)

    def forget_old(self, now: float, uids: set[str]) -> None:
        """Forget what is over, and what is about objects that are not among these any more."""
        self.announced = {one for one in self.announced if one[0] in uids}
        self.contested.keep_only(uids)
        self.refused.forget_after(REFUSED_MOST_S, now)
        self.attempted.forget_after(TRIED_MOST_S, now)
        self.gone = {key: until for key, until in self.gone.items() if until > now}
