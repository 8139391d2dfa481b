"""NVML: the owners' processes on a card, and how much of its time they use."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_nodeagent import container_processes
from mizar_nodeagent.spot.events import Activity, OwnerEvent, Source
from mizar_nodeagent.spot.owners import CardOwner

SAMPLED_S: Final = 1.2
"""NVML samples at least so often: without a busy sample for so long, a process is idle."""

BLIND_S: Final = 5.0
"""When a card has told nothing for so long, its owners count as busy."""
FIRST_S: Final = 60.0
"""A card that has told nothing since the agent started has so long: NVML may take some seconds for
each card to begin. Its borrower is paused meanwhile."""

ProcessLoads = Mapping[int, int]
"""By PID on the node: percent of the card's time, of the last samples; 0 without any."""


_Homes = Mapping[int, str]
"""By PID: the UID of the process' pod; empty for a process of the node itself."""


@dataclass(frozen=True)
class _Seen:
    """A card. `pids`: the owners' processes at the last look, at `at`. `worked`: when one of them
    worked or came; `since`: when it was first looked at."""

    pids: frozenset[int]
    at: float
    since: float
    worked: float = -math.inf

    def is_old(self, now: float) -> bool:
        """Whether the last look was so long ago that an owner may have worked unseen since."""
        return now - self.at > BLIND_S


class ProcessDetector:
    """Tells whether a card's owners have new processes there, or keep it busy. Whose a process is
    follows from its cgroup: what is not the borrower's counts as the owners', a process of the
    node itself too."""

    def __init__(self, proc: Path = container_processes.PROC) -> None:
        self._proc = proc
        self._seen: dict[str, _Seen] = {}
        self._homes: dict[str, _Homes] = {}
        self._began: float | None = None

    def has_seen(self, uuid: str) -> bool:
        """Whether the card has ever told of its processes."""
        return uuid in self._seen

    def is_blind(self, uuid: str, now: float) -> bool:
        """Whether the card has told nothing for so long that an owner may work there unseen."""
        if seen := self._seen.get(uuid):
            return seen.is_old(now)
        return self._began is not None and now - self._began > FIRST_S

    def look(
        self,
        found: Collection[CardOwner],
        loads: Mapping[str, ProcessLoads],
        borrowers: Collection[str],
        most: Callable[[str], int],
        now: float,
    ) -> Iterable[OwnerEvent]:
        """Of each owner that holds one of these cards, BUSY, or IDLE since it last worked.
        `borrowers`: UIDs of pods; `most`: the percentage up to which the card of that UUID counts
        as idle; `now`: monotonic seconds. Reads /proc."""
        self._began = now if self._began is None else self._began
        for uuid, one in loads.items():
            homes = self._homes[uuid] = self._find_homes(one, self._homes.get(uuid, {}))
            owned = {pid: one[pid] for pid, home in homes.items() if home not in borrowers}
            self._seen[uuid] = _look(self._seen.get(uuid), owned, most(uuid), now)
        for owner in found:
            if seen := [self._seen[uuid] for uuid in owner.cards if uuid in self._seen]:
                yield _event(owner, seen, len(owner.cards), now)

    def _find_homes(self, pids: Collection[int], known: _Homes) -> _Homes:
        """Of those that run. `known`: of the processes that were on the same card at the last look;
        none moves to another pod."""
        old = {pid: known[pid] for pid in pids if pid in known and (self._proc / str(pid)).exists()}
        new = [pid for pid in pids if pid not in known]
        pods = container_processes.of_containers(new, self._proc).items()
        nodes = dict.fromkeys(container_processes.of_node(new, self._proc), "")
        return old | nodes | {pid: home.pod_uid for pid, home in pods}


def _look(seen: _Seen | None, loads: ProcessLoads, most: int, now: float) -> _Seen:
    """What is there at the first look may have been there for long; new processes count later."""
    pids = frozenset(loads)
    is_new = seen is not None and not pids <= seen.pids
    works = is_new or any(load > most for load in loads.values())
    before = seen or _Seen(pids, now, now)
    return _Seen(pids, now, before.since, now if works else before.worked)


def _event(owner: CardOwner, seen: Collection[_Seen], cards: int, now: float) -> OwnerEvent:
    last = max(max(one.worked, one.since) for one in seen)
    works = now - max(one.worked for one in seen) < SAMPLED_S
    blind = len(seen) < cards or any(one.is_old(now) for one in seen)
    activity = Activity.BUSY if works or blind else Activity.IDLE
    return OwnerEvent(activity, owner.pod, owner.cards, last, Source.PROCESSES)
