"""Samples how much of the cards' time containers use, by NVML: also of containers without a share
of GPU time, whose work the shim does not meter."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent import container_processes
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.errors import CardsUnknown, RegionDamaged
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.regions import limits_file

log = get_logger(__name__)

EVERY_S: Final = 10.0
"""Seconds between two samples. NVML needs up to 50 ms for a card, and other calls wait
meanwhile."""
STALE_S: Final = 3 * EVERY_S
"""Seconds after which a sample is no longer reported: NVML may hang, as when the driver does."""

Container = tuple[str, str, str]
"""Namespace, pod and name of a container."""


class ContainerUtilization:
    """The containers' part of the cards' time. `proc`: the node's /proc. `sees_processes`: the
    agent is in the node's PID namespace; otherwise NVML tells it of no process of a container.
    `clock` returns monotonic seconds."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        cards: CardSource,
        proc: Path = container_processes.PROC,
        sees_processes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._slots = slots
        self._cards = cards
        self._proc = proc
        self._sees_processes = sees_processes
        self._clock = clock
        self._latest: tuple[float, Mapping[tuple[Container, str], float]] = (0.0, {})

    def of(self, container: Container, uuid: str) -> float | None:
        """The part of the card's time, from 0 to 1, that the container used by the last sample;
        None if that is not known, or older than STALE_S. May be called from any thread."""
        at, latest = self._latest
        return None if self._clock() - at > STALE_S else latest.get((container, uuid))

    async def run(self) -> None:
        """Sample every EVERY_S, for ever. Returns if the agent does not see processes."""
        if not self._sees_processes:
            log.info(
                "containers' utilization is not reported: the agent is not in the node's PID "
                "namespace (nodeagent.hostPID)"
            )
            return
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        """Sample once. What NVML does not report is not known afterwards."""
        at, held = self._clock(), await asyncio.to_thread(self._held)
        found: dict[tuple[Container, str], float] = {}
        for uuid, containers in held.items():
            with suppress(CardsUnknown):
                # One card at a time, so that NVML's other callers do not wait for all of them.
                loads = await self._cards.utilization(uuid)
                if loads is not None:
                    found |= await asyncio.to_thread(self._of_card, uuid, containers, loads)
        self._latest = at, found

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
        """The parts of those of these containers of which all processes on the card are known."""
        pods = (self._state.snapshot.pods or {}).values()
        names = dict(_names(pods))
        sums = {one: 0.0 for one in names.values() if one in containers}
        unclear: set[str] = set()
        for pid, process in container_processes.of_containers(loads, self._proc).items():
            home = names.get(process.container_id)
            if home in sums:
                sums[home] += loads[pid]
            elif home is None:
                unclear.add(process.pod_uid)
        # A container that has just started, perhaps again: its ID is not in the pod's status yet.
        unknown: set[Key] = {pod.key for pod in pods if pod.uids & unclear}
        return {(one, uuid): min(1.0, load) for one, load in sums.items() if one[:2] not in unknown}


def _names(pods: Collection[Pod]) -> Iterator[tuple[str, Container]]:
    """The ID at the runtime of each container that is known, and its names."""
    for pod in pods:
        for identity, name in pod.container_ids:
            yield identity, (pod.namespace, pod.name, name)
