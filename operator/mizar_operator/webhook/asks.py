"""What the containers of a pod spec ask for, as far as it looks like a share. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mizar_core.names import ParsedResource, parse_resource

Spec = dict[str, Any]

CONTAINER_LISTS = ("initContainers", "containers")
SECTIONS = ("limits", "requests")


@dataclass(frozen=True)
class Ask:
    """One entry of one container's limits or requests that names a profile's resource."""

    container: str
    """The container's name."""

    path: tuple[str, ...]
    """Where the map is, within the pod spec: ("containers", "0", "resources", "limits")."""

    key: str
    amount: str
    parsed: ParsedResource

    @property
    def section(self) -> str:
        """limits or requests."""
        return self.path[-1]

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """The same for an entry that an update has left alone, wherever its container moved."""
        return self.path[0], self.container, self.section, self.key, self.amount


def asks_of(spec: Spec) -> list[Ask]:
    """All entries of a pod spec that name a profile's resource, in either spelling."""
    return [
        Ask(name, path, key, str(amount), parsed)
        for name, path, resources in _maps(spec)
        for key, amount in resources.items()
        if (parsed := parse_resource(key))
    ]


def resources_of(spec: Spec) -> dict[str, set[str]]:
    """The names of all resources that each container asks for, by its name."""
    found: dict[str, set[str]] = {}
    for name, _, resources in _maps(spec):
        found.setdefault(name, set()).update(resources)
    return found


def _maps(spec: Spec) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """(container, path, map) of all limits and requests; the API server validates after us, so
    anything may be missing."""
    for kind in CONTAINER_LISTS:
        for at, container in enumerate(spec.get(kind) or []):
            resources = container.get("resources") or {}
            for section in SECTIONS:
                path = (kind, str(at), "resources", section)
                yield str(container.get("name", "")), path, resources.get(section) or {}
