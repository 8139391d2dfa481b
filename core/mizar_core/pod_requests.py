"""Counts the devices and cards that a pod requests: the only module that reads the limits and
requests of a pod's spec.

Webhook, operator and node agent all use it, so that no two of them count differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mizar_core.errors import QuantityRefused
from mizar_core.names import SPOT_RESOURCE, ParsedResource, parse_resource
from mizar_core.quantities import COUNT_MAX, bounded, parse_quantity

Spec = Mapping[str, Any]
"""A pod's spec, or a template's, as JSON; before validation anything may be missing in it."""

Aliases = Mapping[str, ParsedResource]
"""The aliases that pools give to their profiles, each with the resource that it stands for.
Admission translates them, so that no other part needs to know them."""

NO_ALIASES: Final[Aliases] = {}

CONTAINER_LISTS: Final = ("initContainers", "containers")
"""The lists of containers in the order in which they start. Ephemeral containers cannot request
anything, and a pod's own `resources` only CPU, memory and huge pages."""

SECTIONS: Final = ("limits", "requests")


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """One entry of one container's limits or requests."""

    container: str
    """The container's name."""

    path: tuple[str, ...]
    """Where the entry's map is in the pod spec: ("containers", "0", "resources", "limits")."""

    key: str
    amount: str

    @property
    def section(self) -> str:
        """Whether it is in "limits" or in "requests"."""
        return self.path[-1]

    @property
    def asks(self) -> bool:
        """Whether the amount is not 0, which charts write for none."""
        return self.amount != "0"

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Equal for an entry before and after an update that left it alone, wherever its container
        has moved."""
        return self.path[0], self.container, self.section, self.key, self.amount


@dataclass(frozen=True, slots=True)
class DeviceRequest(ResourceEntry):
    """An entry that names a profile's resource, in either spelling or by its alias."""

    parsed: ParsedResource


def resource_entries(spec: Spec) -> Iterator[ResourceEntry]:
    """All entries of the limits and requests in a pod's spec, whatever resource they name."""
    for kind in CONTAINER_LISTS:
        for at, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            for section in SECTIONS:
                path = (kind, str(at), "resources", section)
                for key, amount in (resources.get(section) or {}).items():
                    yield ResourceEntry(str(container.get("name", "")), path, key, str(amount))


def entry_count(spec: Spec) -> int:
    """The number of `resource_entries`, counted without looking at them."""
    found = (one.get("resources") or {} for kind in CONTAINER_LISTS for one in spec.get(kind) or ())
    return sum(len(one.get(section) or ()) for one in found for section in SECTIONS)


def device_requests(spec: Spec, aliases: Aliases = NO_ALIASES) -> list[DeviceRequest]:
    """The entries that name a profile's resource, in either spelling or by an alias."""
    return [
        DeviceRequest(entry.container, entry.path, entry.key, entry.amount, parsed)
        for entry in resource_entries(spec)
        if (parsed := aliases.get(entry.key) or parse_resource(entry.key))
    ]


def devices_requested(spec: Spec) -> dict[str, int]:
    """Devices per resource that the scheduler sets aside for a pod, sorted by resource."""
    return _requested(spec, _is_device)


def devices_after_init(spec: Spec) -> dict[str, int]:
    """Devices per resource that a pod's containers have once its init containers have ended."""
    sidecars = [
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    ]
    return _requested({"containers": [*sidecars, *(spec.get("containers") or ())]}, _is_device)


def cards_requested(spec: Spec) -> dict[str, int]:
    """Whole cards per physical resource that the scheduler sets aside for a pod: all extended
    resources that are not Mizar's, since any may be some pool's."""
    return _requested(spec, is_card)


def spot_cards_requested(spec: Spec) -> int:
    """Spot cards, lent by idle owners, that the scheduler sets aside for a pod."""
    return _requested(spec, lambda key: key == SPOT_RESOURCE).get(SPOT_RESOURCE, 0)


def is_card(key: str) -> bool:
    """Whether a resource may be one by which a device plugin hands out whole cards."""
    ours = parse_resource(key) is not None
    return "/" in key and not ours and not key.startswith("attachable-volumes")


def _requested(spec: Spec, is_wanted: Callable[[str], bool]) -> dict[str, int]:
    """The sum over the containers and sidecars (init containers that always restart), or the most
    that the init containers need at any moment, whichever is more:
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for kind in CONTAINER_LISTS:
        for container in spec.get(kind) or ():
            if kind == "containers" or container.get("restartPolicy") == "Always":
                running += _of(container, is_wanted)
                most |= running
            else:
                most |= running + _of(container, is_wanted)
    return dict(sorted(most.items()))


def _of(container: Mapping[str, Any], is_wanted: Callable[[str], bool]) -> Counter[str]:
    """The amount that one container requests of each wanted resource; as in Kubernetes, its limit
    if it has no request."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({key: whole_count(amount) for key, amount in asked.items() if is_wanted(key)})


def _is_device(key: str) -> bool:
    parsed = parse_resource(key)
    return parsed is not None and parsed.form == "slashed"


def is_countable(amount: str) -> bool:
    """Whether an amount is one that can be counted. The API server takes `1e30`, and the scheduler,
    whose numbers have 64 bits, then puts the pod onto a node that has nothing for it."""
    try:
        return parse_quantity(amount) <= COUNT_MAX
    except QuantityRefused:
        return False


def is_whole(amount: str) -> bool:
    """Whether a countable amount has no fraction: `1` and `1k`, but not `0.5` or `500m`."""
    found = parse_quantity(amount)
    # A remainder would have to be computed of a quotient that Decimal may be unable to hold.
    return found == found.to_integral_value()


def whole_count(amount: Any) -> int:
    """A count as the API server writes it, 1000 as `1k`, at most COUNT_MAX; 0 for what the API
    server would refuse."""
    text = str(amount)
    try:
        return bounded(int(parse_quantity(text)))
    except QuantityRefused:
        # The API server takes exponents of any length, and nothing that begins otherwise.
        return COUNT_MAX if text[:1].isdigit() else 0
