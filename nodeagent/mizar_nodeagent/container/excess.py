"""What a container holds of a card beyond its account, concluded from several looks."""

from __future__ import annotations

from collections import deque
from typing import Final

from mizar_nodeagent.compute.steward import Outside
from mizar_nodeagent.container.strangers import Finding

LOOKS: Final = 3
"""A process may have reserved, or not yet given back, what the driver does not hold: then a look
finds too little. Of so many the most counts, and the uses of code that all of them have seen."""
PATIENCE: Final = 8
"""Looks in a row at processes that never stand still; the next ones count all the same."""


class Excess:
    """Of one container and card. `outside` is None until there were enough looks."""

    def __init__(self) -> None:
        self._looks: deque[Finding] = deque(maxlen=LOOKS)
        self._unsure = 0

    def see(self, finding: Finding) -> bool:
        """One more look; whether it differs after several that did not."""
        settled = self.settled
        self._unsure = 0 if finding.sure else self._unsure + 1
        if finding.sure or self._unsure > PATIENCE:
            self._looks.append(finding)
        return settled and not self.settled

    @property
    def outside(self) -> Outside | None:
        """What to tell."""
        if len(self._looks) < LOOKS:
            return None
        size = sum(
            max(one.excess.get(pid, 0) for one in self._looks) for pid in self._looks[-1].excess
        )
        return Outside(size, self._looks[0].code_uses)

    @property
    def settled(self) -> bool:
        """Whether all looks agree."""
        same = all(one == self._looks[0] for one in self._looks)
        return len(self._looks) == LOOKS and same and not self._unsure
