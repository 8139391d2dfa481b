"""The agent's present state, which its loops share: carvings, last snapshot, last plan, and
allocations under way. Only the event loop's thread changes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.agent_checkpoint import TakenBack
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.plan import Carvings, Plan
from mizar_nodeagent.planning.planning_errors import plan_isolated
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key

ALLOCATING_FOR_S = 5.0
"""Seconds after the answer to Allocate within which the kubelet records the allocation, if it does
at all; usually it does so at once."""


class AgentState:
    """Carvings, the last snapshot and the last plan, and the allocations under way. `taken_back`:
    when owners recently took each card back from its borrowers, by UUID."""

    def __init__(
        self, carvings: Carvings | None = None, taken_back: TakenBack | None = None
    ) -> None:
        self.carvings: dict[Key, Carving] = dict(carvings or {})
        self.taken_back: TakenBack = dict(taken_back or {})
        self.snapshot = NodeSnapshot(now=0.0)
        self.last: Plan | None = None
        self._allocating: dict[DeviceID, float] = {}

    def replan(self, snapshot: NodeSnapshot) -> Plan:
        """Make the plan for this snapshot, and keep both."""
        self._settle_allocations(snapshot.claims)
        self.snapshot = replace(snapshot, allocating=frozenset(self._allocating))
        self.last = plan_isolated(self.carvings, self.snapshot, self.last)
        self.carvings = self.last.carvings
        return self.last

    def carving_of(self, device: DeviceID) -> Carving | None:
        """The carving that the device is part of; None if it is not known."""
        carving = self.carvings.get((device.namespace, device.shadow))
        return carving if carving and device.index < carving.carve.devices else None

    def begin_allocation(self, ids: Iterable[DeviceID], now: float) -> None:
        """Note that Allocate answers with these devices, for which no claim names a container yet.
        `now`: monotonic seconds."""
        self._allocating.update(dict.fromkeys(ids, now))

    @property
    def allocating(self) -> frozenset[DeviceID]:
        return frozenset(self._allocating)

    def _settle_allocations(self, claims: Claims) -> None:
        held = {device for device, _ in claims.share()}
        for device, begun in list(self._allocating.items()):
            after = claims.asked_at - begun
            if (after > 0 and device in held) or after > ALLOCATING_FOR_S:
                del self._allocating[device]
