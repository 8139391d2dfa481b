"""Estimates how much of a card's time a container needs, from what it used recently."""

from __future__ import annotations

from collections import deque
from typing import Final

from mizar_core.quantities import WHOLE_CARD

SAMPLE_NS: Final = 100_000_000
"""Nanoseconds that lie at least between two samples."""
CALM_SAMPLES: Final = 10
"""Number of calm samples in a row after which a container's need is estimated, so that other
containers get the rest of its share. After one sample that is not calm, it has its whole share
again."""
STEPS: Final = 8
"""A need is rounded up to a multiple of the share divided by this number, so that small changes do
not cause a new plan."""


class UsageEstimate:
    """Estimates the need of one container on one card.

    `need`: basis points of the card's time that are enough for the container; None if it wants all
    that it can have. A sample is calm if the container used less than a quarter of its share (half
    of it once a need is estimated) and waited for less than 70 % of the sample. The need is twice
    the most that it used in one of the last CALM_SAMPLES, and at most half of its share. Time in
    which the container is idle is not sampled.
    """

    def __init__(self) -> None:
        self.need: int | None = None
        self._last: tuple[int, int, int] | None = None
        self._used: deque[int] = deque(maxlen=CALM_SAMPLES)

    def add(self, now: int, charged: int, waited: int, share: int) -> None:
        """Add the busy container's new totals. `now`: nanoseconds of CLOCK_MONOTONIC. `charged`,
        `waited`: nanoseconds of GPU time that were charged and that it waited for, both since its
        start. `share`: basis points."""
        last = self._last
        if last is not None and now - last[0] < SAMPLE_NS:
            return
        self._last = now, charged, waited
        if last is not None:
            self._update(now - last[0], charged - last[1], waited - last[2], share)

    def pause(self) -> None:
        """Note that the container is idle, so that the time until the next `add` is not sampled."""
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
