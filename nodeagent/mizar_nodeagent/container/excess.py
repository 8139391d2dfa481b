"""What a container holds of a card beyond its account, concluded from several looks."""

from __future__ import annotations

from collections import deque
from typing import Final

from mizar_nodeagent.compute.steward import Outside
from mizar_nodeagent.container.strangers import Finding
from mizar_nodeagent.regions.layout import CODE_PAGE, code_bytes

LOOKS: Final = 3
"""A process may have reserved, or not yet given back, what the driver does not hold: then a look
finds too little. Of so many the most counts, and the uses of code that all of them have seen."""


class Excess:
    """Of one container and card. `outside` is None until there were enough looks."""

    def __init__(self) -> None:
        self._looks: deque[Finding] = deque(maxlen=LOOKS)
        self._sure: dict[int, deque[tuple[int, int]]] = {}

    def see(self, finding: Finding) -> bool:
        """One more look; whether it differs after several that did not."""
        settled = self.settled
        before = self._looks[-1].code_uses if self._looks else 0
        known = self._sure
        # Who is new has used no code before the last look.
        self._sure = {
            pid: known.get(pid, deque([(before, 0)], maxlen=LOOKS)) for pid in finding.excess
        }
        for pid in finding.excess.keys() - finding.moved:
            self._sure[pid].append((finding.code_uses, finding.excess[pid]))
        self._looks.append(finding)
        return settled and not self.settled

    @property
    def outside(self) -> Outside | None:
        """What to tell."""
        if len(self._looks) < LOOKS:
            return None
        uses = self._looks[0].code_uses
        return Outside(sum(self._most(pid, uses) for pid in self._sure), uses)

    @property
    def settled(self) -> bool:
        """Whether all looks agree."""
        same = all(one == self._looks[0] for one in self._looks)
        return len(self._looks) == LOOKS and same and self._looks[0].sure

    def _most(self, pid: int, uses: int) -> int:
        """What the process holds, if it has stood still; else what its code can have taken since it
        did, however long that is ago, or what the looks have shown."""
        samples = self._sure[pid]
        measured = max(size for _, size in samples)
        since = uses - samples[0][0]
        if since <= 0:
            return measured
        shown = max(look.excess.get(pid, 0) for look in self._looks)
        return max(shown, measured + CODE_PAGE + code_bytes(since))
