"""Grants of time: how much of a card's time each of its containers may use now, and in which
windows.

Computes a grant for each container of a card, from the shares of all of them and from which are
busy. The node agent writes it into the container's limits (`live` in shim/include/mizar_regions.h,
whose layout the windows have).

The time that a container used is not known here: the shim charges it, and makes a container that
used too much wait (shim/src/time/token_bucket.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from mizar_core.models import ComputeMode
from mizar_core.quantities import WHOLE_CARD

PERIOD_MIN_US: Final = 20_000
"""Shortest period of windows, in microseconds."""
PERIOD_MAX_US: Final = 100_000
"""Longest period, in microseconds, that is chosen to fit many whole pieces of work."""
WINDOW_MIN_US: Final = 10_000
"""Windows are at least this long, in microseconds, if a period allows it: a container wakes up when
its window begins, and that takes some of the window."""
PERIOD_FAR_US: Final = 500_000
"""Longest period of all, in microseconds: for containers whose pieces of work are very long."""
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
"""The only periods, in microseconds: whole parts of a tenth of a second, or of one (or two)
seconds, so that any second holds as much of each window as any other."""
WINDOW_PIECES: Final = 2.5
"""A period may grow up to PERIOD_FAR_US until the shortest window holds this many of the longest
piece of work: the rest of a window, into which no piece fits, is lost and weighs more in a short
window."""
PIECES: Final = 20
"""A period holds this many of the longest piece of work, so that whole pieces fit a window."""
SHRINK: Final = 4
"""A longer period than necessary is kept until it is this many times as long: each change moves the
windows of all containers."""

WINDOW_BITS: Final = 20
"""Bits of the shim's window word that hold each of length, start and period, in microseconds."""
WINDOW_VALID: Final = 1 << 60
"""Bit of the window word that distinguishes a window from "at any time"."""
CHANGE_US: Final = 300
"""Microseconds that the change from one container to the next costs, about the same for each."""
CHANGE_PART: Final = 50
"""All changes together take at most 1/CHANGE_PART of a period."""


@dataclass(frozen=True, slots=True)
class Window:
    """When a container may run work on the card: for `length` microseconds from `start` on, in
    every `period`."""

    length: int
    start: int
    period: int

    @property
    def word(self) -> int:
        """The window as the shim reads it, 64 bits."""
        times = self.period << 2 * WINDOW_BITS | self.start << WINDOW_BITS | self.length
        return WINDOW_VALID | times


@dataclass(frozen=True, slots=True)
class TimeGrant:
    """The grant of one card's time to a container.

    `spare_share`: basis points that it may borrow beyond its share. `paused`: whether it may launch
    nothing. `active_weight`: the weights, in basis points, among which the card is divided.
    `window`: when it may launch; None for at any time.
    """

    spare_share: int = 0
    paused: bool = False
    active_weight: int = 0
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Sharer:
    """A container on a card.

    `share`: basis points that it is entitled to. `longest_ns`: its longest recent piece of work, in
    nanoseconds. `grant`: its last grant. `need`: basis points that are enough for a container that
    works and uses little of its share; None for one that wants as much as it can get.
    """

    name: str
    mode: ComputeMode
    share: int
    priority: int = 0
    busy: bool = False
    longest_ns: int = 0
    grant: TimeGrant = TimeGrant()
    need: int | None = None

    @property
    def wants_all(self) -> bool:
        """Whether it wants as much as it can get."""
        return self.busy and self.need is None

    @property
    def borrows(self) -> bool:
        """Whether it has no share and may only use time that others leave."""
        return self.mode == "Soft" and not self.share


def grants(sharers: Iterable[Sharer]) -> dict[str, TimeGrant]:
    """The grant of each metered container of one card, by the container's name.

    A container that is idle, or needs little, gets the grant that it would have if it alone came to
    want more, so that it starts with that and not with an outdated one. A container without a share
    borrows the card: it is paused while a container with a share works there, metered or not.
    """
    known = sorted(sharers, key=lambda one: one.name)
    is_lent = not any(one.busy and one.share for one in known)
    paused = {one.name: TimeGrant(paused=True) for one in known if one.borrows and not is_lent}
    metered = [one for one in known if one.mode != "None" and one.name not in paused]
    demand = _demand(metered)
    # When a container with a share starts to work, those without are paused.
    without_borrowers = _demand(one for one in metered if not one.borrows)
    granted = paused | {
        one.name: _grant(one, (demand if one.borrows else without_borrowers).if_wanting_all(one))
        for one in metered
    }
    working = [one for one in metered if one.wants_all and not granted[one.name].paused]
    for name, window in _windows(working, granted).items():
        granted[name] = replace(granted[name], window=window)
    return granted


def allowed_share(sharer: Sharer, grant: TimeGrant) -> int:
    """Basis points of the card's time that the container may use under this grant."""
    if sharer.mode == "Weighted" and sharer.share:
        return max(1, sharer.share * WHOLE_CARD // max(grant.active_weight, sharer.share))
    return sharer.share + (grant.spare_share if sharer.mode == "Soft" else 0)


@dataclass(frozen=True, slots=True)
class _Demand:
    """The demand of a card's working containers, in basis points.

    `needs`: the sum for containers that need little. For the others, `own`: the sum of the shares
    of Hard and Soft containers, which they have in any case; `weights`: the sum of the shares of
    Weighted ones; `peers`, `peers_own`: how many Soft ones have the highest `priority`, and the sum
    of their shares.
    """

    needs: int = 0
    own: int = 0
    weights: int = 0
    priority: int = -1
    peers: int = 0
    peers_own: int = 0

    def if_wanting_all(self, one: Sharer) -> _Demand:
        """The demand if the container wanted as much as it can get."""
        if one.wants_all:
            return self
        others = replace(self, needs=self.needs - (one.need or 0)) if one.busy else self
        return others.plus(replace(one, need=None))

    def plus(self, one: Sharer) -> _Demand:
        if one.need is not None:
            return replace(self, needs=self.needs + one.need)
        if one.mode == "Weighted":
            return replace(self, weights=self.weights + one.share)
        own = self.own + one.share
        if one.mode == "Hard" or one.priority < self.priority:
            return replace(self, own=own)
        before = (self.peers, self.peers_own) if one.priority == self.priority else (0, 0)
        peers, peers_own = before[0] + 1, before[1] + one.share
        return _Demand(self.needs, own, self.weights, one.priority, peers, peers_own)

    @property
    def room(self) -> int:
        """Basis points that the containers that need little leave to the others."""
        return WHOLE_CARD - self.needs

    @property
    def all_weights(self) -> int:
        """The divisor that turns each weight into a part of the room, which counts as at least a
        tenth of the card."""
        return -(-(self.own + self.weights) * WHOLE_CARD // max(self.room, WHOLE_CARD // 10))

    def spare(self, one: Sharer) -> int:
        """Basis points that a container may borrow of what is left: only those of the highest
        priority may, in proportion to their shares."""
        if one.priority < self.priority:
            return 0
        weighted = -(-self.weights * WHOLE_CARD // self.all_weights) if self.weights else 0
        left = max(0, self.room - self.own - weighted)
        return left * one.share // self.peers_own if self.peers_own else left // self.peers


def _demand(sharers: Iterable[Sharer]) -> _Demand:
    return reduce(_Demand.plus, (one for one in sharers if one.busy), _Demand())


def _grant(one: Sharer, demand: _Demand) -> TimeGrant:
    """The container's grant without its window; `demand` includes the container."""
    grant = TimeGrant(
        spare_share=demand.spare(one) if one.mode == "Soft" else 0,
        active_weight=demand.all_weights if one.mode == "Weighted" else 0,
    )
    return grant if allowed_share(one, grant) else replace(grant, paused=True)


def _windows(working: Sequence[Sharer], granted: Mapping[str, TimeGrant]) -> dict[str, Window]:
    """The windows of the working containers, by name: one after the other, none for a container
    that works alone."""
    if len(working) < 2:
        return {}
    rates = [allowed_share(one, granted[one.name]) for one in working]
    windows = consecutive_windows(rates, _period(working, rates))
    return {one.name: window for one, window in zip(working, windows, strict=True)}


def _period(working: Sequence[Sharer], rates: Sequence[int]) -> int:
    longest = max(one.longest_ns for one in working)
    total, least = sum(rates), min(rates)
    near = max(PIECES * longest // 1000, WINDOW_MIN_US * total // least)
    far = int(WINDOW_PIECES * longest) * total // least // 1000
    least_us = max(min(near, PERIOD_MAX_US), min(far, PERIOD_FAR_US))
    wanted = next(period for period in PERIODS_US if period >= least_us)
    present = max(one.grant.window.period if one.grant.window else 0 for one in working)
    keep = wanted <= present < SHRINK * wanted and present in PERIODS_US
    return present if keep else wanted


def consecutive_windows(rates: Sequence[int], period: int) -> list[Window]:
    """Windows one after the other, in proportion to the rates (all positive, in any unit), that
    fill a `period` of microseconds. No window is empty.

    There are no gaps between windows: each container keeps its own rate, and a container that lost
    a moment of its window must be able to make up for it. The change from one container to the next
    costs about the same for each, so each window is longer by that time.
    """
    change = max(1, min(CHANGE_US, period // (CHANGE_PART * len(rates))))
    total, spread = sum(rates), period - change * len(rates)
    found, start = [], 0
    for rate in rates:
        length = change + spread * rate // total
        found.append(Window(length, start, period))
        start += length
    return found
