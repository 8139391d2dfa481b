"""Who may have how much of a card's time just now, and when.

From what the containers of one card are entitled to, and which of them want it, to what the node
agent tells each (the `live` words of shim/include/mizar_regions.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mizar_core.carve import WHOLE_CARD
from mizar_core.models import ComputeMode
from mizar_core.windows import Window, in_turn

PERIOD_MIN_US: Final = 20_000
PERIOD_MAX_US: Final = 100_000
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
    late; `words`: what it was told last."""

    name: str
    mode: ComputeMode
    share: int
    priority: int = 0
    busy: bool = False
    longest_ns: int = 0
    words: Words = Words()


def plan(sharers: Iterable[Sharer]) -> dict[str, Words]:
    """What to tell each container of one card, by name.

    A container that is idle is told what it would have if it alone woke up, so that it starts
    with that and not with what was right when it fell asleep.
    """
    metered = sorted((one for one in sharers if one.mode != "None"), key=lambda one: one.name)
    busy = [one for one in metered if one.busy]
    told = {one.name: _words(one, busy if one.busy else [*busy, one]) for one in metered}
    working = [one for one in busy if not told[one.name].paused]
    for name, window in _windows(working, told).items():
        told[name] = Words(told[name].spare_share, False, told[name].active_weight, window)
    return told


def rate(sharer: Sharer, words: Words) -> int:
    """Basis points of the card's time that the container may use with these words."""
    if sharer.mode == "Weighted" and sharer.share:
        return max(1, sharer.share * WHOLE_CARD // max(words.active_weight, sharer.share))
    return sharer.share + (words.spare_share if sharer.mode == "Soft" else 0)


def _words(one: Sharer, busy: Sequence[Sharer]) -> Words:
    """Without its window. `busy` has it as well."""
    weight = sum(other.share for other in busy)
    words = Words(
        spare_share=_spare(one, busy, weight) if one.mode == "Soft" else 0,
        active_weight=weight if one.mode == "Weighted" else 0,
    )
    return words if rate(one, words) else Words(0, True, words.active_weight)


def _spare(one: Sharer, busy: Sequence[Sharer], weight: int) -> int:
    """Its part of what is left: for those of the highest priority, by their shares."""
    borrowers = [other for other in busy if other.mode == "Soft"]
    if one.priority < max(other.priority for other in borrowers):
        return 0
    peers = [other for other in borrowers if other.priority == one.priority]
    left = max(0, WHOLE_CARD - sum(_due(other, weight) for other in busy))
    shares = sum(other.share for other in peers)
    return left * one.share // shares if shares else left // len(peers)


def _due(one: Sharer, weight: int) -> int:
    """What it has in any case."""
    return rate(one, Words(active_weight=weight))


def _windows(working: Sequence[Sharer], told: Mapping[str, Words]) -> dict[str, Window]:
    """Nobody needs to share a moment of the card: alone at any time, several in turn."""
    if len(working) < 2:
        return {}
    rates = [rate(one, told[one.name]) for one in working]
    windows = in_turn(rates, _period(working))
    return {one.name: window for one, window in zip(working, windows, strict=True)}


def _period(working: Sequence[Sharer]) -> int:
    longest = max(one.longest_ns for one in working)
    wanted = min(max(PIECES * longest // 1000, PERIOD_MIN_US), PERIOD_MAX_US)
    present = max(one.words.window.period if one.words.window else 0 for one in working)
    keep = wanted <= present < SHRINK * wanted and present <= PERIOD_MAX_US
    return present if keep else wanted
