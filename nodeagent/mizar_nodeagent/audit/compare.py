"""Compares what NVML reports of a container's processes with the container's own account.

How many comparisons must agree before a process is reported or killed: see `STEADY` in auditor.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.container_processes import ContainerProcess
from mizar_nodeagent.regions.layout import code_bytes
from mizar_nodeagent.regions.usage_snapshot import Holding, ProcessKey

BEYOND: Final = 1 << 30
"""Bytes by which a container may hold more than it is permitted, by NVML: what the driver takes for
kernels' stacks and the like comes to less, and is taken off the limit afterwards."""

SlotCard = tuple[str, str]
"""A slot's name and a card's UUID."""


@dataclass(frozen=True)
class AuditedContainer:
    """A container that should have the shim.

    `ids`: of it at the container runtime. `holdings`: by its own account, per card and process.
    `alive`: its registered processes that live. `code_uses`: per card, the first uses of code so
    far. `past`: of those that live, the ones that have a second driver. `permitted`: per card, the
    bytes that it may hold by its limit, or was charged before the limit was lowered.
    """

    slot: str
    owner: Owner
    pod_uids: frozenset[str]
    ids: frozenset[str]
    holdings: Mapping[str, Mapping[ProcessKey, Holding]]
    alive: frozenset[ProcessKey]
    code_uses: Mapping[str, int]
    past: frozenset[ProcessKey] = frozenset()
    permitted: Mapping[str, int] = field(default_factory=dict)


def unlimited(
    slot: str, owner: Owner, pod_uids: frozenset[str], ids: frozenset[str]
) -> AuditedContainer:
    """A container that no limits bind: its processes are its own, and nothing is found of them."""
    return AuditedContainer(slot, owner, pod_uids, ids, {}, frozenset(), {})


@dataclass(frozen=True)
class ProcessWithoutShim:
    """A process with memory on a card that never registered, or not for all of its work. `bytes`:
    by NVML. `permitted`: of one that registered, and has the most of a container that holds far
    more than so many bytes."""

    owner: Owner
    uuid: str
    process: ContainerProcess
    bytes: int
    permitted: int | None = None


@dataclass(frozen=True)
class Finding:
    """What NVML reports of one container on one card beyond its account.

    `excess`: bytes by process. `moved`: processes whose account changed between the two reads.
    `code_uses`: the container's first uses of code, as counted before NVML was asked. `unlisted`:
    processes that live and have memory on the card by the account, and that NVML left out.
    """

    excess: Mapping[ProcessKey, int]
    moved: frozenset[ProcessKey]
    code_uses: int
    unlisted: frozenset[ProcessKey] = frozenset()

    @property
    def sure(self) -> bool:
        """Whether no process moved."""
        return not self.moved


@dataclass(frozen=True)
class AuditResult:
    """The findings for each card that answered, and the processes that no limits bind."""

    findings: Mapping[SlotCard, Finding]
    without_shim: Sequence[ProcessWithoutShim]


def compare(
    workers: Mapping[str, Mapping[int, int]],
    processes: Mapping[int, ContainerProcess],
    before: Iterable[AuditedContainer],
    after: Iterable[AuditedContainer],
) -> AuditResult:
    """Compare NVML's figures with the accounts as they were before and after it was asked.

    `workers`: bytes by card and PID on the node. `processes`: of containers, by PID; those of
    containers that are not audited are left out.
    """
    later = {one.slot: one for one in after}
    audited = sorted((one for one in before if one.slot in later), key=lambda one: one.slot)
    homes = {pid: home for pid, one in processes.items() if (home := _home(one, audited))}
    findings: dict[SlotCard, Finding] = {}
    without_shim: list[ProcessWithoutShim] = []
    for home in audited:
        for uuid in workers.keys() & home.holdings.keys():
            found = {
                processes[pid]: size
                for pid, size in sorted(workers[uuid].items())
                if homes.get(pid) is home
            }
            then = later[home.slot]
            findings[home.slot, uuid] = _finding(found, uuid, home, then)
            bound = (home.alive | then.alive) - home.past
            without_shim += [
                ProcessWithoutShim(home.owner, uuid, process, size)
                for process, size in found.items()
                if process.key not in bound
            ]
            without_shim += _beyond(home, then, uuid, found, bound)
    return AuditResult(findings, without_shim)


def _beyond(
    before: AuditedContainer,
    after: AuditedContainer,
    uuid: str,
    found: Mapping[ContainerProcess, int],
    bound: frozenset[ProcessKey],
) -> Iterable[ProcessWithoutShim]:
    """The largest registered process of a container that holds far more than it may: an account can
    be forged, and so can the sign of life of the shim."""
    permitted = max(before.permitted.get(uuid, 0), after.permitted.get(uuid, 0))
    registered = [process for process in found if process.key in bound]
    if not permitted or not registered or sum(found.values()) <= permitted + BEYOND:
        return
    most = max(registered, key=lambda process: (found[process], process.pid))
    yield ProcessWithoutShim(before.owner, uuid, most, found[most], permitted)


def _finding(
    found: Mapping[ContainerProcess, int],
    uuid: str,
    before: AuditedContainer,
    after: AuditedContainer,
) -> Finding:
    """`found`: bytes of each process of the container on the card, by NVML."""
    uses = before.code_uses.get(uuid, 0)
    pairs = {process: _pair(process.key, uuid, before, after) for process in found}
    held = {key for key, holding in after.holdings.get(uuid, {}).items() if holding.bytes}
    return Finding(
        {process.key: _excess(size, *pairs[process], uses) for process, size in found.items()},
        frozenset(process.key for process, pair in pairs.items() if not _stood_still(*pair)),
        uses,
        frozenset(held & after.alive - {process.key for process in found}),
    )


def _pair(
    key: ProcessKey, uuid: str, before: AuditedContainer, after: AuditedContainer
) -> tuple[Holding | None, Holding | None]:
    return before.holdings[uuid].get(key), after.holdings.get(uuid, {}).get(key)


def _excess(size: int, before: Holding | None, after: Holding | None, uses: int) -> int:
    """Bytes that a process has on the card beyond its account.

    Charged memory that is not on the card can hide code there: as much as that, but no more than
    its uses of code can have taken.
    """
    accounts = [one for one in (before, after) if one]
    shown = size - max((one.bytes for one in accounts), default=0)
    absent = max((one.absent for one in accounts), default=0)
    return max(0, shown, min(shown + absent, code_bytes(uses)))


def _stood_still(before: Holding | None, after: Holding | None) -> bool:
    return before == after and not (before and before.busy)


def _home(
    process: ContainerProcess, audited: Sequence[AuditedContainer]
) -> AuditedContainer | None:
    """The container that the process runs in, or else the one of its pod that has limits; of a pod
    with some that has none, it may be that one's, made anew."""
    of_pod = [one for one in audited if process.pod_uid in one.pod_uids]
    exact = [one for one in of_pod if process.container_id in one.ids]
    # A restarted container may have several slots: the one it registered in, or the newest.
    exact = [one for one in exact if process.key in one.alive] or exact
    if not exact and any(not one.holdings for one in of_pod):
        return None
    return next(reversed(exact or of_pod), None)
