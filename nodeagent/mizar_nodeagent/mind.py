"""What the agent knows at this moment, shared by its loops; all of it belongs to one event loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.plan import Memory, Plan, plan
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Key

# The kubelet records an allocation right after the answer; by then it has, or never will.
ALLOCATING_FOR_S = 5.0


class Mind:
    """Memory, the last view and the last plan, and the allocations that are on their way."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory: dict[Key, Carving] = dict(memory or {})
        self.view = View(now=0.0)
        self.last: Plan | None = None
        self._allocating: dict[DeviceID, float] = {}

    def think(self, view: View) -> Plan:
        """Plan with this view, and remember."""
        self._settle_allocations(view.claims)
        self.view = replace(view, allocating=frozenset(self._allocating))
        self.last = plan(self.memory, self.view)
        self.memory = self.last.memory
        return self.last

    def carving_of(self, device: DeviceID) -> Carving | None:
        """The carving that has the device, if there is one."""
        carving = self.memory.get((device.namespace, device.shadow))
        return carving if carving and device.index < carving.carve.devices else None

    def begin_allocation(self, ids: Iterable[DeviceID], now: float) -> None:
        """A container is being given these devices; soon the kubelet will say which."""
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
