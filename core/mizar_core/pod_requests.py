"""What a pod asks for: the one place that reads the limits and requests of a pod's spec.

Webhook, operator and node agent all ask here, so that no two of them count differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mizar_core.errors import QuantityRefused
from mizar_core.names import ParsedResource, parse_resource
from mizar_core.quantities import parse_quantity

Spec = Mapping[str, Any]
"""A pod's spec, or a template's, as JSON; before validation anything may be missing in it."""

CONTAINER_LISTS: Final = ("initContainers", "containers")
"""In the order in which they start. Ephemeral containers cannot ask for anything, and a pod's own
`resources` only for CPU, memory and huge pages."""

SECTIONS: Final = ("limits", "requests")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of one container's limits or requests."""

    container: str
    """The container's name."""

    path: tuple[str, ...]
    """Where the map is, within the pod spec: ("containers", "0", "resources", "limits")."""

    key: str
    amount: str

    @property
    def section(self) -> str:
        """limits or requests."""
        return self.path[-1]

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """The same for an entry that an update has left alone, wherever its container moved."""
        return self.path[0], self.container, self.section, self.key, self.amount


@dataclass(frozen=True, slots=True)
class Ask(Entry):
    """An entry that names a profile's resource, in either spelling."""

    parsed: ParsedResource


def entries_of(spec: Spec) -> Iterator[Entry]:
    """All entries of a pod's spec, whatever they name."""
    for kind in CONTAINER_LISTS:
        for at, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            for section in SECTIONS:
                path = (kind, str(at), "resources", section)
                for key, amount in (resources.get(section) or {}).items():
                    yield Entry(str(container.get("name", "")), path, key, str(amount))


def asks_of(spec: Spec) -> list[Ask]:
    """The entries that name a profile's resource, in either spelling."""
    return [
        Ask(entry.container, entry.path, entry.key, entry.amount, parsed)
        for entry in entries_of(spec)
        if (parsed := parse_resource(entry.key))
    ]


def devices_asked(spec: Spec) -> dict[str, int]:
    """Devices per resource that the scheduler sets aside for a pod, sorted by resource."""
    return _asked(spec, _is_device)


def devices_kept(spec: Spec) -> dict[str, int]:
    """Devices per resource that a pod's containers have once its init containers have ended."""
    sidecars = [
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    ]
    return _asked({"containers": [*sidecars, *(spec.get("containers") or ())]}, _is_device)


def cards_asked(spec: Spec) -> dict[str, int]:
    """Whole cards per physical resource that the scheduler sets aside for a pod: all extended
    resources that are not Mizar's, since any may be some pool's."""
    return _asked(spec, is_card)


def is_card(key: str) -> bool:
    """Whether a resource may be one by which a device plugin hands out whole cards."""
    ours = parse_resource(key) is not None
    return "/" in key and not ours and not key.startswith("attachable-volumes")


def _asked(spec: Spec, is_wanted: Callable[[str], bool]) -> dict[str, int]:
    """The containers' sum, sidecars (init containers that always restart) included, or what the
    init containers need at some moment, whichever is more:
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
    """A request says what counts; where there is none, the limit does."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Counter({key: _whole(amount) for key, amount in asked.items() if is_wanted(key)})


def _is_device(key: str) -> bool:
    parsed = parse_resource(key)
    return parsed is not None and parsed.form == "slashed"


def _whole(amount: Any) -> int:
    """A count as the API server writes it, 1000 as `1k`; it lets through nothing that is none."""
    try:
        return int(parse_quantity(str(amount)))
    except QuantityRefused:
        return 0
