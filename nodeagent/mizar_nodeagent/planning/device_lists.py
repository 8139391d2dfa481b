"""Computes the device list of each resource for the kubelet, and the resource's capacity and
allocatable for the node's status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.cards import GONE, Card
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot


@dataclass(frozen=True)
class Device:
    """A device in the list that the kubelet gets. `numa`: the NUMA nodes of its card."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


UNCONFIRMED = (
    "the node was restarted, and the kubelet has not reported yet which cards the shadow pod has"
)
"""Why no container may use an unconfirmed carving, as a clause for a message."""

BACK = "the card was gone: it is offered again when those who used it have ended"
"""Why no container may use a card that has come back, as a clause for a message."""

Lists = dict[str, tuple[Device, ...]]
"""Devices per resource, in order of their IDs."""


def lists(
    carvings: Iterable[Carving], snapshot: NodeSnapshot, unusable: Iterable[Carving] = ()
) -> Lists:
    """All devices that the kubelet may allocate or that may be held. `unusable`: carvings whose
    devices are all listed as Unhealthy, so that none is allocated."""
    found: dict[str, dict[DeviceID, Device]] = {}
    for resource, device in _held_devices(snapshot):
        found.setdefault(resource, {})[device] = Device(str(device), healthy=False)
    for carving in unusable:
        own = found.setdefault(carving.resource, {})
        own.update(
            (one, Device(name, healthy=False))
            for one, name in zip(carving.ids, carving.names, strict=True)
        )
    for carving in carvings:
        own = found.setdefault(carving.resource, {})
        own.update(zip(carving.ids, _devices(carving, snapshot), strict=True))
    return {resource: tuple(own[one] for one in sorted(own)) for resource, own in found.items()}


def card_problem(carving: Carving, card: Card, snapshot: NodeSnapshot) -> str:
    """Why no container should use the carving's card; empty if no problem is known."""
    known = snapshot.cards.get(card.uuid)
    if card.uuid in carving.gone:
        return (known.problem or BACK) if known is not None else GONE
    if known is not None:
        return known.problem
    # An agent that starts while the card is away has never seen it.
    return "" if snapshot.cards_problem else GONE


def refusal(carving: Carving, device: DeviceID, snapshot: NodeSnapshot) -> str | None:
    """Why the device must not be allocated, as a predicate for a message; None if it may be.

    During a drain it may be allocated, which ends the drain. After a completed drain it must not:
    the drain has been reported, and the shadow pod may be deleted at any moment.
    """
    if carving.stage in (DrainStage.DRAINED, DrainStage.LEAVING):
        return "is not available any more: its shadow pod is about to be deleted"
    if not carving.confirmed:
        return f"cannot be used yet: {UNCONFIRMED}"
    if problem := card_problem(carving, carving.card(device), snapshot):
        return f"cannot be used: {problem}"
    return None


def counts(lists: Lists, carvings: Iterable[Carving], snapshot: NodeSnapshot) -> dict[str, Counts]:
    """The counts for the node's status, by resource; none while the kubelet does not answer.
    Allocatable is at most the number of healthy devices that the kubelet has, and of these at least
    as many as pods bound to the node hold and wait for: the kubelet compares pods with the node's
    status as the scheduler does, and would otherwise reject the waiting pods for good.

    Resources with healthy devices of which the kubelet has none yet are left out. Resources that no
    longer have a list are zero.
    """
    if snapshot.kubelet is None:
        return {}
    gone = {resource: Counts(0, 0) for resource in snapshot.node.keys() - lists.keys()}
    taken = snapshot.allocating | snapshot.holders().keys()
    lowered = {
        name
        for carving in carvings
        if carving.carve.closed or not carving.stage.offered
        for one, name in zip(carving.ids, carving.names, strict=True)
        if not carving.stage.offered or one not in taken
    }
    found = {
        resource: _counts(
            devices,
            snapshot.kubelet.get(resource, frozenset()),
            lowered,
            spoken_for=_spoken_for(resource, snapshot),
        )
        for resource, devices in lists.items()
    }
    return gone | {resource: one for resource, one in found.items() if one is not None}


def _spoken_for(resource: str, snapshot: NodeSnapshot) -> int:
    """The number of the resource's devices that pods bound to the node hold or wait for."""
    # An init container may hold the same devices as its pod's other containers: count them once.
    held = frozenset[str]().union(*(one.ids for one in snapshot.live_claims_on(resource)))
    return len(held) + sum(pod.requested(resource) for pod in snapshot.waiting_pods(resource))


def _counts(
    devices: tuple[Device, ...], kubelet: frozenset[str], lowered: set[str], spoken_for: int
) -> Counts | None:
    healthy = [one.id for one in devices if one.healthy]
    ready = [one for one in healthy if one in kubelet]
    if healthy and not ready:
        return None
    offered = sum(one not in lowered for one in ready)
    return Counts(
        capacity=len(devices) - len(healthy) + len(ready),
        allocatable=max(offered, min(len(ready), spoken_for)),
    )


def _devices(carving: Carving, snapshot: NodeSnapshot) -> tuple[Device, ...]:
    """The carving's devices, in order."""
    allocatable = carving.stage.healthy and carving.confirmed
    broken = {card.uuid for card in carving.cards if card_problem(carving, card, snapshot)}
    healthy = tuple(
        allocatable and index not in carving.withdrawn and card.uuid not in broken
        for index, card in enumerate(carving.device_cards)
    )
    return _entries(carving.names, healthy, tuple(card.numa for card in carving.device_cards))


# Most devices are the same from one plan to the next. Cached entries compare fast, by identity.
@lru_cache(maxsize=256)
def _entries(
    names: tuple[str, ...], healthy: tuple[bool, ...], numa: tuple[tuple[int, ...], ...]
) -> tuple[Device, ...]:
    return tuple(map(Device, names, healthy, numa))


def _held_devices(snapshot: NodeSnapshot) -> Iterable[tuple[str, DeviceID]]:
    """The held devices, each with its resource, whether or not their shadow pod is known."""
    live = Claims(tuple(snapshot.live_claims()))
    return ((claim.resource, device) for device, claim in live.share())
