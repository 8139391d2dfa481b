"""Computes a container's limits on its cards from the carvings of its devices, and describes them
as text. prestart.py and limits_update.py write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mizar_core.carve import CardLimit, limits_for
from mizar_core.device_ids import DeviceID, card_of
from mizar_core.errors import CarveRefused
from mizar_core.models import Isolation
from mizar_core.names import EventReason
from mizar_core.quantities import WHOLE_CARD, binary
from mizar_nodeagent.errors import StartRefused
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.pods import Key, Pod

LOWEST_PRIORITY = -(1 << 31)
"""The lowest priority that Kubernetes permits."""

DeviceGroup = tuple[Carving, Sequence[DeviceID]]
"""The carving of a shadow pod, and the devices of it that a container has."""


@dataclass(frozen=True)
class ContainerLimits:
    """The limits of a container. `cards`: the limit on each card. `physical`: bytes of memory of
    each whole card, by UUID. `contexts`: bytes of a CUDA context on each card, by UUID; 0 if
    unknown."""

    cards: tuple[CardLimit, ...]
    physical: Mapping[str, int]
    contexts: Mapping[str, int]


def wants_shim(isolation: Isolation) -> bool:
    """Whether containers get the shim: not with backend None, which sets no limits."""
    return isolation.backend in ("Auto", "Shim")


def unenforced(isolation: Isolation) -> str | None:
    """A sentence that says which isolation the quota asks for and the agent cannot enforce; None if
    there is none."""
    problem = isolation.contradiction
    return None if problem is None else f"isolation: {problem}"


def by_shadow_pod(ids: Iterable[str]) -> list[list[DeviceID]]:
    """The devices in order, grouped by shadow pod. Raises DeviceIDRefused."""
    groups: dict[tuple[str, str], list[DeviceID]] = {}
    for device in sorted(DeviceID.parse(one) for one in ids):
        groups.setdefault((device.namespace, device.shadow), []).append(device)
    return list(groups.values())


def grouped(carvings: Iterable[Carving], devices: Iterable[DeviceID]) -> list[DeviceGroup]:
    """The devices with their carvings, grouped by carving."""
    groups: dict[Key, tuple[Carving, list[DeviceID]]] = {}
    for carving, device in zip(carvings, devices, strict=True):
        groups.setdefault(carving.key, (carving, []))[1].append(device)
    return list(groups.values())


def container_limits(
    groups: Iterable[DeviceGroup], priority: int, context_bytes: Callable[[str], int] = lambda _: 0
) -> ContainerLimits:
    """The limits of a container with these devices. `priority`: 0 is the lowest. `context_bytes`:
    returns the bytes of a CUDA context on the card with this UUID. Raises StartRefused if the
    limits cannot be enforced."""
    found: list[CardLimit] = []
    physical: dict[str, int] = {}
    for carving, devices in groups:
        if problem := unenforced(carving.carve.isolation):
            raise StartRefused(problem, EventReason.ISOLATION_NOT_ENFORCED)
        found.extend(replace(one, priority=priority) for one in _limits(carving, devices))
        physical.update({card.uuid: card.memory_bytes for card in carving.cards})
    return ContainerLimits(tuple(found), physical, {uuid: context_bytes(uuid) for uuid in physical})


def priority_of(pod: Pod | None) -> int:
    """The pod's priority, shifted so that the lowest possible is 0."""
    return (pod.priority if pod else 0) - LOWEST_PRIORITY


def describe_limits(container: str, groups: Iterable[DeviceGroup], found: ContainerLimits) -> str:
    """A clause that describes a container's devices and limits, for an event."""
    shadows = sorted({devices[0].shadow for _, devices in groups})
    wanted = _wanted(groups)
    cards = "; ".join(
        f"card {one.uuid}: {_memory(one)}{_less(one, wanted.get(one.uuid))}, {_compute(one)}"
        for one in found.cards
    )
    return f"container {container} has devices of shadow pod {', '.join(shadows)}: {cards}"


def gets_less(groups: Iterable[DeviceGroup], found: ContainerLimits) -> bool:
    """Whether a container gets less memory of a card than the profile says."""
    wanted = _wanted(groups)
    return any(_less(one, wanted.get(one.uuid)) for one in found.cards)


def _wanted(groups: Iterable[DeviceGroup]) -> dict[str, tuple[int, int]]:
    """For each card, by UUID, the number of devices on it and the bytes that the profile names for
    each of them. Cards whose profile names none are left out."""
    found = {}
    for carving, devices in groups:
        held = Counter(card_of(one.index, carving.carve) for one in devices)
        if carving.carve.memory is not None:
            found.update(
                {carving.cards[card].uuid: (n, carving.carve.memory) for card, n in held.items()}
            )
    return found


def _less(one: CardLimit, wanted: tuple[int, int] | None) -> str:
    """A remark if the limit is less than the profile says; empty otherwise."""
    if wanted is None or one.memory_bytes >= wanted[0] * wanted[1]:
        return ""
    times = f"{wanted[0]} times " if wanted[0] > 1 else ""
    return f" (less than {times}the profile's {binary(wanted[1])}: the card is smaller)"


def describe_changes(before: Iterable[CardLimit], after: Iterable[CardLimit]) -> str:
    """A text with the differences of limits that matter to people, card by card; empty if there are
    none."""
    was = {one.uuid: one for one in before}
    found = []
    for one in after:
        texts = list(_changed(was[one.uuid], one)) if one.uuid in was else [f"new: {_all(one)}"]
        if texts:
            found.append(f"card {one.uuid}: {', '.join(texts)}")
    return "; ".join(found)


def _limits(carving: Carving, devices: Sequence[DeviceID]) -> tuple[CardLimit, ...]:
    try:
        return limits_for(carving.carve, carving.cards, [one.index for one in devices])
    except CarveRefused as error:
        raise StartRefused(str(error), EventReason.ISOLATION_NOT_ENFORCED) from error


def _changed(was: CardLimit, now: CardLimit) -> Iterable[str]:
    for text in (_memory, _compute):
        if (before := text(was)) != (after := text(now)):
            yield f"{before} → {after}"


def _all(one: CardLimit) -> str:
    return f"{_memory(one)}, {_compute(one)}"


def _memory(one: CardLimit) -> str:
    return f"memory {one.memory_bytes >> 20} MiB ({one.memory_mode})"


def _compute(one: CardLimit) -> str:
    if one.compute_mode == "None":
        return "compute not limited"
    return f"compute {100 * one.core_share / WHOLE_CARD:g} % ({one.compute_mode})"
