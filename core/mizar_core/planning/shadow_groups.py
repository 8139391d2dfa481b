"""Shadow pods in groups: those of a resource, or of a quota."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from mizar_core.planning.snapshot import Key, ShadowView

G = TypeVar("G", bound=Hashable)


class ShadowGroups(Generic[G]):
    """Each group's shadow pods by name. A plan asks for the same group very often, and most groups
    do not change during the plan, so a group is sorted only once until it changes."""

    def __init__(self) -> None:
        self._members: defaultdict[G, dict[Key, ShadowView]] = defaultdict(dict)
        self._sorted: dict[G, tuple[ShadowView, ...]] = {}

    def __iter__(self) -> Iterator[G]:
        """The groups that are not empty."""
        return (group for group, members in self._members.items() if members)

    def put(self, group: G, key: Key, shadow: ShadowView) -> None:
        """Add a shadow pod to a group, in place of the one that has its key there."""
        self._members[group][key] = shadow
        self._sorted.pop(group, None)

    def drop(self, group: G, key: Key) -> None:
        """Remove a shadow pod from a group."""
        self._members[group].pop(key, None)
        self._sorted.pop(group, None)

    def of(self, group: G) -> tuple[ShadowView, ...]:
        """The group's shadow pods, by name."""
        found = self._sorted.get(group)
        if found is None:
            members = self._members.get(group, {})
            found = self._sorted[group] = tuple(members[key] for key in sorted(members))
        return found
