"""Which cards a container may have, by its annotations and by what the kubelet says of its pod.

An annotation alone grants nothing: a runtime can be configured to pass on those of a pod, which its
tenant writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mizar_core.device_ids import DeviceID, cards_of_value, devices_of_value
from mizar_core.names import (
    SPOT_RESOURCE,
    container_devices_from,
    container_devices_ids,
    spot_device_id,
)
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.limits import wants_shim
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.errors import ContainerRefused
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.proto import nri_pb2 as pb

FROM, IDS = container_devices_from(""), container_devices_ids("")
"""Beginnings of the annotations' keys, to which a container's name belongs."""

Poll = Callable[[], Awaitable[Claims]]


@dataclass(frozen=True)
class Granted:
    """`uuids`: the container's cards. `slots`: one of them has the files that it must have mounted;
    none where it is not limited."""

    uuids: tuple[str, ...]
    slots: tuple[Slot, ...] = ()


def is_annotated(container: pb.Container) -> bool:
    """Whether Mizar has given the container anything."""
    return any(key.startswith((FROM, IDS)) for key in container.annotations)


@dataclass(frozen=True)
class Grants:
    """`poll`: asks the kubelet who holds what now."""

    state: AgentState
    slots: Slots
    poll: Poll

    async def of(self, pod: pb.PodSandbox, container: pb.Container) -> Granted:
        """The cards of a container that is annotated. Raises ContainerRefused, DeviceIDRefused,
        KubeletAway."""
        shares = _values(container.annotations, FROM)
        spots = _values(container.annotations, IDS)
        if len(shares) + len(spots) != 1:
            raise ContainerRefused(
                "it has devices of several resources of Mizar: a container can have one of them"
            )
        if shares:
            return self._share(pod, devices_of_value(shares[0]))
        return await self._spot(pod, cards_of_value(spots[0]))

    def slots_of(self, pod: pb.PodSandbox, devices: frozenset[str]) -> tuple[Slot, ...]:
        """The slots of these devices (without their namespaces) that are this pod's, for which
        PreStartContainer was called."""
        return tuple(
            slot
            for slot in self.slots.all()
            if self._is_of(slot, pod) and devices == {DeviceID.parse(one).short for one in slot.ids}
        )

    def _is_of(self, slot: Slot, pod: pb.PodSandbox) -> bool:
        owner = slot.owner
        if owner is None or (owner.namespace, owner.pod) != (pod.namespace, pod.name):
            return False
        # The runtime and the API server know a static pod by different UIDs.
        known = (self.state.snapshot.pods or {}).get((pod.namespace, pod.name))
        same = known is not None and {owner.pod_uid, pod.uid} <= known.uids
        return same or owner.pod_uid in ("", pod.uid)

    def _share(self, pod: pb.PodSandbox, devices: frozenset[str]) -> Granted:
        slots = self.slots_of(pod, devices)
        if not slots:
            raise ContainerRefused(
                f"the kubelet has not said that {pod.namespace}/{pod.name} holds "
                f"{', '.join(sorted(devices))}"
            )
        ids = [DeviceID.parse(one) for one in sorted(slots[0].ids)]
        carvings = [self._carving(device) for device in ids]
        uuids = dict.fromkeys(
            carving.card(device).uuid for carving, device in zip(carvings, ids, strict=True)
        )
        limited = any(wants_shim(carving.carve.isolation) for carving in carvings)
        return Granted(tuple(uuids), slots if limited else ())

    def _carving(self, device: DeviceID) -> Carving:
        carving = self.state.carving_of(device)
        if carving is None:
            raise ContainerRefused(f"nothing is known of {device} yet")
        if carving.stage is DrainStage.LEAVING:
            raise ContainerRefused(
                f"the shadow pod of {device} is gone or going, and its card with it"
            )
        return carving

    async def _spot(self, pod: pb.PodSandbox, uuids: frozenset[str]) -> Granted:
        claims = await self.poll()
        held = {
            device
            for claim in claims.of_pod(pod.namespace, pod.name, SPOT_RESOURCE)
            for device in claim.ids
        }
        if missing := sorted(uuid for uuid in uuids if spot_device_id(uuid) not in held):
            raise ContainerRefused(
                f"the kubelet does not say that {pod.namespace}/{pod.name} holds card {missing[0]}"
            )
        slots = self.slots.of(SPOT_RESOURCE, [spot_device_id(uuid) for uuid in uuids])
        return Granted(tuple(sorted(uuids)), tuple(one for one in slots if self._is_of(one, pod)))


def _values(annotations: Mapping[str, str], prefix: str) -> list[str]:
    return [value for key, value in sorted(annotations.items()) if key.startswith(prefix)]
