"""Removes the agent's files that no container uses from the node when the agent ends.

It may be the last agent: an uninstall removes the agents' rights together with the agents, so that
the API server cannot be asked any more. So pods are those that were known a moment ago, while the
kubelet is asked which devices are held now.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mizar_kube.informer import Informer
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import ALLOCATING_FOR_S, AgentState
from mizar_nodeagent.container.slot_gc import unused_slots
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.container.used_slots import recorded_slots
from mizar_nodeagent.cuda_context.costs import CONTEXTS
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.overrides.source import KEPT as OVERRIDES
from mizar_nodeagent.pods import Pod

log = get_logger(__name__)

WITHIN_S = 4.0
"""Most seconds for removing slots."""


class ShutdownCleanup:
    """The cleanup, to be run after the device plugins have ended. `folder`: the agent's state
    folder. `plugin_dir`: the kubelet's folder for device plugins. `remembers`: whether the
    checkpoint has faults of cards, which the next agent cannot find out. `now` returns seconds
    since the epoch."""

    def __init__(
        self,
        folder: Path,
        state: AgentState,
        slots: Slots,
        pods: Informer[Pod],
        poller: KubeletPoller,
        plugin_dir: Path,
        remembers: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._state = state
        self._slots = slots
        self._pods = pods
        self._poller = poller
        self._plugin_dir = plugin_dir
        self._remembers = remembers
        self._now = now

    async def run(self) -> None:
        """Remove what is certainly unused; the rest is left to the next agent's garbage
        collection."""
        self._slots.spares.remove_all()
        if problem := self._pods.problem():
            log.info("the agent ends without removing what is unused", problem=problem)
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._remove_slots()
        except (KubeletAway, OSError, TimeoutError) as error:
            log.info("unused slots are left to the next agent", error=error)
        if all(pod.ended or not pod.uses_devices for pod in self._pods.values()):
            self._remove_the_rest()

    async def _remove_slots(self) -> None:
        if not self._slots.all():
            return
        claims = await self._poller.poll_claims()
        entries = await asyncio.to_thread(device_checkpoint.read, self._plugin_dir)
        recorded = recorded_slots(entries, self._pods.values(), self._slots.root)
        for slot in self._unused(claims, recorded):
            log.info("slot removed", **slot.names)
            self._slots.remove(slot)

    def _unused(self, claims: Claims, recorded: Container[str]) -> list[Slot]:
        """The slots that no container uses.

        The kubelet may not have recorded a young slot yet, but only while a pod that requests its
        resource is not admitted: at its admission, all of a pod is recorded.
        """
        snapshot = replace(self._state.snapshot, pods=dict(self._pods.items()), claims=claims)
        held, now = list(snapshot.live_claims()), self._now()
        pending = [pod for pod in self._pods.values() if not (pod.ended or pod.admitted)]
        awaited = [slot for slot in self._slots.all() if _may_be_for(slot, pending)]
        others = [slot for slot in self._slots.all() if slot not in awaited]
        return [
            *unused_slots(awaited, recorded, held, now),
            *unused_slots(others, recorded, held, now, ALLOCATING_FOR_S),
        ]

    def _remove_the_rest(self) -> None:
        """Remove the files that all containers share, if no slot is left."""
        try:
            self._slots.root.rmdir()
        except OSError:
            return
        shutil.rmtree(self._folder / "lib", ignore_errors=True)
        saved = () if self._remembers() else self._folder.glob("*checkpoint.*")
        overrides = () if self._has_overrides() else (self._folder / OVERRIDES,)
        for file in (*saved, *overrides, self._folder / CONTEXTS):
            with suppress(OSError):
                file.unlink()

    def _has_overrides(self) -> bool:
        """Whether the node's settings differ from others': the next agent needs them if it cannot
        use or find out those of its time."""
        try:
            return bool(json.loads((self._folder / OVERRIDES).read_bytes()))
        except (OSError, ValueError):
            return False


def _may_be_for(slot: Slot, pods: Iterable[Pod]) -> bool:
    """Whether one of the pods may start with the slot: any, if the slot's resource was lost."""
    return not slot.resource or any(pod.requested(slot.resource) for pod in pods)
