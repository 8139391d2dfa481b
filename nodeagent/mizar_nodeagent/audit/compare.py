"""Compares the memory that NVML reports for a container's processes with the container's own
account.

`STEADY` in processes_without_shim.py is the number of audits that must agree before a process is
reported or killed.
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
"""Bytes by which, according to NVML, a container may exceed the memory that it is permitted. The
driver's own allocations, such as kernels' stacks, take less, and are taken off the limit later."""

SlotCard = tuple[str, str]
"""A slot's name and a card's UUID."""


@dataclass(frozen=True)
class AuditedContainer:
    """A container that should have the shim, with its own account. Cards are known by UUID.

    `slot`: the name of its slot. `pod_uids`: the UIDs by which its pod may be known. `ids`: its IDs
    at the container runtime. `holdings`: for each card, what each process holds. `alive`: its
    living registered processes. `code_uses`: for each card, the number of first uses of code so
    far. `past`: the living processes that have a second driver, which the shim does not limit.
    `permitted`: for each card, the bytes that it may hold (see PermittedMemory); 0 if its limit is
    0.
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
    """A container without limits, or whose limits cannot be read now. It takes part in the
    comparison so that its processes are not attributed to another container of its pod; nothing is
    reported about them."""
    return AuditedContainer(slot, owner, pod_uids, ids, {}, frozenset(), {})


@dataclass(frozen=True)
class ProcessWithoutShim:
    """A process with memory on the card `uuid` that no limits bind: it has never registered or has
    a second driver, or is the largest registered process of a container that holds far more memory
    than it may. `bytes`: memory that the process holds by NVML. `permitted`: in the last case, the
    bytes that the container may hold; otherwise None."""

    owner: Owner
    uuid: str
    process: ContainerProcess
    bytes: int
    permitted: int | None = None


@dataclass(frozen=True)
class Finding:
    """How NVML's report on one container and one card differs from the container's account.

    `excess`: bytes beyond the account, by process. `moved`: processes whose account changed between
    the two reads. `code_uses`: the container's number of first uses of code before NVML was asked.
    `unlisted`: living processes with memory on the card by the account that NVML left out.
    """

    excess: Mapping[ProcessKey, int]
    moved: frozenset[ProcessKey]
    code_uses: int
    unlisted: frozenset[ProcessKey] = frozenset()

    @property
    def sure(self) -> bool:
        """Whether no process's account changed between the two reads."""
        return not self.moved


@dataclass(frozen=True)
class AuditResult:
    """The findings for each container's cards that answered, and the processes that no limits
    bind. `silent`: the UUIDs of containers' cards that did not answer, of whose processes nothing
    is known."""

    findings: Mapping[SlotCard, Finding]
    without_shim: Sequence[ProcessWithoutShim]
    silent: frozenset[str] = frozenset()


def compare(
    workers: Mapping[str, Mapping[int, int]],
    processes: Mapping[int, ContainerProcess],
    before: Iterable[AuditedContainer],
    after: Iterable[AuditedContainer],
) -> AuditResult:
    """Compare NVML's figures with the accounts as they were before and after it was asked.

    `workers`: the bytes that NVML reports, by card and PID on the node. `processes`: processes of
    containers, by PID on the node; those of containers that are not audited are ignored. `before`,
    `after`: only containers in both are compared.
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
            without_shim += _past_limits(home, then, uuid, found)
    silent = {uuid for one in audited for uuid in one.holdings} - workers.keys()
    return AuditResult(findings, without_shim, frozenset(silent))


def _past_limits(
    before: AuditedContainer,
    after: AuditedContainer,
    uuid: str,
    found: Mapping[ContainerProcess, int],
) -> Iterable[ProcessWithoutShim]:
    """Yield the container's processes on the card that no limits bind. `found`: bytes of each of
    its processes there, by NVML."""
    bound = (before.alive | after.alive) - before.past
    for process, size in found.items():
        if process.key not in bound:
            yield ProcessWithoutShim(before.owner, uuid, process, size)
    yield from _beyond(before, after, uuid, found, bound)


def _beyond(
    before: AuditedContainer,
    after: AuditedContainer,
    uuid: str,
    found: Mapping[ContainerProcess, int],
    bound: frozenset[ProcessKey],
) -> Iterable[ProcessWithoutShim]:
    """Yield the largest registered process of a container that holds over BEYOND bytes more than it
    may: a tenant can forge the account, and the lock that marks a process as registered."""
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
    """The finding about a container on a card. `found`: bytes of each of its processes there, by
    NVML."""
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
    """Bytes that a process has on the card beyond its account. `size`: what it has there by NVML.
    `before`, `after`: its account at the two reads; None if it has none. `uses`: the container's
    number of first uses of code.

    Memory that is charged but not on the card (`absent`) hides as many bytes of code that are
    there. These count too, but at most as many as the uses of code can have taken.
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
    """The container that the process runs in. If none has its container ID, one of its pod, and of
    several the one in which it has registered; but None if a container of the pod has no limits,
    since that one may have been created anew with this ID."""
    of_pod = [one for one in audited if process.pod_uid in one.pod_uids]
    exact = [one for one in of_pod if process.container_id in one.ids]
    if not exact and any(not one.holdings for one in of_pod):
        return None
    # The one it registered in: a restarted container may have several slots, and while the API
    # server does not answer, nobody knows its new ID. Otherwise the last by name.
    found = exact or of_pod
    return next(reversed([one for one in found if process.key in one.alive] or found), None)
