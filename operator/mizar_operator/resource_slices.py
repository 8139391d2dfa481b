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
from mizar_core.slice_devices import is_failing, is_whole_card, named, newest, text
from mizar_kube.kinds import Object
from mizar_operator.object_views import Json

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
    cards = [one for one in spec.get("devices") or () if is_whole_card(one)]
    return SliceView(
        name=obj["metadata"]["name"],
        node=sys.intern(node),
        pool=sys.intern(pool.get("name", "")),
        generation=int(pool.get("generation") or 0),
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


def _model(cards: Iterable[Json]) -> str:
    """The cards' model as GPU feature discovery writes it, which has `-` for blanks; empty if the
    cards are of several models."""
    found = {(text(one, "productName") or "").replace(" ", "-") for one in cards}
    return sys.intern(found.pop()) if len(found) == 1 else ""


def _mib(card: Json) -> int:
    memory = named(card.get("capacity"), "memory").get("value", 0)
    try:
        return parse_bytes(memory) // MIB
    except QuantityRefused:
        return 0
