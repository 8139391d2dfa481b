"""The containers whose time is sliced, by the node's slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.time_slicing.container_files import Container


def containers_of(slots: Slots) -> Callable[[], Sequence[Container]]:
    """What `TimeSlicer` asks ten times a second: the same list until a slot changes, so that it
    compares nothing meanwhile."""
    seen: tuple[Slot, ...] = ()
    found: list[Container] = []

    def containers() -> list[Container]:
        nonlocal seen, found
        if (now := slots.by_age()) is not seen:
            seen, found = now, [Container(one.name, one.limits, one.usage) for one in now]
        return found

    return containers
