"""Lists the files of a slot that its container mounts: the shim, and the files that it reads and
writes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mizar_nodeagent.container.shim_install import IN_CONTAINER, PRELOAD_IN_CONTAINER
from mizar_nodeagent.container.slots import Slot

LIMITS_IN_CONTAINER: Final = "/run/mizar/limits"
"""Path in the container of the file from which the shim reads its limits."""
USAGE_IN_CONTAINER: Final = "/run/mizar/usage"
"""Path in the container of the file in which the shim keeps the container's usage."""


class ShimMount(NamedTuple):
    """The mount of a single file, so that other files of its folder stay out of the container.
    `inside`: its path in the container. `outside`: its path on the node."""

    inside: str
    outside: Path
    read_only: bool


def shim_mounts(slot: Slot) -> Iterator[ShimMount]:
    """The mounts of the slot's container."""
    yield ShimMount(IN_CONTAINER, slot.library, True)
    yield ShimMount(LIMITS_IN_CONTAINER, slot.limits, True)
    yield ShimMount(USAGE_IN_CONTAINER, slot.usage, False)
    yield ShimMount(PRELOAD_IN_CONTAINER, slot.preload, True)


def missing(slot: Slot, mounted: list[tuple[str, str, bool]]) -> str | None:
    """A clause that names a file of the slot which a container does not have mounted, or has
    something else in place of; None if it has all. `mounted`: the container's mounts: path inside,
    path on the node, and whether it is read-only."""
    for want in shim_mounts(slot):
        there = [one for one in mounted if posixpath.normpath(one[0]) == want.inside]
        if not there:
            return f"{want.inside} is not mounted"
        if [(outside, read_only) for _, outside, read_only in there] != [
            (str(want.outside), want.read_only)
        ]:
            return f"{want.inside} is another file"
    return None
