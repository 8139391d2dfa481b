"""Whose windows are too short for its share, by what each container got of late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mizar_core.carve import WHOLE_CARD
from mizar_core.compute import TILT_MOST

LOOK_NS: Final = 100_000_000
MEMORY_PERIODS: Final = 10
"""What was seen so many periods ago counts for little."""
GAIN: Final = 0.5
WANTS: Final = 0.75
"""Who gets less of what it is due does not use its window, and has no use for a longer one."""
STEP: Final = 20
"""Basis points: less is not worth telling everybody."""


@dataclass(slots=True)
class _Account:
    """`due`, `got`: ns, of late more than of old; `tilt`: basis points; `charged`: in its life."""

    charged: int
    due: float = 0.0
    got: float = 0.0
    tilt: float = 0.0

    def add(self, due: float, charged: int, part: float) -> None:
        self.due += part * (due - self.due)
        self.got += part * (max(0, charged - self.charged) - self.got)
        self.charged = charged

    @property
    def wants(self) -> bool:
        return 0 < WANTS * self.due < self.got


class Balance:
    """Whatever is lost at the begin and the end of a window, a short one loses more of its length.

    Windows are tilted until all who use theirs get the same part of what they are due. What a
    container says of itself can gain it an eighth of its window, of which its own budget lets it
    use what its share allows.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._rates: dict[str, int] = {}
        self._seen_at = 0
        self._told: dict[str, int] = {}

    def see(
        self, now: int, rates: Mapping[str, int], charged: Mapping[str, int], period: int
    ) -> bool:
        """Those who have windows of a period of so many ns, the basis points that each is due, and
        the ns that each was charged in its life. Whether windows should be planned anew."""
        if rates != self._rates:
            self._begin(now, rates, charged)
        elif now - self._seen_at >= LOOK_NS:
            self._judge(now - self._seen_at, charged, LOOK_NS / (LOOK_NS + MEMORY_PERIODS * period))
            self._seen_at = now
        tilts = {name: self.tilt(name) for name in rates}
        moved = any(abs(tilt - self._told.get(name, 0)) >= STEP for name, tilt in tilts.items())
        if moved:
            self._told = tilts
        return moved

    def tilt(self, name: str) -> int:
        """Basis points by which its window should be longer than its part."""
        account = self._accounts.get(name)
        return round(account.tilt) if account else 0

    def _begin(self, now: int, rates: Mapping[str, int], charged: Mapping[str, int]) -> None:
        """Others than before: nothing is known of how they get on."""
        self._accounts = {name: _Account(charged[name]) for name in rates}
        self._rates, self._seen_at, self._told = dict(rates), now, {}

    def _judge(self, span: int, charged: Mapping[str, int], part: float) -> None:
        for name, account in self._accounts.items():
            account.add(span * self._rates[name] / WHOLE_CARD, charged[name], part)
        members = [account for account in self._accounts.values() if account.wants]
        usual = sum(one.got for one in members) / (sum(one.due for one in members) or 1)
        for account in self._accounts.values():
            error = (
                usual - account.got / account.due if account.wants else -account.tilt / WHOLE_CARD
            )
            tilt = account.tilt + GAIN * part * error * WHOLE_CARD
            account.tilt = max(-TILT_MOST, min(TILT_MOST, tilt))
