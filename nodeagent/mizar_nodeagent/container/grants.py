"""What a container may take of its cards, by the carvings of its devices, and as words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mizar_core.carve import CardLimit, limits_for
from mizar_core.device_ids import DeviceID
from mizar_core.errors import CarveRefused
from mizar_core.names import EventReason
from mizar_core.quantities import WHOLE_CARD
from mizar_nodeagent.errors import StartRefused
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.isolation import unenforced
from mizar_nodeagent.pods import Pod

LOWEST_PRIORITY = -(1 << 31)
"""That Kubernetes lets a pod have."""

Part = tuple[Carving, Sequence[DeviceID]]
"""Devices of one shadow pod."""


@dataclass(frozen=True)
class Grant:
    """A container's limits, one per card; by its UUID the bytes of each card, and of a context on
    it (0: not known)."""

    cards: tuple[CardLimit, ...]
    physical: Mapping[str, int]
    contexts: Mapping[str, int]


def by_shadow_pod(ids: Iterable[str]) -> list[list[DeviceID]]:
    """The devices, those of one shadow pod together, in order. Raises DeviceIDRefused."""
    groups: dict[tuple[str, str], list[DeviceID]] = {}
    for device in sorted(DeviceID.parse(one) for one in ids):
        groups.setdefault((device.namespace, device.shadow), []).append(device)
    return list(groups.values())


def grant(
    parts: Iterable[Part], priority: int, context_bytes: Callable[[str], int] = lambda _: 0
) -> Grant:
    """What a container with these devices may take. `context_bytes`: what a context costs on the
    card of that UUID. Raises StartRefused where that cannot be enforced."""
    found: list[CardLimit] = []
    physical: dict[str, int] = {}
    for carving, devices in parts:
        if problem := unenforced(carving.carve.isolation):
            raise StartRefused(problem, EventReason.ISOLATION_NOT_ENFORCED)
        found.extend(replace(one, priority=priority) for one in _limits(carving, devices))
        physical.update({card.uuid: card.memory_bytes for card in carving.cards})
    return Grant(tuple(found), physical, {uuid: context_bytes(uuid) for uuid in physical})


def priority_of(pod: Pod | None) -> int:
    """The pod's, moved so that the lowest there can be is 0."""
    return (pod.priority if pod else 0) - LOWEST_PRIORITY


def granted(container: str, parts: Iterable[Part], found: Grant) -> str:
    """What the container has got, for a person."""
    shadows = sorted({devices[0].shadow for _, devices in parts})
    cards = "; ".join(f"card {one.uuid}: {_all(one)}" for one in found.cards)
    return f"container {container} has devices of shadow pod {', '.join(shadows)}: {cards}"


def changes(before: Iterable[CardLimit], after: Iterable[CardLimit]) -> str:
    """What differs, card by card, for a person; empty where nothing does that they care for."""
    was = {one.uuid: one for one in before}
    found = []
    for one in after:
        words = list(_changed(was[one.uuid], one)) if one.uuid in was else [f"new: {_all(one)}"]
        if words:
            found.append(f"card {one.uuid}: {', '.join(words)}")
    return "; ".join(found)


def _limits(carving: Carving, devices: Sequence[DeviceID]) -> tuple[CardLimit, ...]:
    try:
        return limits_for(carving.carve, carving.core_cards, [one.index for one in devices])
    except CarveRefused as error:
        raise StartRefused(str(error), EventReason.ISOLATION_NOT_ENFORCED) from error


def _changed(was: CardLimit, now: CardLimit) -> Iterable[str]:
    for words in (_memory, _compute):
        if (before := words(was)) != (after := words(now)):
            yield f"{before} → {after}"


def _all(one: CardLimit) -> str:
    return f"{_memory(one)}, {_compute(one)}"


def _memory(one: CardLimit) -> str:
    return f"memory {one.memory_bytes >> 20} MiB ({one.memory_mode})"


def _compute(one: CardLimit) -> str:
    if one.compute_mode == "None":
        return "compute not limited"
    return f"compute {100 * one.core_share / WHOLE_CARD:g} % ({one.compute_mode})"
