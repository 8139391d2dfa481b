"""Reads the devices that NVIDIA's DRA driver names in ResourceSlices: which are whole cards or MIG
devices, and which may be given to pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from mizar_core.names import DRA_DRIVER, MIG_RESOURCE, PHYSICAL_RESOURCE

WHOLE_CARD: Final = "gpu"
"""The attribute `type` of whole cards; devices for virtual machines have `vfio`."""

MIG: Final = "mig"
"""The attribute `type` of MIG devices."""

FAILING: Final = frozenset({"NoSchedule", "NoExecute"})
"""The effects of taints that keep the scheduler from giving a device to further pods."""

Values = Mapping[str, Any]


class OfPool(Protocol):
    """A ResourceSlice, as far as its pool goes."""

    @property
    def pool(self) -> str:
        """The name of the pool."""

    @property
    def generation(self) -> int:
        """The pool's generation that the slice describes."""


S = TypeVar("S", bound=OfPool)


def newest(slices: Iterable[S]) -> list[S]:
    """The slices of the highest generation of each pool. The driver is about to delete the
    others."""
    known = list(slices)
    highest: dict[str, int] = {}
    for one in known:
        highest[one.pool] = max(one.generation, highest.get(one.pool, 0))
    return [one for one in known if one.generation == highest[one.pool]]


def named(values: Values | None, name: str) -> Values:
    """The attribute or capacity of that name; one without a domain is in the driver's."""
    known = values or {}
    return known.get(name) or known.get(f"{DRA_DRIVER}/{name}") or {}


def text(device: Values, attribute: str) -> str | None:
    """A string attribute of a device; None if it has none of that name."""
    found: str | None = named(device.get("attributes"), attribute).get("string")
    return found


def resource_of(device: Values) -> str | None:
    """The resource by which pods request the device, as NVIDIA's device plugin would offer it: a
    whole card or, by strategy mixed, a MIG device of this size. None for other devices, and for MIG
    devices that the driver would make on demand: these have no UUID yet."""
    kind = text(device, "type")
    if kind == WHOLE_CARD:
        return PHYSICAL_RESOURCE
    if kind != MIG or not text(device, "uuid") or not (profile := text(device, "profile")):
        return None
    return f"{MIG_RESOURCE}{profile.replace('+', '.')}"


def is_failing(device: Values) -> bool:
    """Whether a taint keeps further pods from the device."""
    return any(one.get("effect") in FAILING for one in device.get("taints") or ())
