"""Garbage collection of slots: removes those that no container will use again, also of an Allocate
that an agent did not live to answer, and restores what the others belong to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.slots import Owner, Slot, Slots, is_slot_path
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod

log = get_logger(__name__)

EVERY_S = 30.0
FRESH_S = 10.0
"""Seconds after which claims are too old to tell what is held now."""
GRACE_S = 120.0
"""Seconds after Allocate for which a slot is kept whose container has not started: much longer than
the kubelet needs to record it."""


class SlotGarbageCollector:
    """`clock`: monotonic seconds; `now`: seconds since the epoch."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        plugin_dir: Path,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._slots = slots
        self._plugin_dir = plugin_dir
        self._clock = clock
        self._now = now

    async def run(self) -> None:
        """Collect every EVERY_S, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.collect()
            except KubeletAway as error:
                log.info("slots are kept", error=error)
            except OSError as error:
                log.warning("slots cannot be tidied", error=error)

    async def collect(self) -> None:
        """One round. Nothing is removed unless kubelet and API server both answer. Raises
        KubeletAway, OSError."""
        entries = await asyncio.to_thread(device_checkpoint.read, self._plugin_dir)
        mounted = {path for entry in entries for path in entry.mounts}
        for library in shim_install.remove_old(self._slots.shim, mounted):
            log.info("an old version of the shim is removed", path=library)
        snapshot = self._state.snapshot
        if snapshot.pods is None or self._clock() - snapshot.claims.asked_at > FRESH_S:
            return
        pods = list(snapshot.pods.values())
        recorded = recorded_slots(entries, pods, self._slots.root)
        self._restore(recorded, {uid: pod for pod in pods for uid in pod.uids})
        found, boot = self._slots.all(), self._slots.boot
        for slot in unused_slots(found, recorded, snapshot.live_claims(), self._now(), boot=boot):
            log.info("slot removed", **slot.names)
            self._slots.remove(slot)
            await asyncio.sleep(0)  # the kubelet's calls are answered between two removals

    def _restore(self, recorded: dict[str, Entry], pods: dict[str, Pod]) -> None:
        for slot in self._slots.all():
            if entry := recorded.get(slot.name):
                try:
                    self._restore_one(slot, entry, pods[entry.pod_uid])
                except OSError as error:
                    # On a full disk, others are removed all the same.
                    log.warning("a slot cannot be described", error=error, **slot.names)

    def _restore_one(self, slot: Slot, entry: Entry, pod: Pod) -> None:
        if slot.ids != entry.ids:
            slot = self._slots.describe(slot, entry.resource, entry.ids)
        owner = Owner(pod.namespace, pod.name, pod.uid, entry.container)
        # Before its first start, it was not checked whether the container may have the devices.
        if slot.owner is not None:
            self._slots.assign(slot, owner)


def recorded_slots(entries: Iterable[Entry], pods: Iterable[Pod], root: Path) -> dict[str, Entry]:
    """By slot name: the entry of the kubelet's record that mounts it, for pods that have not
    ended."""
    running = {uid for pod in pods if not pod.ended for uid in pod.uids}
    return {
        name: entry
        for entry in entries
        if entry.pod_uid in running
        for path in entry.mounts
        if (name := is_slot_path(root, path)) is not None
    }


def unused_slots(
    slots: Iterable[Slot],
    recorded: Container[str],
    claims: Iterable[Claim],
    now: float,
    grace_s: float = GRACE_S,
    boot: str = "",
) -> list[Slot]:
    """Slots that neither the kubelet's record (`recorded`, by name) nor a claim shows in use; of
    those whose container has not started in this boot, the ones older than the grace. A claim on a
    device for which the record names another slot says nothing of this one: an agent that ended
    before it answered Allocate leaves one, and the kubelet asks the next agent again. `now`:
    seconds since the epoch."""
    slots = list(slots)
    known = {(slot.resource, one) for slot in slots if slot.name in recorded for one in slot.ids}
    held = {
        (claim.resource, one): claim
        for claim in claims
        for one in claim.ids
        if (claim.resource, one) not in known
    }
    return [
        slot
        for slot in slots
        if (_was_recorded(slot, boot) or now - slot.created > grace_s)
        and slot.name not in recorded
        and not any(_may_be_of(held.get((slot.resource, one)), slot) for one in slot.ids)
    ]


def _was_recorded(slot: Slot, boot: str) -> bool:
    """Whether the kubelet must have written it down by now if it was in use."""
    return slot.owner is not None or bool(boot and slot.boot not in ("", boot))


def slots_in_use(slots: Iterable[Slot], snapshot: NodeSnapshot) -> list[Slot]:
    """The newest slot of each container that holds devices now."""
    holding = {
        (claim.namespace, claim.pod, claim.container, claim.ids) for claim in snapshot.live_claims()
    }
    newest = {
        (slot.owner.namespace, slot.owner.pod, slot.owner.container, slot.ids): slot
        for slot in slots
        if slot.owner is not None
    }
    return [slot for key, slot in newest.items() if key in holding]


def _may_be_of(claim: Claim | None, slot: Slot) -> bool:
    """Whether the slot may be of the claim's pod. Of any of its containers, since claims leave out
    init containers."""
    if claim is None:
        return False
    owner = slot.owner
    return owner is None or (owner.namespace, owner.pod) == (claim.namespace, claim.pod)
