"""Detects work of a card's owners from NVML: their processes on the card, the part of its time that
these use, and their memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mizar_nodeagent import container_processes
from mizar_nodeagent.cards import ProcessLoad
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, Source
from mizar_nodeagent.spot.owners import CardOwner

SAMPLED_S: Final = 1.2
"""Seconds without a busy sample after which a process counts as idle: NVML takes samples at least
this often."""

BLIND_S: Final = 5.0
"""Seconds without an answer of NVML about a card after which its owners count as busy."""
BLIND_QUERIES: Final = 3
"""Unanswered queries in a row after which a card's owners count as busy, once BLIND_S has passed
too: otherwise an agent that was itself delayed for BLIND_S would take cards back for one late
answer."""
FIRST_S: Final = 60.0
"""Seconds after the agent's first query of NVML after which the owners of a borrowed card count as
busy if NVML has never answered about that card. They are many, since NVML may need some seconds to
initialise each card. The borrower is paused until the first answer."""

ProcessLoads = Mapping[int, ProcessLoad]
"""The load of each process on a card, by PID on the node."""

CardLoads = Mapping[str, ProcessLoads | None]
"""The loads on each card that NVML was asked for, by UUID; None for a card without an answer."""

_Memory = Mapping[int, int]
"""Bytes of the card's memory that each process holds, by PID on the node; 0 if the driver has never
told them."""

_Homes = Mapping[int, str]
"""UID of the pod of each process, by PID on the node; empty for a process of the node itself."""


@dataclass(frozen=True)
class _Seen:
    """NVML's answers about a card. `memory`: of the owners' processes by the last answer, at the
    time `at`. `since`: when NVML first answered. `worked`: when an owner's process last worked,
    appeared or got memory. `unanswered`: number of queries since the last answer. Times are
    monotonic seconds."""

    memory: _Memory
    at: float
    since: float
    worked: float = -math.inf
    unanswered: int = 0

    def is_old(self, now: float) -> bool:
        """Whether the last answer is so old that an owner may have worked unseen since."""
        return now - self.at > BLIND_S and self.unanswered >= BLIND_QUERIES


class ProcessDetector:
    """Reports whether a card's owners have new processes or more memory there, or keep it busy. A
    process is attributed to a pod by its cgroup. Each process that is neither the borrower's nor
    the agent's counts as the owners', including processes of the node itself. The agent's are the
    children of the process `agent` (a PID on the node): one of them measures the memory of a CUDA
    context."""

    def __init__(self, proc: Path = container_processes.PROC, agent: int | None = None) -> None:
        self._proc = proc
        self._agent = os.getpid() if agent is None else agent
        self._seen: dict[str, _Seen] = {}
        self._homes: dict[str, _Homes] = {}
        self._began: float | None = None

    def has_seen(self, uuid: str) -> bool:
        """Whether NVML has ever answered about the card's processes."""
        return uuid in self._seen

    def is_blind(self, uuid: str, now: float) -> bool:
        """Whether NVML has not answered about the card for so long that an owner may work there
        unseen. `now`: monotonic seconds."""
        if seen := self._seen.get(uuid):
            return seen.is_old(now)
        return self._began is not None and now - self._began > FIRST_S

    def look(
        self,
        found: Collection[CardOwner],
        loads: CardLoads,
        borrowers: Collection[str],
        most: Callable[[str], int],
        now: float,
    ) -> Iterable[OwnerEvent]:
        """Yield for each owner BUSY, or IDLE since it last worked, if NVML has ever answered about
        one of its cards. `loads`: of the cards that NVML was asked for. `borrowers`: UIDs of the
        borrowing pods. `most`: returns the percentage of a card's time up to which its owner counts
        as idle. `now`: monotonic seconds. Reads /proc."""
        self._began = now if self._began is None else self._began
        for uuid, one in loads.items():
            if one is not None:
                homes = self._homes[uuid] = self._find_homes(one, self._homes.get(uuid, {}))
                owned = {pid: one[pid] for pid, home in homes.items() if home not in borrowers}
                self._seen[uuid] = _look(self._seen.get(uuid), owned, most(uuid), now)
            elif known := self._seen.get(uuid):
                self._seen[uuid] = replace(known, unanswered=known.unanswered + 1)
        for owner in found:
            if seen := [self._seen[uuid] for uuid in owner.cards if uuid in self._seen]:
                yield _event(owner, seen, len(owner.cards), now)

    def _find_homes(self, pids: Collection[int], known: _Homes) -> _Homes:
        """The pods of the processes that still run. `known`: the pods of the processes that the
        last look found on the card; a process never moves to another pod."""
        there = (pid for pid in pids if pid in known and os.path.exists(f"{self._proc}/{pid}"))  # noqa: PTH110  # much faster than Path
        old = {pid: known[pid] for pid in there}
        new = [pid for pid in pids if pid not in known and not self._is_agents(pid)]
        pods = container_processes.of_containers(new, self._proc).items()
        nodes = dict.fromkeys(container_processes.of_node(new, self._proc), "")
        return old | nodes | {pid: home.pod_uid for pid, home in pods}

    def _is_agents(self, pid: int) -> bool:
        return container_processes.parent(pid, self._proc) == self._agent


def _look(seen: _Seen | None, loads: ProcessLoads, most: int, now: float) -> _Seen:
    """The card after NVML's answer. Processes that the first look finds may have been there for
    long, so only processes and memory that later looks find count as new."""
    known = seen.memory if seen else {}
    # The driver may now and then not say how much memory a process has. What it says next is
    # compared with what it said last.
    memory = {pid: load.memory_bytes or known.get(pid, 0) for pid, load in loads.items()}
    before = seen or _Seen(memory, now, now)
    works = _is_more(memory, before.memory) or any(load.percent > most for load in loads.values())
    return _Seen(memory, now, before.since, now if works else before.worked)


def _is_more(memory: _Memory, before: _Memory) -> bool:
    """Whether there is a new process, or one has more memory than before. Having less is no sign of
    work: an owner that frees memory needs nothing."""
    return any(pid not in before or 0 < before[pid] < held for pid, held in memory.items())


def _event(owner: CardOwner, seen: Collection[_Seen], cards: int, now: float) -> OwnerEvent:
    last = max(max(one.worked, one.since) for one in seen)
    works = now - max(one.worked for one in seen) < SAMPLED_S
    blind = len(seen) < cards or any(one.is_old(now) for one in seen)
    activity = Activity.BUSY if works or blind else Activity.IDLE
    return OwnerEvent(activity, owner.pod, owner.cards, last, Source.PROCESSES)
