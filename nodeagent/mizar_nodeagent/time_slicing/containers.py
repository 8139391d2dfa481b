"""Derives the containers whose GPU time is sliced from the node's slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.time_slicing.container_files import Container


def containers_of(slots: Slots) -> Callable[[], Sequence[Container]]:
    """A function that returns the containers, for `TimeSlicer`, which calls it ten times a second.
    It returns the same list object until a slot changes, so that the caller can skip comparing."""
    seen: tuple[Slot, ...] = ()
    found: list[Container] = []

    def containers() -> list[Container]:
        nonlocal seen, found
        if (now := slots.by_age()) is not seen:
            seen, found = now, [Container(one.name, one.limits, one.usage) for one in now]
        return found

    return containers
