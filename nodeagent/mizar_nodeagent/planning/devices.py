"""The device list of each resource, and what of it the node's status should offer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving, HeldCard, Stage
from mizar_nodeagent.planning.view import Counts, View


@dataclass(frozen=True)
class Device:
    """An entry of the list that the kubelet gets."""

    id: str
    healthy: bool
    numa: tuple[int, ...] = ()


Lists = dict[str, tuple[Device, ...]]
"""Devices per resource, in order of their IDs."""


def lists(carvings: Iterable[Carving], view: View) -> Lists:
    """All devices that the kubelet may give out or that somebody may hold."""
    found: dict[str, dict[DeviceID, Device]] = {}
    for resource, device in _strays(view):
        found.setdefault(resource, {})[device] = Device(str(device), healthy=False)
    for carving in carvings:
        own = found.setdefault(carving.resource, {})
        for device in carving.ids:
            own[device] = _device(carving, device, view)
    return {resource: tuple(own[one] for one in sorted(own)) for resource, own in found.items()}


def card_problem(card: HeldCard, view: View) -> str:
    """Why nobody should use the card; empty if it is well, as far as is known."""
    facts = view.cards.get(card.uuid)
    return facts.problem if facts else ""


def not_to_be_given(carving: Carving, device: DeviceID, view: View) -> str | None:
    """Why nobody may get the device, as the rest of a sentence; None if somebody may.

    One that is about to be drained may be given: whoever comes now ends the drain. Of one that is
    drained others have been told that nobody gets it.
    """
    if carving.stage in (Stage.DRAINED, Stage.LEAVING):
        return "is being given back: its shadow pod goes"
    if problem := card_problem(carving.card(device), view):
        return f"cannot be used: {problem}"
    return None


def counts(lists: Lists, carvings: Iterable[Carving], view: View) -> dict[str, Counts]:
    """What the node's status should say: never more than the kubelet has of what it was sent.

    Left out are resources of whose devices the kubelet has none yet. Resources that are no more
    read zero.
    """
    if view.kubelet is None:
        return {}
    gone = {resource: Counts(0, 0) for resource in view.node.keys() - lists.keys()}
    taken = view.allocating | view.holders().keys()
    lowered = {
        str(one)
        for carving in carvings
        for one in carving.ids
        if not carving.stage.offered or (carving.carve.closed and one not in taken)
    }
    found = {
        resource: _counts(devices, view.kubelet.get(resource, frozenset()), lowered)
        for resource, devices in lists.items()
    }
    return gone | {resource: one for resource, one in found.items() if one is not None}


def _counts(
    devices: tuple[Device, ...], kubelet: frozenset[str], lowered: set[str]
) -> Counts | None:
    healthy = [one.id for one in devices if one.healthy]
    ready = [one for one in healthy if one in kubelet]
    if healthy and not ready:
        return None
    return Counts(
        capacity=len(devices) - len(healthy) + len(ready),
        allocatable=sum(one not in lowered for one in ready),
    )


def _device(carving: Carving, device: DeviceID, view: View) -> Device:
    card = carving.card(device)
    given = carving.stage.healthy and device.index not in carving.shut
    return Device(str(device), given and not card_problem(card, view), card.numa)


def _strays(view: View) -> Iterable[tuple[str, DeviceID]]:
    """Devices that somebody holds, whether or not their shadow pod is known."""
    live = Claims(tuple(view.live_claims()))
    return ((claim.resource, device) for device, claim in live.share())
