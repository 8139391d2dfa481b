"""How much of a card's time a container needs, by what it did of late."""

from __future__ import annotations

from collections import deque
from typing import Final

from mizar_core.quantities import WHOLE_CARD

LOOK_NS: Final = 100_000_000
CALM_LOOKS: Final = 10
"""So many calm looks in a row, and what it does not use is others'; one that is not, and it has
its share again."""
STEPS: Final = 8
"""Needs are told in parts of the share, so that what trembles changes nothing."""


class Appetite:
    """`need`: basis points that do for it; None for a container that wants all it can have.

    Little is less than a quarter of its share without waiting much for it. Twice of what it used
    at most is kept for it. Time in which it is idle says nothing.
    """

    def __init__(self) -> None:
        self.need: int | None = None
        self._since: tuple[int, int, int] | None = None
        self._used: deque[int] = deque(maxlen=CALM_LOOKS)

    def see(self, now: int, charged: int, waited: int, share: int) -> None:
        """It is busy, has used and waited for so many ns in its life, and owns that share."""
        since = self._since
        if since is not None and now - since[0] < LOOK_NS:
            return
        self._since = now, charged, waited
        if since is not None:
            self._judge(now - since[0], charged - since[1], waited - since[2], share)

    def pause(self) -> None:
        """It is idle."""
        self._since = None

    def _judge(self, span: int, charged: int, waited: int, share: int) -> None:
        used = charged * WHOLE_CARD // span
        little = share // 4 if self.need is None else share // 2
        if not 0 <= used < little or not 0 <= waited < span * 7 // 10:
            self.need = None
            self._used.clear()
            return
        self._used.append(used)
        if len(self._used) == CALM_LOOKS:
            step = max(1, share // STEPS)
            self.need = min(share // 2, (2 * max(self._used) // step + 1) * step)
