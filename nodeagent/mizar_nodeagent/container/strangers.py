"""Who uses a card past the shim: what NVML tells of a container, beside its own account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mizar_nodeagent.container.processes import HostProcess
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.regions.layout import code_bytes
from mizar_nodeagent.regions.usage_snapshot import Holding, ProcessKey

Key = tuple[str, str]
"""A slot's name and a card's UUID."""


@dataclass(frozen=True)
class Known:
    """A container that should have the shim. `holdings`: by its own account, per card. `members`:
    its processes that shook hands and live. `ids`: under which the runtime knows it. `code_uses`:
    how often they used code for the first time so far, per card."""

    slot: str
    owner: Owner
    pod_uids: frozenset[str]
    ids: frozenset[str]
    holdings: Mapping[str, Mapping[ProcessKey, Holding]]
    members: frozenset[ProcessKey]
    code_uses: Mapping[str, int]


@dataclass(frozen=True)
class Stranger:
    """A process with memory on a card and no handshake. `bytes`: as NVML tells."""

    owner: Owner
    uuid: str
    process: HostProcess
    bytes: int


@dataclass(frozen=True)
class Finding:
    """Bytes of a card that each process of a container holds beyond its account, by PID on the
    node. `moved`: those that did not stand still meanwhile. `code_uses`: as counted before."""

    excess: Mapping[int, int]
    moved: frozenset[int]
    code_uses: int

    @property
    def sure(self) -> bool:
        """Whether all stood still."""
        return not self.moved


@dataclass(frozen=True)
class Verdict:
    """What there is beyond the containers' own accounts, for each card that answered."""

    findings: Mapping[Key, Finding]
    strangers: Sequence[Stranger]


def judge(
    workers: Mapping[str, Mapping[int, int]],
    processes: Mapping[int, HostProcess],
    before: Iterable[Known],
    after: Iterable[Known],
) -> Verdict:
    """Compare what NVML told with the accounts before and after. `workers`: bytes per card and PID;
    processes of nobody we know are left out."""
    later = {one.slot: one for one in after}
    known = sorted((one for one in before if one.slot in later), key=lambda one: one.slot)
    homes = {pid: home for pid, one in processes.items() if (home := _home(one, known))}
    findings: dict[Key, Finding] = {}
    strangers: list[Stranger] = []
    for home in known:
        then = later[home.slot]
        for uuid in workers.keys() & home.holdings.keys():
            found = {pid: size for pid, size in workers[uuid].items() if homes.get(pid) is home}
            pairs = {pid: _pair(processes[pid].member, uuid, home, then) for pid in found}
            uses = home.code_uses.get(uuid, 0)
            findings[home.slot, uuid] = Finding(
                {pid: _beyond(size, *pairs[pid], uses) for pid, size in found.items()},
                frozenset(pid for pid, pair in pairs.items() if not _stood_still(*pair)),
                uses,
            )
            members = home.members | then.members
            strangers += [
                Stranger(home.owner, uuid, processes[pid], size)
                for pid, size in sorted(found.items())
                if processes[pid].member not in members
            ]
    return Verdict(findings, strangers)


def _pair(
    member: ProcessKey, uuid: str, before: Known, after: Known
) -> tuple[Holding | None, Holding | None]:
    return before.holdings[uuid].get(member), after.holdings.get(uuid, {}).get(member)


def _beyond(size: int, before: Holding | None, after: Holding | None, uses: int) -> int:
    """Bytes that a process has on the card beyond its account.

    What it is charged for that is not there hides code: as much as that, but no more than its
    uses of code can have taken.
    """
    looks = [one for one in (before, after) if one]
    shown = size - max((one.bytes for one in looks), default=0)
    absent = max((one.absent for one in looks), default=0)
    return max(0, shown, min(shown + absent, code_bytes(uses)))


def _stood_still(before: Holding | None, after: Holding | None) -> bool:
    return before == after and not (before and before.busy)


def _home(process: HostProcess, known: Sequence[Known]) -> Known | None:
    """The container that the process lives in, or else the one of its pod that has a slot."""
    of_pod = [one for one in known if process.pod_uid in one.pod_uids]
    exact = [one for one in of_pod if process.container_id in one.ids]
    # A restarted container may have several slots: the one that knows it, or the newest.
    exact = [one for one in exact if process.member in one.members] or exact
    return next(reversed(exact or of_pod), None)
