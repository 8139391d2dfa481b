"""Lists the spot devices for the kubelet, and counts them for the node's status."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mizar_core.names import spot_device_id
from mizar_nodeagent.cards import Card
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.planning.snapshot import Counts
from mizar_nodeagent.spot.loan import CardLoan


def devices(
    loans: Iterable[CardLoan], listed: Collection[str], cards: Mapping[str, Card]
) -> tuple[Device, ...]:
    """One device for each card UUID in `listed`, sorted by UUID. A device is healthy while its card
    is lendable or lent."""
    healthy = {loan.uuid for loan in loans if loan.state.healthy}
    return tuple(
        Device(spot_device_id(uuid), uuid in healthy, cards[uuid].numa if uuid in cards else ())
        for uuid in sorted(listed)
    )


def counts(listed: Collection[Device], kubelet: Collection[str]) -> Counts:
    """Capacity and allocatable of the spot resource. `kubelet`: IDs of the devices that the kubelet
    considers healthy; healthy devices that it does not know yet are not counted. `listed` must be
    empty until the kubelet has offered a device: before it knows the resource, it copies a capacity
    that it finds in the node's status to allocatable, and pods would be bound to withheld cards."""
    ready = sum(one.healthy and one.id in kubelet for one in listed)
    waiting = sum(one.healthy and one.id not in kubelet for one in listed)
    return Counts(capacity=len(listed) - waiting, allocatable=ready)
