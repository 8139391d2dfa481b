"""Decides which cards are Unhealthy: a table of signs, with when each sign counts and when it is
over.

An Unhealthy card is given to no new pod; its users run on and get an event. XIDs are NVIDIA's error
codes (https://docs.nvidia.com/deploy/xid-errors/). Each is reported once, so it counts until the
card is reset. A sign that NVML shows at every read has a hysteresis instead: it must last before it
counts, and must be away for longer before it is over. docs/runbooks/failing-card.md says what to do
with the card.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAM_XIDS: Final = frozenset({8, 11, 13, 31, 43, 45, 68, 109})
"""XIDs of a program's errors, such as an illegal address: the program ends, the card is well.
NVIDIA's device plugin ignores 13, 31, 43, 45, 68 and 109; for 8 and 11 the catalogue says
RESTART_APP."""
NOTED_XIDS: Final = frozenset({63, 92, 94})
"""XIDs of memory errors that the card has contained, and that may foretell worse ones: a row or
page was set aside (63), many bits were corrected (92), an error ended the one program that met it
(94)."""

COOLER_BY: Final = 10
"""Degrees Celsius below the limit at which a card that was too hot counts as cool again."""


@dataclass(frozen=True)
class Readings:
    """NVML's present figures about a card's health and work. Numbers are None if the card does not
    report them. `celsius`: its temperature; `slowdown`: the one at which it slows down, also in
    degrees Celsius. `remap_failed`: a row of its memory could not be replaced. `links`: whether
    each of its NVLinks is active. `used_bytes`: bytes of its memory in use. `busy_percent`: percent
    of the last sampling period in which it worked."""

    celsius: int | None = None
    slowdown: int | None = None
    remap_failed: bool = False
    links: tuple[bool, ...] = ()
    used_bytes: int | None = None
    busy_percent: int | None = None


@dataclass(frozen=True)
class Sign:
    """A sign that a card is Unhealthy. `name`: its name in the checkpoint. `problem`: a clause
    about the card, for people. `seen(now, best)`: whether the readings `now` show it, None if they
    show neither it nor its absence; `best`: the most links that were ever active. `after`: seconds
    for which it must be seen before it counts. `calm`: seconds for which it must not be seen before
    it is over."""

    name: str
    problem: str
    seen: Callable[[Readings, int], bool | None]
    after: float
    calm: float


def _too_hot(now: Readings, best: int) -> bool | None:
    if now.celsius is None or now.slowdown is None:
        return False
    if now.celsius >= now.slowdown:
        return True
    return None if now.celsius > now.slowdown - COOLER_BY else False


SIGNS: Final = (
    Sign(
        "RowNotReplaced",
        "a row of its memory could not be replaced: it needs service",
        lambda now, best: now.remap_failed,
        after=0.0,
        calm=60.0,
    ),
    Sign("TooHot", "it is so hot that it slows down", _too_hot, after=10.0, calm=60.0),
    Sign(
        "LinkDown",
        "one of its NVLinks is down",
        lambda now, best: sum(now.links) < best,
        after=10.0,
        calm=60.0,
    ),
)


REPAIRED: Final = "repaired-"
"""Prefix of the name of a file in the agent's folder, which a card's UUID follows. The file says
that the card was reset while no agent ran: to reset a card, every process that has it open must be
stopped, including the agent."""


def take_repaired(folder: Path) -> list[str]:
    """The UUIDs of the cards that such files declare as repaired; removes the files."""
    found = []
    for file in folder.glob(f"{REPAIRED}*"):
        with suppress(OSError):
            file.unlink()
            found.append(file.name.removeprefix(REPAIRED))
    return found


def breaks_card(xid: int, ignored: Collection[int] = ()) -> bool:
    """Whether a card that reports this XID is Unhealthy until it is reset. `ignored`: the node's
    setting `ignoredXids`."""
    return xid not in PROGRAM_XIDS | NOTED_XIDS and xid not in ignored


@dataclass
class _Course:
    """The state of one sign of one card. `active`: it counts. `since`: since when the readings have
    contradicted `active` (monotonic seconds); None while they do not."""

    active: bool = False
    since: float | None = None

    def follow(self, seen: bool | None, sign: Sign, now: float) -> None:
        if seen is None or seen is self.active:
            self.since = None
        else:
            self.since = now if self.since is None else self.since
            if now - self.since >= (sign.calm if self.active else sign.after):
                self.active, self.since = seen, None


@dataclass(frozen=True)
class KnownHealth:
    """The part of a card's health that the checkpoint keeps. `links`: the most NVLinks that were
    ever active. `signs`: the names of the signs that count."""

    links: int = 0
    signs: tuple[str, ...] = ()


class CardHealth:
    """Follows the signs of one card. Times are monotonic seconds. `known`: its health by an earlier
    agent."""

    def __init__(self, known: KnownHealth = KnownHealth()) -> None:
        self._courses = [_Course(sign.name in known.signs) for sign in SIGNS]
        self._links = known.links

    def read(self, readings: Readings, now: float) -> None:
        """Process the current readings of NVML."""
        self._links = max(self._links, sum(readings.links))
        for sign, course in zip(SIGNS, self._courses, strict=True):
            course.follow(sign.seen(readings, self._links), sign, now)

    @property
    def problems(self) -> list[str]:
        """The problems of the signs that count now."""
        return [sign.problem for sign in self._active()]

    @property
    def known(self) -> KnownHealth:
        """The part of the card's health that the checkpoint keeps for the next agent."""
        return KnownHealth(self._links, tuple(sign.name for sign in self._active()))

    def _active(self) -> list[Sign]:
        found = zip(SIGNS, self._courses, strict=True)
        return [sign for sign, course in found if course.active]
