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
"""NVML takes samples at least this often: a process without a busy one for this long is idle."""

BLIND_S: Final = 5.0
"""NVML has not answered about a card for this long: its owners count as busy."""
FIRST_S: Final = 60.0
"""The same for a card that NVML has not answered about since the agent started, since NVML may need
some seconds to initialise each card. The card's borrower is paused until the first answer."""

ProcessLoads = Mapping[int, int]
"""By PID on the node: percent of the card's time in the last samples, 0 where there are none."""

_Homes = Mapping[int, str]
"""By PID: the UID of the process' pod; empty for a process of the node itself."""


@dataclass(frozen=True)
class _Seen:
    """A card. `pids`: the owners' processes when NVML last answered, at `at`. `worked`: when one of
    them last worked or came; `since`: when NVML first answered. All in monotonic seconds."""

    pids: frozenset[int]
    at: float
    since: float
    worked: float = -math.inf

    def is_old(self, now: float) -> bool:
        """Whether the last answer is so old that an owner may have worked unseen since."""
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
        """Whether NVML has ever answered about the card's processes."""
        return uuid in self._seen

    def is_blind(self, uuid: str, now: float) -> bool:
        """Whether NVML has not answered for so long that an owner may work there unseen."""
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
        """Yields for each owner of one of these cards BUSY, or IDLE since it last worked.
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
        """The pods of those that still run. `known`: the pods of those that were on the card at the
        last look; a process never moves to another pod."""
        old = {pid: known[pid] for pid in pids if pid in known and (self._proc / str(pid)).exists()}
        new = [pid for pid in pids if pid not in known]
        pods = container_processes.of_containers(new, self._proc).items()
        nodes = dict.fromkeys(container_processes.of_node(new, self._proc), "")
        return old | nodes | {pid: home.pod_uid for pid, home in pods}


def _look(seen: _Seen | None, loads: ProcessLoads, most: int, now: float) -> _Seen:
    """What the first look finds may have been there for long, so only later looks find new ones."""
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
