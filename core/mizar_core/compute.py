"""Who may have how much of a card's time just now, and when.

From what the containers of one card are entitled to, and which of them want it, to what the node
agent tells each (the `live` words of shim/include/mizar_regions.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from mizar_core.models import ComputeMode
from mizar_core.quantities import WHOLE_CARD
from mizar_core.windows import Window, in_turn

PERIOD_MIN_US: Final = 20_000
PERIOD_MAX_US: Final = 100_000
WINDOW_MIN_US: Final = 10_000
"""A period is so long that each window is, if it can be: at the begin of each, its container wakes
up, which takes some of it."""
PERIOD_FAR_US: Final = 500_000
PERIODS_US: Final = (
    PERIOD_MIN_US,
    25_000,
    33_333,
    50_000,
    PERIOD_MAX_US,
    200_000,
    250_000,
    333_333,
    PERIOD_FAR_US,
)
"""All that there are: whole parts of a tenth of a second, or of one (or two) seconds, so that any
second holds as much of each window as any other."""
WINDOW_PIECES: Final = 2.5
"""A period may be that long where the shortest window would not hold so many of the longest piece
of work: what does not fit is left of each window, and is more of a short one."""
PIECES: Final = 20
"""A period holds this many of the longest piece of work, so that whole pieces fit a window."""
SHRINK: Final = 4
"""A period is kept until a quarter of it would do: each change moves everybody's windows."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a container is told of a card. `window` None: at any time."""

    spare_share: int = 0
    paused: bool = False
    active_weight: int = 0
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Sharer:
    """A container on a card. `share`: basis points; `longest_ns`: its longest piece of work of
    late; `words`: what it was told last. `need`: basis points that do for a container that works
    and uses little of what it may; None for one that wants all it can have."""

    name: str
    mode: ComputeMode
    share: int
    priority: int = 0
    busy: bool = False
    longest_ns: int = 0
    words: Words = Words()
    need: int | None = None

    @property
    def is_hungry(self) -> bool:
        """Whether it wants all that it can have."""
        return self.busy and self.need is None


def plan(sharers: Iterable[Sharer]) -> dict[str, Words]:
    """What to tell each container of one card, by name.

    A container that is idle, or needs little, is told what it would have if it alone came to want
    more, so that it starts with that and not with what was right some time ago.
    """
    metered = sorted((one for one in sharers if one.mode != "None"), key=lambda one: one.name)
    crowd = reduce(_Crowd.joined_by, (one for one in metered if one.busy), _Crowd())
    told = {one.name: _words(one, crowd.once_hungry(one)) for one in metered}
    working = [one for one in metered if one.is_hungry and not told[one.name].paused]
    for name, window in _windows(working, told).items():
        told[name] = replace(told[name], window=window)
    return told


def rate(sharer: Sharer, words: Words) -> int:
    """Basis points of the card's time that the container may use with these words."""
    if sharer.mode == "Weighted" and sharer.share:
        return max(1, sharer.share * WHOLE_CARD // max(words.active_weight, sharer.share))
    return sharer.share + (words.spare_share if sharer.mode == "Soft" else 0)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Those who want the card. `needs`: of those who need little. Of the others, `own`: what Hard
    and Soft ones have in any case; `weights`: of the Weighted ones; `peers`, `peers_own`:
    borrowers of the highest `priority`, and what is theirs."""

    needs: int = 0
    own: int = 0
    weights: int = 0
    priority: int = -1
    peers: int = 0
    peers_own: int = 0

    def once_hungry(self, one: Sharer) -> _Crowd:
        """As if the container wanted all that it can have."""
        if one.is_hungry:
            return self
        others = replace(self, needs=self.needs - (one.need or 0)) if one.busy else self
        return others.joined_by(replace(one, need=None))

    def joined_by(self, one: Sharer) -> _Crowd:
        if one.need is not None:
            return replace(self, needs=self.needs + one.need)
        if one.mode == "Weighted":
            return replace(self, weights=self.weights + one.share)
        own = self.own + one.share
        if one.mode == "Hard" or one.priority < self.priority:
            return replace(self, own=own)
        before = (self.peers, self.peers_own) if one.priority == self.priority else (0, 0)
        peers, peers_own = before[0] + 1, before[1] + one.share
        return _Crowd(self.needs, own, self.weights, one.priority, peers, peers_own)

    @property
    def room(self) -> int:
        """What those who need little leave."""
        return WHOLE_CARD - self.needs

    @property
    def all_weights(self) -> int:
        """So that each weight is a part of the room, of which there is always some."""
        return -(-(self.own + self.weights) * WHOLE_CARD // max(self.room, WHOLE_CARD // 10))

    def spare(self, one: Sharer) -> int:
        """Its part of what is left: for those of the highest priority, by their shares."""
        if one.priority < self.priority:
            return 0
        weighted = -(-self.weights * WHOLE_CARD // self.all_weights) if self.weights else 0
        left = max(0, self.room - self.own - weighted)
        return left * one.share // self.peers_own if self.peers_own else left // self.peers


def _words(one: Sharer, crowd: _Crowd) -> Words:
    """Without its window. It is one of the crowd."""
    words = Words(
        spare_share=crowd.spare(one) if one.mode == "Soft" else 0,
        active_weight=crowd.all_weights if one.mode == "Weighted" else 0,
    )
    return words if rate(one, words) else replace(words, paused=True)


def _windows(working: Sequence[Sharer], told: Mapping[str, Words]) -> dict[str, Window]:
    """Nobody needs to share a moment of the card: alone at any time, several in turn."""
    if len(working) < 2:
        return {}
    rates = [rate(one, told[one.name]) for one in working]
    windows = in_turn(rates, _period(working, rates))
    return {one.name: window for one, window in zip(working, windows, strict=True)}


def _period(working: Sequence[Sharer], rates: Sequence[int]) -> int:
    longest = max(one.longest_ns for one in working)
    total, least = sum(rates), min(rates)
    near = max(PIECES * longest // 1000, WINDOW_MIN_US * total // least)
    far = int(WINDOW_PIECES * longest) * total // least // 1000
    least_us = max(min(near, PERIOD_MAX_US), min(far, PERIOD_FAR_US))
    wanted = next(period for period in PERIODS_US if period >= least_us)
    present = max(one.words.window.period if one.words.window else 0 for one in working)
    keep = wanted <= present < SHRINK * wanted and present in PERIODS_US
    return present if keep else wanted
