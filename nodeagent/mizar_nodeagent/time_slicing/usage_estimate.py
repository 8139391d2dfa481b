"""How much of a card's time a container needs, estimated from what it used of late."""

from __future__ import annotations

from collections import deque
from typing import Final

from mizar_core.quantities import WHOLE_CARD

SAMPLE_NS: Final = 100_000_000
"""Least time between two samples."""
CALM_SAMPLES: Final = 10
"""Calm samples in a row before a container's need is estimated, so that other containers get what
it does not use. After one sample that is not calm, it has its whole share again."""
STEPS: Final = 8
"""Needs are estimated in eighths of the share, so that small changes move nothing."""


class UsageEstimate:
    """`need`: basis points of a card that suffice the container; None if it wants all it can have.

    A sample is calm if the container used less than a quarter of its share without waiting much
    for it. It needs twice the most that it used in a calm sample. Time in which it is idle does
    not count.
    """

    def __init__(self) -> None:
        self.need: int | None = None
        self._last: tuple[int, int, int] | None = None
        self._used: deque[int] = deque(maxlen=CALM_SAMPLES)

    def add(self, now: int, charged: int, waited: int, share: int) -> None:
        """The busy container has used and waited for so many ns in its life, and its share is so
        many basis points. `now`: ns of CLOCK_MONOTONIC."""
        last = self._last
        if last is not None and now - last[0] < SAMPLE_NS:
            return
        self._last = now, charged, waited
        if last is not None:
            self._update(now - last[0], charged - last[1], waited - last[2], share)

    def pause(self) -> None:
        """The container is idle: the time until the next `add` is no sample."""
        self._last = None

    def _update(self, span: int, charged: int, waited: int, share: int) -> None:
        used = charged * WHOLE_CARD // span
        little = share // 4 if self.need is None else share // 2
        if not 0 <= used < little or not 0 <= waited < span * 7 // 10:
            self.need = None
            self._used.clear()
            return
        self._used.append(used)
        if len(self._used) == CALM_SAMPLES:
            step = max(1, share // STEPS)
            self.need = min(share // 2, (2 * max(self._used) // step + 1) * step)
