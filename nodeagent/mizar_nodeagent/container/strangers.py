"""Who uses a card past the shim: what NVML tells of a container, beside its own account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mizar_nodeagent.container.processes import HostProcess
from mizar_nodeagent.container.slots import Owner

Key = tuple[str, str]
"""A slot's name and a card's UUID."""


@dataclass(frozen=True)
class Known:
    """A container that should have the shim. `held`: bytes by its own account, per card.
    `members`: its processes that shook hands. `ids`: under which the runtime knows it.
    `code_uses`: how often they used code for the first time so far, per card."""

    slot: str
    owner: Owner
    pod_uids: frozenset[str]
    ids: frozenset[str]
    held: Mapping[str, int]
    members: frozenset[tuple[int, int]]
    code_uses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stranger:
    """A process with memory on a card and no handshake. `bytes`: as NVML tells."""

    owner: Owner
    uuid: str
    process: HostProcess
    bytes: int


@dataclass(frozen=True)
class Verdict:
    """What there is beyond the containers' own accounts, for each card that answered (bytes, not
    negative), and the uses of code that were counted before."""

    unaccounted: Mapping[Key, int]
    strangers: Sequence[Stranger]
    code_uses: Mapping[Key, int] = field(default_factory=dict)


def judge(
    workers: Mapping[str, Mapping[int, int]],
    processes: Mapping[int, HostProcess],
    containers: Iterable[Known],
) -> Verdict:
    """Compare. `workers`: bytes per card and PID; processes of nobody we know are left out."""
    known = sorted(containers, key=lambda one: one.slot)
    seen: dict[Key, int] = {}
    strangers: list[Stranger] = []
    for uuid, found in sorted(workers.items()):
        for pid, size in sorted(found.items()):
            process = processes.get(pid)
            home = _home(process, known) if process else None
            if process is None or home is None:
                continue
            seen[home.slot, uuid] = seen.get((home.slot, uuid), 0) + size
            if process.member not in home.members:
                strangers.append(Stranger(home.owner, uuid, process, size))
    held = {(one.slot, uuid): size for one in known for uuid, size in one.held.items()}
    held = {key: size for key, size in held.items() if key[1] in workers}
    uses = {(one.slot, uuid): count for one in known for uuid, count in one.code_uses.items()}
    unaccounted = {key: max(0, seen.get(key, 0) - held.get(key, 0)) for key in held | seen}
    return Verdict(unaccounted, strangers, uses)


def _home(process: HostProcess, known: Sequence[Known]) -> Known | None:
    """The container that the process lives in, or else the one of its pod that has a slot."""
    of_pod = [one for one in known if process.pod_uid in one.pod_uids]
    exact = [one for one in of_pod if process.container_id in one.ids]
    # A restarted container may have several slots: the one that knows it, or the newest.
    exact = [one for one in exact if process.member in one.members] or exact
    return next(reversed(exact or of_pod), None)
