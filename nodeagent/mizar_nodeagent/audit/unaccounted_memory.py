"""Concludes from several audits how much memory of a card a container holds beyond its own
account."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from mizar_nodeagent.audit.compare import Finding
from mizar_nodeagent.regions.layout import CODE_PAGE, code_bytes
from mizar_nodeagent.regions.usage_snapshot import ProcessKey

AUDITS: Final = 3
"""Number of audits from which a conclusion is drawn. A process may have reserved memory that the
driver does not hold yet, or no longer holds, so an audit may find too little. Therefore their
highest figure counts, and only the uses of code that all of them have seen."""


@dataclass(frozen=True)
class Unaccounted:
    """Memory of a card that a container holds beyond its own account. `bytes`: by NVML.
    `code_uses`: the number of first uses of code, by its usage file, that came before NVML was
    asked."""

    bytes: int
    code_uses: int


class UnaccountedMemory:
    """The last audits of one container on one card."""

    def __init__(self) -> None:
        self._findings: deque[Finding] = deque(maxlen=AUDITS)
        self._samples: dict[ProcessKey, deque[tuple[int, int]]] = {}
        """(uses of code, excess) of the audits during which the process was idle."""
        self._uses = 0
        """The number of first uses of code that `unaccounted` includes."""

    def add(self, finding: Finding) -> bool:
        """Add the finding of one more audit. Returns whether it differs after AUDITS that
        agreed."""
        settled = self.settled
        before = self._findings[-1].code_uses if self._findings else 0
        known = self._samples
        # A new process has used no code before the last audit. NVML may leave out one that lives.
        self._samples = {
            key: known.get(key, deque([(before, 0)], maxlen=AUDITS))
            for key in finding.excess.keys() | known.keys() & finding.unlisted
        }
        for key in finding.excess.keys() - finding.moved:
            self._samples[key].append((finding.code_uses, finding.excess[key]))
        self._findings.append(finding)
        self._uses = self._included()
        return settled and not self.settled

    def _included(self) -> int:
        """The number of uses of code that `unaccounted` includes from now on: those that all of the
        last audits have seen, without those since the last measurement of a process that will soon
        be measured again.

        Such a process may be waiting in its shim until all uses are included. If they were included
        now, all of them would count as its own, and its shim would refuse it memory that is free. A
        process whose account changed during each of the last audits is not waited for, since it may
        not be measured soon.

        The number decreases only if a program has overwritten the usage file. Otherwise the shim,
        which reads number and bytes one after the other, could reserve too little for a moment.
        """
        seen = self._findings[0].code_uses
        if len(self._findings) < AUDITS:
            return seen
        never_idle = frozenset.intersection(*(one.moved for one in self._findings))
        awaited = self._findings[-1].excess.keys() - never_idle
        measured = min((self._samples[key][0][0] for key in awaited), default=seen)
        return min(seen, max(self._uses, measured))

    @property
    def unaccounted(self) -> Unaccounted | None:
        """The memory to take off the container's limit; None before there were AUDITS audits."""
        if len(self._findings) < AUDITS:
            return None
        size = sum(self._most(key, self._uses) for key in self._samples)
        return Unaccounted(size, self._uses)

    @property
    def settled(self) -> bool:
        """Whether the last AUDITS findings agree."""
        same = all(one == self._findings[0] for one in self._findings)
        return len(self._findings) == AUDITS and same and self._findings[0].sure

    def _most(self, key: ProcessKey, uses: int) -> int:
        """Bytes that the process holds beyond its account: as measured while it was idle, if the
        container has used no more code since. Otherwise the most that the audits have shown, or
        that the code can have taken in addition, whichever is more."""
        samples = self._samples[key]
        measured = max(size for _, size in samples)
        since = uses - samples[0][0]
        if since <= 0:
            return measured
        shown = max(one.excess.get(key, 0) for one in self._findings)
        return max(shown, measured + CODE_PAGE + code_bytes(since))
