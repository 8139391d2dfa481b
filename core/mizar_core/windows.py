"""Windows of a card's time: when a container's work may be on it, in one word.

The layout is that of shim/include/mizar_regions.h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BITS: Final = 20
VALID: Final = 1 << 60
CHANGE_US: Final = 300
CHANGE_PART: Final = 50
"""Changes take no more of a period than one part of so many."""


@dataclass(frozen=True, slots=True)
class Window:
    """The first `length` microseconds after `start`, again in every `period`."""

    length: int
    start: int
    period: int

    @property
    def word(self) -> int:
        """As the shim reads it."""
        return VALID | self.period << 2 * BITS | self.start << BITS | self.length


def in_turn(rates: Sequence[int], period: int) -> list[Window]:
    """Windows one after the other, in proportion to the rates (all positive).

    They fill the period: a rate is kept by the container itself, and whoever lost a moment of its
    window must be able to make up for it. What a change from one container to the next costs is
    much the same for each, so each has as much more. None is empty.
    """
    change = max(1, min(CHANGE_US, period // (CHANGE_PART * len(rates))))
    total, spread = sum(rates), period - change * len(rates)
    found, start = [], 0
    for rate in rates:
        length = change + spread * rate // total
        found.append(Window(length, start, period))
        start += length
    return found
