"""What the operator remembers from plan to plan; losing it costs a repeated event or call."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mizar_core.planning.snapshot import Key, Refused

K = TypeVar("K")


@dataclass(frozen=True)
class Entry:
    """Until when something is believed, for how long it was, and what was said about it."""

    until: float
    delay: float
    said: str


class Beliefs(Generic[K]):
    """What was learned by trying, and is believed for a while: longer each time that it turns out
    to be still so, so that a lasting obstacle costs few calls and a passing one little time."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._entries: dict[K, Entry] = {}

    def learn(self, key: K, now: float, said: str = "") -> None:
        """It was so just now; believe it from now on, for a while."""
        before = self._entries.get(key)
        delay = min(2 * before.delay, self._most) if before else self._first
        self._entries[key] = Entry(now + delay, delay, said)

    def holds(self, key: K, now: float) -> bool:
        """Whether it is too soon to try again."""
        entry = self._entries.get(key)
        return entry is not None and entry.until > now

    def held(self, now: float) -> Iterator[tuple[K, str]]:
        """All that is believed now, and what was said."""
        return ((key, one.said) for key, one in self._entries.items() if one.until > now)

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


@dataclass
class Memory:
    """`announced`: (uid, reason) of events. `contested`: UIDs of shadow pods that somebody used
    when asked live. `refused`: (quota, devices) of shadow pods that the API server refused.
    `gone`: what was missing when asked live, until when that is believed."""

    announced: set[tuple[str, str]] = field(default_factory=set)
    contested: Beliefs[str] = field(
        default_factory=lambda: Beliefs(CONTESTED_FIRST_S, CONTESTED_MOST_S)
    )
    refused: Beliefs[tuple[Key, int]] = field(
        default_factory=lambda: Beliefs(REFUSED_FIRST_S, REFUSED_MOST_S)
    )
    gone: dict[str, float] = field(default_factory=dict)

    def refusals(self, now: float) -> tuple[Refused, ...]:
        """What the API server is not to be asked for again yet."""
        return tuple(Refused(*key, said) for key, said in self.refused.held(now))

    def next_try(self, now: float) -> float | None:
        """In how many seconds something may be tried again."""
        times = [one.next(now) for one in (self.contested, self.refused)]
        return min((one for one in times if one is not None), default=None)

    def tidy(self, now: float, uids: set[str]) -> None:
        """Forget what is over, and what is about objects that are not among these any more."""
        self.announced = {one for one in self.announced if one[0] in uids}
        self.contested.keep_only(uids)
        self.refused.forget_after(REFUSED_MOST_S, now)
        self.gone = {key: until for key, until in self.gone.items() if until > now}
