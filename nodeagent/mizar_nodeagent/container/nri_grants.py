"""Decides which cards a container may have when the runtime creates it: those of the devices in its
annotations, if its pod has a slot of exactly these devices.

An annotation alone grants nothing: a runtime can be configured to pass on a pod's annotations,
which its tenant writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mizar_core.device_ids import DeviceID, cards_of_value, devices_of_value
from mizar_core.names import (
    card_of_spot_device,
    container_devices_from,
    container_devices_ids,
    spot_device_id,
)
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.limits import wants_shim
from mizar_nodeagent.container.prestart_checks import present_carving
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.errors import ContainerRefused, NotYet, StartRefused
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.proto import nri_pb2 as pb

FROM, IDS = container_devices_from(""), container_devices_ids("")
"""The keys, without the container's name at their end, of the annotations that name a container's
devices (FROM), and the cards that a spot container borrows (IDS)."""


@dataclass(frozen=True)
class Granted:
    """The cards that a container may have. `uuids`: their UUIDs. `slots`: one of these is the
    container's. `limited`: it must have the files of one of them mounted."""

    uuids: tuple[str, ...]
    slots: tuple[Slot, ...]
    limited: bool


def is_annotated(container: pb.Container) -> bool:
    """Whether the container has an annotation that names devices of Mizar."""
    return any(key.startswith((FROM, IDS)) for key in container.annotations)


@dataclass(frozen=True)
class Grants:
    """Finds by their slots the containers that PreStartContainer has let start, and their
    cards."""

    state: AgentState
    slots: Slots

    def of(self, pod: pb.PodSandbox, container: pb.Container) -> Granted:
        """The cards of an annotated container. Raises ContainerRefused, DeviceIDRefused."""
        slots = self.slots_of(pod, container)
        if not slots:
            raise ContainerRefused(
                f"the kubelet has not said that {pod.namespace}/{pod.name} holds "
                f"{', '.join(sorted(_devices(container)))}"
            )
        uuids, limited = dict[str, None](), False
        for device in sorted(slots[0].ids):
            uuid, has_limits = self._card(device)
            uuids[uuid] = None
            limited = limited or has_limits
        return Granted(tuple(uuids), slots, limited)

    def any_by_nri(self, pod: pb.PodSandbox) -> bool:
        """Whether a container of this pod, or of an earlier one of that name, gets its cards by NRI
        only."""
        names = pod.namespace, pod.name
        owners = (slot.owner for slot in self.slots.all() if slot.by_nri)
        return any(one is not None and (one.namespace, one.pod) == names for one in owners)

    def slots_of(self, pod: pb.PodSandbox, container: pb.Container) -> tuple[Slot, ...]:
        """The slots of the container's pod that have exactly the container's devices. Raises
        ContainerRefused, DeviceIDRefused."""
        devices = _devices(container)
        return tuple(
            slot
            for slot in self.slots.all()
            if self._is_of(slot, pod) and devices == {_short(one) for one in slot.ids}
        )

    def _is_of(self, slot: Slot, pod: pb.PodSandbox) -> bool:
        owner = slot.owner
        if owner is None or (owner.namespace, owner.pod) != (pod.namespace, pod.name):
            return False
        # The runtime and the API server know a static pod by different UIDs.
        known = (self.state.snapshot.pods or {}).get((pod.namespace, pod.name))
        same = known is not None and {owner.pod_uid, pod.uid} <= known.uids
        return same or owner.pod_uid in ("", pod.uid)

    def _card(self, device: str) -> tuple[str, bool]:
        """UUID of a device's card, and whether containers there are limited. Raises
        ContainerRefused."""
        if lent := card_of_spot_device(device):
            return lent, True
        one = DeviceID.parse(device)
        carving = self._carving(one)
        return carving.card(one).uuid, wants_shim(carving.carve.isolation)

    def _carving(self, device: DeviceID) -> Carving:
        try:
            return present_carving(self.state, device)
        except (NotYet, StartRefused) as error:
            raise ContainerRefused(str(error)) from error


def _devices(container: pb.Container) -> frozenset[str]:
    """The devices that the container's annotation names, without their namespaces. Raises
    ContainerRefused, DeviceIDRefused."""
    found = [
        devices_of_value(value)
        if key.startswith(FROM)
        else frozenset(map(spot_device_id, cards_of_value(value)))
        for key, value in sorted(container.annotations.items())
        if key.startswith((FROM, IDS))
    ]
    if len(found) != 1:
        raise ContainerRefused(
            f"it has devices of {len(found)} resources of Mizar: a container can have those of one"
        )
    return found[0]


def _short(device: str) -> str:
    """The device's ID without its namespace, of which a lent card's has none."""
    return device.rpartition("/")[2]
