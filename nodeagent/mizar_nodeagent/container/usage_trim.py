"""Keeps usage files from filling the node's disk, by cutting off all that tenants add to them.

A usage file is the only file of the node that a tenant may write to. The agent can set no limit on
its size (docs/adr/0025-the-file-system-bounds-usage-files.md), so between two looks a tenant can
fill the free space of the disk.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent.container.slots import Notify, Slot, Slots
from mizar_nodeagent.regions import usage_file

log = get_logger(__name__)

EVERY_S: Final = 0.25
"""Seconds between two looks at all usage files. In that time a tenant can fill the free space of
the disk, so it is short."""
TELL_EVERY_S: Final = 60.0
"""Seconds between two events about one container."""


class UsageTrimmer:
    """Looks at all usage files every EVERY_S. `warn`: emits a warning event. `clock` returns
    monotonic seconds."""

    def __init__(
        self, slots: Slots, warn: Notify, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._warn = warn
        self._clock = clock
        self._told: dict[str, float] = {}
        self._failing: set[str] = set()

    async def run(self) -> None:
        """Trim for ever."""
        while True:
            await self.trim()
            await asyncio.sleep(EVERY_S)

    async def trim(self) -> None:
        """Trim all files once. An error with one file does not keep the others from being
        trimmed."""
        slots = self._slots.all()
        if not slots:
            return
        for slot, found in await asyncio.to_thread(lambda: list(self._trimmed(slots))):
            self._tell(slot, found)
        names = {slot.name for slot in slots}
        self._told = {name: at for name, at in self._told.items() if name in names}

    def _trimmed(self, slots: Iterable[Slot]) -> Iterable[tuple[Slot, str]]:
        for slot in slots:
            try:
                if found := _removed(slot.usage):
                    yield slot, found
                self._failing.discard(slot.name)
            except FileNotFoundError:  # the slot was removed meanwhile
                continue
            except OSError as error:
                if slot.name not in self._failing:
                    log.warning("a slot's usage cannot be trimmed", error=error, **slot.names)
                self._failing.add(slot.name)

    def _tell(self, slot: Slot, found: str) -> None:
        now = self._clock()
        if now - self._told.get(slot.name, float("-inf")) < TELL_EVERY_S:
            return
        self._told[slot.name] = now
        log.warning("the container fills the disk", message=found, **slot.names)
        if slot.owner is not None:
            self._warn(
                slot.owner,
                EventReason.ISOLATION_NOT_ENFORCED,
                f"container {slot.owner.container} {found}",
            )


def _removed(usage: Path) -> str:
    """Undo what a tenant did to the file. Returns a predicate about the container that says what it
    was, for a message; empty if there was nothing to undo. Raises OSError."""
    if excess := usage_file.truncate_excess(usage):
        return (
            f"added {excess >> 10} KiB to /run/mizar/usage, which would fill the node's disk: "
            "it is cut off"
        )
    try:
        count = usage_file.remove_attributes(usage)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        return (
            "gave /run/mizar/usage more extended attributes than can be listed, which may fill the "
            "node's disk, and stay until the pod is gone: delete it"
        )
    if not count:
        return ""
    return (
        f"gave /run/mizar/usage {count} extended attributes, which would fill the node's disk: "
        "they are removed"
    )
