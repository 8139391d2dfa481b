"""Reduces the ResourceSlices of NVIDIA's DRA driver, and DeviceClasses, to what the operator reads
of them: which cards and MIG devices a node has, and by which resources pods request them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from mizar_core.errors import QuantityRefused
from mizar_core.names import DRA_DRIVER
from mizar_core.planning.snapshot import CardsOnNode
from mizar_core.quantities import parse_bytes
from mizar_core.slice_devices import WHOLE_CARD, is_failing, named, newest, resource_of, text
from mizar_kube.kinds import Object
from mizar_operator.object_views import Json

OF_DRIVER: Final = f"spec.driver={DRA_DRIVER}"
"""Field selector of the driver's slices."""

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Devices:
    """The cards, or the MIG devices of one size, of a slice. `resource`: by which pods request
    them. `names`: the devices'. `cards`: how many there are, and which."""

    resource: str
    names: frozenset[str]
    cards: CardsOnNode


@dataclass(frozen=True, slots=True)
class SliceView:
    """A ResourceSlice. `devices`: its cards and MIG devices, by their resource. `pool`,
    `generation`: a pool's devices may be in several slices, of which those of the highest
    generation count."""

    name: str
    node: str
    pool: str
    generation: int
    devices: tuple[Devices, ...]


def slice_view(obj: Object) -> SliceView | None:
    """The view of a slice; None for those of other drivers, and those that belong to no node."""
    spec = obj["spec"]
    node, pool = spec.get("nodeName"), spec.get("pool") or {}
    if spec.get("driver") != DRA_DRIVER or not node:
        return None
    found = defaultdict[str, list[Json]](list)
    for one in spec.get("devices") or ():
        if resource := resource_of(one):
            found[resource].append(one)
    return SliceView(
        name=obj["metadata"]["name"],
        node=sys.intern(node),
        pool=sys.intern(pool.get("name", "")),
        generation=int(pool.get("generation") or 0),
        devices=tuple(_devices(resource, cards) for resource, cards in sorted(found.items())),
    )


def _devices(resource: str, cards: Collection[Json]) -> Devices:
    return Devices(
        resource=sys.intern(resource),
        names=_same_names(frozenset(one["name"] for one in cards)),
        cards=CardsOnNode(
            total=len(cards),
            healthy=sum(not is_failing(one) for one in cards),
            model=_model(cards),
            mib=max(map(_mib, cards), default=0),
        ),
    )


def extended_resource(obj: Object) -> str | None:
    """The resource by which pods request devices of a DeviceClass, as they request those of a
    device plugin; None if there is none."""
    name = obj["spec"].get("extendedResourceName")
    return str(name) if name else None


def cards_together(slices: Iterable[SliceView]) -> Mapping[str, CardsOnNode]:
    """The cards of all slices of a node, by their resource."""
    found = defaultdict[str, list[CardsOnNode]](list)
    for one in newest(slices):
        for devices in one.devices:
            found[devices.resource].append(devices.cards)
    return {resource: _sum(cards) for resource, cards in found.items()}


def _sum(found: Collection[CardsOnNode]) -> CardsOnNode:
    models = {one.model for one in found}
    return CardsOnNode(
        total=sum(one.total for one in found),
        healthy=sum(one.healthy for one in found),
        model=models.pop() if len(models) == 1 else "",
        mib=max(one.mib for one in found),
    )


@lru_cache(maxsize=64)
def _same_names(names: frozenset[str]) -> frozenset[str]:
    """The names, as one object for all nodes with the same, to save memory."""
    return names


def _model(cards: Iterable[Json]) -> str:
    """The cards' model as GPU feature discovery writes it, which has `-` for blanks, and for MIG
    devices their size at the end; empty if the cards are of several models."""
    found = {_model_of(one) for one in cards}
    return sys.intern(found.pop()) if len(found) == 1 else ""


def _model_of(card: Json) -> str:
    model = (text(card, "productName") or "").replace(" ", "-")
    whole = text(card, "type") == WHOLE_CARD
    return model if whole or not model else f"{model}-MIG-{text(card, 'profile')}"


def _mib(card: Json) -> int:
    memory = named(card.get("capacity"), "memory").get("value", 0)
    try:
        return parse_bytes(memory) // MIB
    except QuantityRefused:
        return 0
