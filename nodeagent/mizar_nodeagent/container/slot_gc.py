"""Garbage collection of slots: removes slots that no container will use again, including those of
an Allocate that an earlier agent did not answer, and restores devices and owners of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Set
from pathlib import Path
from typing import TypeVar

from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import recorded_slots
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.pods import Pod

log = get_logger(__name__)

H = TypeVar("H", Slot, Claim)

EVERY_S = 15.0
"""Seconds between two rounds. A slot is removed if it was unused in the round before too."""
FRESH_S = 10.0
"""Seconds after which claims are too old to show which devices are held now."""
GRACE_S = 120.0
"""Seconds after Allocate for which a slot is kept whose container has not started: much longer than
the kubelet needs to record it."""


class SlotGarbageCollector:
    """Collects unused slots. `plugin_dir`: the kubelet's folder for device plugins, which has its
    record. `clock` returns monotonic seconds, `now` seconds since the epoch."""

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
        self._unused: Set[str] = frozenset()
        """The names of the slots that the last round found unused."""

    async def run(self) -> None:
        """Collect every EVERY_S, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.collect()
            except KubeletAway as error:
                log.info("unused slots are not removed for now", error=error)
            except OSError as error:
                log.warning("unused slots cannot be removed", error=error)

    async def collect(self) -> None:
        """Do one round. For old versions of the shim, the kubelet's record suffices. Slots are
        removed only if the kubelet has answered within FRESH_S and the API server has listed the
        pods, and only those that were unused in the round before as well: record, claims and pods
        may all be older than a container that has just started. Raises KubeletAway, OSError."""
        before, self._unused = self._unused, frozenset()
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
        unused = unused_slots(found, recorded, snapshot.live_claims(), self._now(), boot=boot)
        self._unused = {slot.name for slot in unused}
        for slot in unused:
            if slot.name not in before:
                continue
            log.info("slot removed", **slot.names)
            self._slots.remove(slot)
            await asyncio.sleep(0)  # lets the kubelet's calls be answered between two removals

    def _restore(self, recorded: dict[str, Entry], pods: dict[str, Pod]) -> None:
        for slot in self._slots.all():
            if entry := recorded.get(slot.name):
                try:
                    self._restore_one(slot, entry, pods[entry.pod_uid])
                except OSError as error:
                    # On a full disk, unused slots must be removed all the same.
                    log.warning("a slot cannot be described", error=error, **slot.names)

    def _restore_one(self, slot: Slot, entry: Entry, pod: Pod) -> None:
        if slot.ids != entry.ids:
            slot = self._slots.describe(slot, entry.resource, entry.ids)
        owner = Owner(pod.namespace, pod.name, pod.uid, entry.container)
        # Without an owner, it was not checked yet whether its container may have the devices.
        if slot.owner is not None:
            self._slots.assign(slot, owner)


def unused_slots(
    slots: Iterable[Slot],
    recorded: Container[str],
    claims: Iterable[Claim],
    now: float,
    grace_s: float = GRACE_S,
    boot: str = "",
) -> list[Slot]:
    """The slots that neither the kubelet's record (`recorded`, names of slots) nor a claim shows in
    use. Slots of this boot (`boot`, its ID) whose container has not started yet are left out until
    they are older than `grace_s` seconds, or lie as far in the future because the clock was set
    back.

    A claim on a device for which the record names a slot of the same pod does not count for other
    slots: an agent that ended before it answered Allocate leaves a slot behind, and the kubelet
    calls Allocate of the next agent again. Nor does it count for a slot without an owner if the
    recorded one has none. Another pod may have the device as well, if the kubelet has forgotten
    that. `now`: seconds since the epoch.
    """
    slots = list(slots)
    known = _by_device([slot for slot in slots if slot.name in recorded])
    held = _by_device(claims)
    return [
        slot
        for slot in slots
        if (_was_recorded(slot, boot) or abs(now - slot.created) > grace_s)
        and slot.name not in recorded
        and not any(
            _may_be_of(claim, slot) and not _is_for_another(claim, slot, known.get(place, ()))
            for one in slot.ids
            for place in [(slot.resource, one)]
            for claim in held.get(place, ())
        )
    ]


def _by_device(holders: Iterable[H]) -> dict[tuple[str, str], list[H]]:
    """The slots or claims of each device: of a resource, by the device's ID."""
    found: dict[tuple[str, str], list[H]] = {}
    for holder in holders:
        for one in holder.ids:
            found.setdefault((holder.resource, one), []).append(holder)
    return found


def _is_for_another(claim: Claim, slot: Slot, recorded: Iterable[Slot]) -> bool:
    """Whether the claim is for one of the recorded slots of its device, rather than this slot."""
    return any(
        _may_be_of(claim, one) and (one.owner is not None or slot.owner is None) for one in recorded
    )


def _was_recorded(slot: Slot, boot: str) -> bool:
    """Whether the kubelet's record must have the slot by now if it is in use: its container has
    started, or the slot is from an earlier boot."""
    return slot.owner is not None or bool(boot and slot.boot not in ("", boot))


def _may_be_of(claim: Claim, slot: Slot) -> bool:
    """Whether the slot may belong to a container of the claim's pod: to any, since claims leave out
    init containers."""
    owner = slot.owner
    return owner is None or (owner.namespace, owner.pod) == (claim.namespace, claim.pod)
