"""Detects work of owners with the shim from their containers' usage files: when a container last
asked for GPU time, took memory, or copied."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import usage_snapshot
from mizar_nodeagent.regions.usage_snapshot import CardActivity
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, Source
from mizar_nodeagent.spot.owners import CardOwner

log = get_logger(__name__)

NS: Final = 1_000_000_000
"""Nanoseconds in a second."""
QUIET_S: Final = 0.3
"""Seconds after its last work for which a container counts as working."""


@dataclass(frozen=True)
class _Read:
    """A usage file at the last look. `raw`: its bytes. `cards`: the activity on each card, parsed
    from them. `worked`: when a look last found new activity (monotonic seconds)."""

    raw: bytes
    cards: tuple[CardActivity, ...]
    worked: float = -math.inf

    @cached_property
    def wanted(self) -> float:
        """When GPU time was last asked for on any card (monotonic seconds); 0: never."""
        return max(one.wanted_at for one in self.cards) / NS


class UsageDetector:
    """Reports whether owners with the shim work. Owners without it are always reported IDLE."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}

    def look(
        self, found: Collection[CardOwner], slots: Iterable[Slot], now: float
    ) -> Iterable[OwnerEvent]:
        """Yield for each owner BUSY, or IDLE since it last worked. `slots`: the slots in use.
        `now`: monotonic seconds."""
        times: dict[Key, list[float]] = {owner.pod.key: [-math.inf] for owner in found}
        before, self._read = self._read, {}
        for slot in slots:
            key = (slot.owner.namespace, slot.owner.pod) if slot.owner else None
            if key in times:
                times[key].append(self._last_work(slot, before.get(slot.name), now))
        for owner in found:
            last = max(times[owner.pod.key])
            works = now - last < QUIET_S
            activity = Activity.BUSY if works else Activity.IDLE
            yield OwnerEvent(activity, owner.pod, owner.cards, last, Source.USAGE)

    def woke(
        self,
        names: Collection[str],
        found: Iterable[CardOwner],
        slots: Mapping[str, Slot],
        now: float,
    ) -> Iterable[OwnerEvent]:
        """Yield BUSY for each owner that has a container whose slot is among `names`. `slots`: the
        node's slots by name. `now`: monotonic seconds."""
        pods = {
            (slot.owner.namespace, slot.owner.pod)
            for name in names
            if (slot := slots.get(name)) is not None and slot.owner is not None
        }
        for owner in found:
            if owner.pod.key in pods:
                yield OwnerEvent(Activity.BUSY, owner.pod, owner.cards, now, Source.USAGE)

    def _last_work(self, slot: Slot, before: _Read | None, now: float) -> float:
        """When the container last worked according to its usage file (monotonic seconds)."""
        try:
            raw = usage_snapshot.activity_bytes(slot.usage)
        except (OSError, RegionDamaged) as error:
            # An owner with a damaged file counts as working, so its card is not lent.
            log.debug("a usage file does not show whether its container works", error=error)
            return now
        found = self._read[slot.name] = _compared(raw, before, now)
        return max(found.worked, min(found.wanted, now) if found.wanted else -math.inf)


def _compared(raw: bytes, before: _Read | None, now: float) -> _Read:
    """The file at this look. An idle container does not change a byte of it, so unchanged bytes are
    not parsed again."""
    if before is not None and raw == before.raw:
        return before
    cards = usage_snapshot.card_activity(raw)
    if before is None:
        return _Read(raw, cards)
    works = any(map(_works, before.cards, cards))
    return _Read(raw, cards, now if works else before.worked)


def _works(before: CardActivity, now: CardActivity) -> bool:
    """Whether the container worked on a card between two looks. Freeing memory is no work: an owner
    that ends needs nothing."""
    if usage_snapshot.takes_memory(before.memory, now.memory):
        return True
    return replace(now, memory=before.memory) != before
