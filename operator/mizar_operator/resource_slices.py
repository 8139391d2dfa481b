"""Reduces the ResourceSlices of NVIDIA's DRA driver, and DeviceClasses, to what the operator reads
of them: which whole cards a node has, and by which resource pods request them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from mizar_core.errors import QuantityRefused
from mizar_core.names import DRA_DRIVER
from mizar_core.planning.snapshot import CardsOnNode
from mizar_core.quantities import parse_bytes
from mizar_kube.kinds import Object
from mizar_operator.object_views import Json

WHOLE_CARD: Final = "gpu"
"""The attribute `type` of whole cards; MIG devices have `mig`, those for virtual machines
`vfio`."""

FAILING: Final = frozenset({"NoSchedule", "NoExecute"})
"""The effects of taints that keep the scheduler from giving a device to further pods."""

OF_DRIVER: Final = f"spec.driver={DRA_DRIVER}"
"""Field selector of the driver's slices."""

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SliceView:
    """A ResourceSlice. `names`: those of its whole cards. `cards`: how many there are, and which.
    `pool`, `generation`: a pool's devices may be in several slices, of which those of the highest
    generation count."""

    name: str
    node: str
    pool: str
    generation: int
    names: frozenset[str]
    cards: CardsOnNode


def slice_view(obj: Object) -> SliceView | None:
    """The view of a slice; None for those of other drivers, and those that belong to no node."""
    spec = obj["spec"]
    node, pool = spec.get("nodeName"), spec.get("pool") or {}
    if spec.get("driver") != DRA_DRIVER or not node:
        return None
    cards = [one for one in spec.get("devices") or () if _text(one, "type") == WHOLE_CARD]
    return SliceView(
        name=obj["metadata"]["name"],
        node=sys.intern(node),
        pool=sys.intern(pool.get("name", "")),
        generation=int(pool.get("generation") or 0),
        names=_same_names(frozenset(one["name"] for one in cards)),
        cards=CardsOnNode(
            total=len(cards),
            healthy=sum(not _is_failing(one) for one in cards),
            model=_model(cards),
            mib=max(map(_mib, cards), default=0),
        ),
    )


def extended_resource(obj: Object) -> str | None:
    """The resource by which pods request devices of a DeviceClass, as they request those of a
    device plugin; None if there is none."""
    name = obj["spec"].get("extendedResourceName")
    return str(name) if name else None


def newest(slices: Iterable[SliceView]) -> list[SliceView]:
    """The slices of the highest generation of each pool. The driver is about to delete the
    others."""
    known = list(slices)
    highest: dict[str, int] = {}
    for one in known:
        highest[one.pool] = max(one.generation, highest.get(one.pool, 0))
    return [one for one in known if one.generation == highest[one.pool]]


def cards_together(slices: Iterable[SliceView]) -> CardsOnNode | None:
    """The cards of all slices of a node; None if there are none."""
    found = [one.cards for one in newest(slices) if one.cards.total]
    if not found:
        return None
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


def _text(device: Json, attribute: str) -> str:
    return str(_named(device.get("attributes"), attribute).get("string") or "")


def _named(values: Json | None, name: str) -> Json:
    """The attribute or capacity of that name; one without a domain is in the driver's."""
    known = values or {}
    return known.get(name) or known.get(f"{DRA_DRIVER}/{name}") or {}


def _is_failing(device: Json) -> bool:
    return any(one.get("effect") in FAILING for one in device.get("taints") or ())


def _model(cards: Iterable[Json]) -> str:
    """The cards' model as GPU feature discovery writes it, which has `-` for blanks; empty if the
    cards are of several models."""
    found = {_text(one, "productName").replace(" ", "-") for one in cards}
    return sys.intern(found.pop()) if len(found) == 1 else ""


def _mib(card: Json) -> int:
    memory = _named(card.get("capacity"), "memory").get("value", 0)
    try:
        return parse_bytes(memory) // MIB
    except QuantityRefused:
        return 0
