"""The kubelet's device manager in the model of a node: what it believes, and which pods hold
what."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.kubelet.claims import Claims
from unit.nodeagent.makers import card_claim, share_claim


@dataclass
class Kubelet:
    """The kubelet's part of one resource. `arriving`: lists that were sent to it and that it has
    not read. `allocating`: the devices of pods that are being admitted, by the pod's name;
    `answered`: when the agent permitted the allocation. `cards`: by UUID, the shadow pod that has
    the card."""

    resource: str
    devices: dict[str, bool] = field(default_factory=dict)
    arriving: deque[dict[str, bool]] = field(default_factory=deque)
    held: dict[str, str] = field(default_factory=dict)
    allocating: dict[str, tuple[str, ...]] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)

    @property
    def coming(self) -> set[str]:
        """Devices that a pod is about to hold."""
        return {one for ids in self.allocating.values() for one in ids}

    @property
    def unanswered(self) -> list[str]:
        """Pods whose Allocate the agent has not answered yet."""
        return sorted(self.allocating.keys() - self.answered.keys())

    def healthy(self) -> set[str]:
        return {one for one, healthy in self.devices.items() if healthy}

    def free(self) -> list[str]:
        return sorted(self.healthy() - self.held.keys() - self.coming)

    def users_of(self, shadow: str) -> set[str]:
        """Pods that hold, or will hold, a device of the shadow pod."""
        taken = {one: pod for pod in self.answered for one in self.allocating[pod]} | self.held
        return {pod for one, pod in taken.items() if DeviceID.parse(one).shadow == shadow}

    def lose_the_plugin(self) -> None:
        """The plugin's stream ended: allocations fail, and no device is healthy."""
        self.arriving.clear()
        self.devices = dict.fromkeys(self.devices, False)
        self.allocating.clear()
        self.answered.clear()

    def read_a_list(self) -> None:
        devices = self.arriving.popleft()
        assert self.coming <= devices.keys(), "the kubelet crashes"
        self.devices = devices

    def record(self, pod: str) -> None:
        """From now on the pod holds what it was given."""
        del self.answered[pod]
        self.held |= dict.fromkeys(self.allocating.pop(pod), pod)

    def end(self, pod: str) -> None:
        self.held = {one: who for one, who in self.held.items() if who != pod}

    def claims(self, shadows: set[str], now: float) -> Claims:
        """The kubelet's answer to podresources: one claim per pod. `shadows`: names of the shadow
        pods that exist."""
        cards: dict[str, list[str]] = {}
        for uuid, name in self.cards.items():
            if name in shadows:
                cards.setdefault(name, []).append(uuid)
        shares: dict[str, list[str]] = {}
        for one, pod in self.held.items():
            shares.setdefault(pod, []).append(one)
        found = [card_claim(name, *uuids) for name, uuids in cards.items()]
        found += [share_claim(*ids, pod=pod, resource=self.resource) for pod, ids in shares.items()]
        return Claims(tuple(found), now)
