"""The table of signs that make a card Unhealthy, with when each sign counts and when it is over.

An Unhealthy card is given to no new pod; its users run on and get an event. XIDs are NVIDIA's error
codes (https://docs.nvidia.com/deploy/xid-errors/); each is reported once, so it counts until the
card is reset. What NVML shows at every read has a hysteresis instead: it must last before it
counts, and must be away for longer before it is over. What to do with the card:
docs/runbooks/failing-card.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAM_XIDS: Final = frozenset({8, 11, 13, 31, 43, 45, 68, 109})
"""Errors of a program, such as an illegal address: the program ends, the card is well. NVIDIA's
device plugin ignores 13, 31, 43, 45, 68 and 109; for 8 and 11 the catalogue says RESTART_APP."""
NOTED_XIDS: Final = frozenset({63, 92, 94})
"""Errors of memory that the card has contained: a row or page was set aside (63), many bits were
corrected (92), an error ended the one program that met it (94). They foretell worse ones."""

COOLER_BY: Final = 10
"""Degrees Celsius below the limit at which a card that was too hot counts as cool again."""


@dataclass(frozen=True)
class Readings:
    """What NVML shows of a card's health and work. Temperatures are in degrees Celsius, None if the
    card does not report them; `slowdown`: the temperature at which it slows down. `remap_failed`: a
    row of its memory could not be replaced. `links`: whether each of its NVLinks is active.
    `used_bytes`: of its memory; `busy_percent`: of its time."""

    celsius: int | None = None
    slowdown: int | None = None
    remap_failed: bool = False
    links: tuple[bool, ...] = ()
    used_bytes: int | None = None
    busy_percent: int | None = None


@dataclass(frozen=True)
class Sign:
    """A sign of ill health. `seen(now, best)`: whether the readings show it, None where they show
    neither it nor its absence; `best`: the most links that were ever active. `after`, `calm`: for
    how many seconds it has to be seen, and then not to be seen. `name`: in the checkpoint;
    `problem`: for people."""

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
        "an NVLink of it is down",
        lambda now, best: sum(now.links) < best,
        after=10.0,
        calm=60.0,
    ),
)


REPAIRED: Final = "repaired-"
"""A file of this name and a card's UUID in the agent's folder says that the card was reset while no
agent ran: to reset a card, whatever has it open must be stopped, and so must the agent."""


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
    """One sign of one card. `since`: since when the readings have contradicted `active`."""

    active: bool = False
    since: float | None = None

    def follow(self, seen: bool | None, sign: Sign, now: float) -> None:
        if seen is self.active:
            self.since = None
        elif seen is not None:
            self.since = now if self.since is None else self.since
            if now - self.since >= (sign.calm if self.active else sign.after):
                self.active, self.since = seen, None


@dataclass(frozen=True)
class KnownHealth:
    """What lasts of a card's health beyond the agent. `links`: the most NVLinks that were ever
    active. `signs`: the names of those that count."""

    links: int = 0
    signs: tuple[str, ...] = ()


class CardHealth:
    """The course of one card's signs. Times are monotonic seconds. `known`: by an earlier agent."""

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
        """The signs that count now."""
        return [sign.problem for sign in self._active()]

    @property
    def known(self) -> KnownHealth:
        """What the next agent needs from the checkpoint."""
        return KnownHealth(self._links, tuple(sign.name for sign in self._active()))

    def _active(self) -> list[Sign]:
        found = zip(SIGNS, self._courses, strict=True)
        return [sign for sign, course in found if course.active]
