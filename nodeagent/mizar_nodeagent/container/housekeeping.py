"""Slots over time: forgets those that nobody will use again, and learns whose the others are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.collect import Recorded, recorded, useless
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import checkpoint_file
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import usage_file

log = get_logger(__name__)

EVERY_S = 30.0
# Older answers say nothing about who holds what now.
FRESH_S = 10.0


class Housekeeping:
    """Tidies the slots now and then. `clock`: monotonic; `now`: seconds since the epoch."""

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
        """Tidy for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.tidy()
            except KubeletAway as error:
                log.info("slots are kept", error=error)
            except OSError as error:
                log.warning("slots cannot be tidied", error=error)

    async def tidy(self) -> None:
        """One round. Nothing is removed unless kubelet and API server both speak. Raises
        KubeletAway, OSError."""
        for slot in self._slots.all():
            _trim(slot)
        entries = await asyncio.to_thread(checkpoint_file.read, self._plugin_dir)
        view = self._state.view
        if view.pods is None or self._clock() - view.claims.asked_at > FRESH_S:
            return
        pods = list(view.pods.values())
        known = recorded(entries, pods, self._slots.root)
        self._learn(known, {uid: pod for pod in pods for uid in pod.uids})
        for slot in useless(self._slots.all(), known, view.live_claims(), self._now()):
            log.info("slot removed", **slot.names)
            self._slots.remove(slot)

    def _learn(self, known: dict[str, Recorded], pods: dict[str, Pod]) -> None:
        for slot in self._slots.all():
            if record := known.get(slot.name):
                self._learn_one(slot, record, pods[record.entry.pod_uid])

    def _learn_one(self, slot: Slot, record: Recorded, pod: Pod) -> None:
        entry = record.entry
        if slot.ids != entry.ids:
            slot = self._slots.describe(slot, entry.resource, entry.ids)
        owner = Owner(pod.namespace, pod.name, pod.uid, entry.container)
        # Before its first start, nobody has checked whether the container may have the devices.
        if slot.owner is not None:
            self._slots.assign(slot, owner)


def _trim(slot: Slot) -> None:
    """One slot that cannot be looked at must not keep the others from it."""
    try:
        if usage_file.truncate_excess(slot.usage):
            log.warning("cut off: the container wrote behind its usage", **slot.names)
    except OSError as error:
        log.warning("a slot's usage cannot be trimmed", error=error, **slot.names)
