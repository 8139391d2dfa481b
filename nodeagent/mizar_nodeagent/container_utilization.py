"""Samples how much of the cards' time containers use, by NVML: also of containers without a share
of GPU time, whose work the shim does not meter."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_nodeagent import container_processes
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.container.slot_gc import slots_in_use
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.errors import CardsUnknown, RegionDamaged
from mizar_nodeagent.regions import limits_file

EVERY_S: Final = 10.0
"""Seconds between two samples. NVML needs up to 50 ms for a card, and other calls wait
meanwhile."""

Container = tuple[str, str, str]
"""Namespace, pod and name of a container."""


class ContainerUtilization:
    """The containers' part of the cards' time. `proc`: the node's /proc."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        cards: CardSource,
        proc: Path = container_processes.PROC,
    ) -> None:
        self._state = state
        self._slots = slots
        self._cards = cards
        self._proc = proc
        self._latest: Mapping[tuple[Container, str], float] = {}

    def of(self, container: Container, uuid: str) -> float | None:
        """The part of the card's time, from 0 to 1, that the container used by the last sample;
        None if that is not known. May be called from any thread."""
        return self._latest.get((container, uuid))

    async def run(self) -> None:
        """Sample every EVERY_S, for ever."""
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        """Sample once. What NVML does not report is not known afterwards."""
        held = await asyncio.to_thread(self._held)
        found: dict[tuple[Container, str], float] = {}
        for uuid, containers in held.items():
            with suppress(CardsUnknown):
                # One card at a time, so that NVML's other callers do not wait for all of them.
                loads = await self._cards.utilization(uuid)
                if loads is not None:
                    found |= await asyncio.to_thread(self._of_card, uuid, containers, loads)
        self._latest = found

    def _held(self) -> Mapping[str, set[Container]]:
        """The containers with devices of each card, by its UUID."""
        found: defaultdict[str, set[Container]] = defaultdict(set)
        for slot in slots_in_use(self._slots.all(), self._state.snapshot):
            owner = slot.owner
            assert owner is not None
            # A container without its files, or with damaged ones, has no metrics at all.
            with suppress(OSError, RegionDamaged):
                region = limits_file.read(slot.limits)
                for card in region.cards[: region.card_count]:
                    uuid = card.uuid.decode(errors="replace")
                    found[uuid].add((owner.namespace, owner.pod, owner.container))
        return found

    def _of_card(
        self, uuid: str, containers: Collection[Container], loads: Mapping[int, float]
    ) -> Mapping[tuple[Container, str], float]:
        names = {
            identity: (pod.namespace, pod.name, name)
            for pod in (self._state.snapshot.pods or {}).values()
            for identity, name in pod.container_ids
        }
        sums = dict.fromkeys(containers, 0.0)
        for pid, process in container_processes.of_containers(loads, self._proc).items():
            home = names.get(process.container_id)
            if home in sums:
                sums[home] += loads[pid]
        return {(one, uuid): min(1.0, load) for one, load in sums.items()}
