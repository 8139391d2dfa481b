"""Audits containers: compares the memory that NVML reports for each with the container's own
account.

Memory that the account leaves out is taken off the container's limit. Code, which the driver loads
at its first use, is such memory: the shim counts the uses, and reserves memory for them until an
audit has measured the code (shim/src/memory/lazy_code.h). processes_without_shim.py reports and
kills the processes that no limits bind.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.models import Isolation
from mizar_core.names import SPOT_RESOURCE
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent import container_processes
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit import kill
from mizar_nodeagent.audit.compare import (
    AuditedContainer,
    AuditResult,
    ProcessWithoutShim,
    SlotCard,
    compare,
    unlimited,
)
from mizar_nodeagent.audit.permitted_memory import PermittedMemory
from mizar_nodeagent.audit.processes_without_shim import ProcessesWithoutShim
from mizar_nodeagent.audit.unaccounted_memory import Unaccounted, UnaccountedMemory
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.container.limits import wants_shim
from mizar_nodeagent.container.slots import Notify, Slot, Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.errors import CardsUnknown, RegionDamaged
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import limits_file, usage_snapshot

log = get_logger(__name__)

EVERY_S: Final = 2.0
"""Seconds between two audits of containers that do nothing new."""
SOON_S: Final = 0.1
"""Seconds between two audits after a first use of code, the death of a process, or a changed
finding."""
SOON_AUDITS: Final = 11
"""Number of audits at intervals of SOON_S, unless their findings agree sooner; then the interval is
EVERY_S again."""
TRIES: Final = 3
"""Most comparisons of one audit, which repeats them while accounts change between two reads."""
REST: Final = 3
"""Multiple of an audit's duration for which the auditor rests afterwards, to bound its share of a
CPU."""
TOO_WEAK: Final = (
    "isolation.enforcement is Strict, but the node agent has no CAP_KILL: of the processes that "
    "bypass the shim it can only kill those that run as root; set nodeagent.mayKill of the chart"
)
"""The problem in the log where an isolation is Strict and the agent cannot enforce that."""


class Auditor:
    """Audits the containers that should have the shim. `set_unaccounted` is called with the memory
    that their accounts leave out. `warn`: emits a warning event on a pod."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        cards: CardSource,
        set_unaccounted: Callable[[Mapping[SlotCard, Unaccounted]], None],
        warn: Notify,
        proc: Path = container_processes.PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._slots = slots
        self._cards = cards
        self._set_unaccounted = set_unaccounted
        self._proc = proc
        self._clock = clock
        self._soon = asyncio.Event()
        self._memory: dict[SlotCard, UnaccountedMemory] = {}
        self._without_shim = ProcessesWithoutShim(warn, self._is_strict, proc)
        self._permitted = PermittedMemory({slot.name for slot in slots.all()})
        self._reported_at = -math.inf
        self._may_kill = kill.may_kill_others()

    @property
    def without_shim(self) -> Sequence[ProcessWithoutShim]:
        """The processes that no limits bind, by the last audits."""
        return self._without_shim.found

    @property
    def unbound(self) -> dict[Key, str] | None:
        """A sentence about each pod with processes that no limits bind; None until enough audits
        were made."""
        return self._without_shim.by_pod()

    def audit_soon(self) -> None:
        """Audit every SOON_S until findings agree. To be called, in the event loop's thread, when
        code was used for the first time."""
        self._soon.set()

    async def run(self) -> None:
        """Audit for ever."""
        soon, took = 0, 0.0
        while True:
            rest = max(SOON_S, REST * took)
            await asyncio.sleep(rest)
            if not soon:
                await wait_until_set(self._soon, within=EVERY_S - rest)
            soon = SOON_AUDITS if self._soon.is_set() else max(soon - 1, 0)
            self._soon.clear()
            began = self._clock()
            try:
                await self.audit()
                soon *= not all(one.settled for one in self._memory.values())
            except CardsUnknown as error:
                soon = 0
                log.debug("the cards' processes are not known", error=error)
            took = self._clock() - began

    async def audit(self) -> None:
        """Audit once; compare up to TRIES times while accounts change. Raises CardsUnknown."""
        for _ in range(TRIES):
            result = await self._compare()
            if all(one.sure for one in result.findings.values()):
                break
        self._conclude(result)

    async def _compare(self) -> AuditResult:
        before = await asyncio.to_thread(self._containers)
        uuids = {uuid for one in before for uuid in one.holdings}
        workers = await self._cards.workers(uuids) if uuids else {}
        after = await asyncio.to_thread(self._containers)
        pids = {pid for found in workers.values() for pid in found}
        found = await asyncio.to_thread(container_processes.of_containers, pids, self._proc)
        return compare(workers, found, before, after)

    def _conclude(self, result: AuditResult) -> None:
        silent = {key: one for key, one in self._memory.items() if key[1] in result.silent}
        self._memory = silent | {
            key: self._memory.get(key) or UnaccountedMemory() for key in result.findings
        }
        changed = [self._memory[key].add(found) for key, found in result.findings.items()]
        if any(changed):
            self.audit_soon()
        self._set_unaccounted(
            {key: found for key, one in self._memory.items() if (found := one.unaccounted)}
        )
        if (now := self._clock()) >= self._reported_at + EVERY_S:
            self._reported_at = now
            self._without_shim.add(result)
            self._tell_if_too_weak()

    def _tell_if_too_weak(self) -> None:
        """Log once, as soon as an isolation is Strict, that most processes could not be killed."""
        isolations = (one.carve.isolation for one in self._state.carvings.values())
        if not self._may_kill and any(one.enforcement == "Strict" for one in isolations):
            self._may_kill = True
            log.warning("Strict kills only processes of root", problem=TOO_WEAK)

    def _is_strict(self, found: ProcessWithoutShim) -> bool:
        own = (self._isolation(slot) for slot in self._slots.all() if slot.owner == found.owner)
        return any(one is not None and one.enforcement == "Strict" for one in own)

    def _containers(self) -> list[AuditedContainer]:
        snapshot, slots = self._state.snapshot, self._slots.all()
        pods = {pod.uid: pod for pod in (snapshot.pods or {}).values()}
        holding = {slot.name for slot in slots_in_use(slots, snapshot)}
        self._permitted.keep_only({slot.name for slot in slots})
        found = []
        for slot in slots:
            pod = pods.get(slot.owner.pod_uid) if slot.owner else None
            if slot.owner is None or pod is None:
                continue
            ids = frozenset(one for one, name in pod.container_ids if name == slot.owner.container)
            audited = self._audited(slot, pod.uids, ids) if self._has_shim(slot) else None
            if audited is None:
                # A limits file that is gone or damaged names no cards to audit.
                found.append(unlimited(slot.name, slot.owner, pod.uids, ids))
            # The kubelet's claims leave out init containers, but those run while they have
            # processes.
            elif slot.name in holding or audited.alive:
                found.append(audited)
        return found

    def _audited(
        self, slot: Slot, uids: frozenset[str], ids: frozenset[str]
    ) -> AuditedContainer | None:
        assert slot.owner is not None
        try:
            region = limits_file.read(slot.limits)
        except (OSError, RegionDamaged):
            return None
        uuids = [card.uuid.decode(errors="replace") for card in region.cards[: region.card_count]]
        try:
            found = usage_snapshot.take(slot.usage, len(uuids))
        except (OSError, RegionDamaged):
            found = usage_snapshot.empty(len(uuids))
        holdings = dict(zip(uuids, found.holdings, strict=True))
        uses = {uuid: card.code_uses for uuid, card in zip(uuids, found.cards, strict=True)}
        charged = dict(zip(uuids, found.charged, strict=False))
        permitted = {
            uuid: self._permitted.update((slot.name, uuid), card.memory_limit, charged.get(uuid))
            for uuid, card in zip(uuids, region.cards, strict=False)
        }
        return AuditedContainer(
            slot.name, slot.owner, uids, ids, holdings, found.alive, uses, found.past, permitted
        )

    def _has_shim(self, slot: Slot) -> bool:
        if slot.resource == SPOT_RESOURCE:
            return slot.shim
        isolation = self._isolation(slot)
        return isolation is not None and slot.shim and wants_shim(isolation)

    def _isolation(self, slot: Slot) -> Isolation | None:
        try:
            carving = self._state.carving_of(DeviceID.parse(min(slot.ids)))
        except (DeviceIDRefused, ValueError):
            return None
        return carving.carve.isolation if carving else None
