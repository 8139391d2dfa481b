"""Chooses the devices that a container should get: the answer to the kubelet's
GetPreferredAllocation.

It prefers one shadow pod rather than several, one card rather than several, one NUMA node rather
than several, and shadow pods that are partly used before idle ones, so that idle ones stay idle and
can give their cards back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from mizar_core.device_ids import DeviceID, Shape, card_of
from mizar_core.errors import PlacementRefused

Shadow = tuple[str, str]
"""Namespace and name of a shadow pod."""

Numa = Callable[[DeviceID], Collection[int]]
"""The NUMA nodes that a device's card is near to; none where they are not known."""

_K = TypeVar("_K", bound=Hashable)


def preferred(
    available: Iterable[DeviceID],
    must_include: Collection[DeviceID],
    size: int,
    shapes: Mapping[Shadow, Shape],
    held: Collection[DeviceID] = (),
    numa: Numa = lambda device: (),
) -> tuple[DeviceID, ...]:
    """`size` devices among `available`, all of `must_include` among them, sorted.

    `shapes` tells which device lies on which card; devices of an unknown shadow pod count as on one
    card. `held` are the devices that containers have now. The order of the input makes no
    difference. Raises PlacementRefused if there are too few devices or the request contradicts
    itself.
    """
    free, fixed = set(available), set(must_include)
    _check(free, fixed, size)
    choice = _Choice(free - fixed, _Known(fixed, set(held), shapes), numa)
    return tuple(sorted(choice.best(size - len(fixed))))


def _check(free: set[DeviceID], fixed: set[DeviceID], size: int) -> None:
    if not fixed <= free:
        raise PlacementRefused("a device that must be included is not available")
    if not len(fixed) <= size <= len(free):
        raise PlacementRefused(
            f"{size} devices were asked for, {len(free)} are available, {len(fixed)} are fixed"
        )


@dataclass(frozen=True)
class _Known:
    """The facts that are the same for every choice. `fixed`: devices that the container gets in any
    case; `held`: devices that any container holds."""

    fixed: set[DeviceID]
    held: set[DeviceID]
    shapes: Mapping[Shadow, Shape]

    def card(self, device: DeviceID) -> tuple[Shadow, int]:
        """The card that a device lies on."""
        shape = self.shapes.get(_shadow(device))
        known = shape is not None and device.index < shape.devices
        return _shadow(device), card_of(device.index, shape) if shape and known else 0

    # Cached, since each group of devices is compared with them.

    @cached_property
    def shadows_in_use(self) -> tuple[set[Shadow], set[Shadow]]:
        """The shadow pods of the fixed devices, and of those that are held."""
        return set(map(_shadow, self.fixed)), set(map(_shadow, self.held))

    @cached_property
    def cards_in_use(self) -> tuple[set[tuple[Shadow, int]], set[tuple[Shadow, int]]]:
        """The cards of the fixed devices, and of those that are held."""
        return set(map(self.card, self.fixed)), set(map(self.card, self.held))


@dataclass(frozen=True)
class _Choice:
    """The devices to choose from, and the facts that the choice depends on."""

    free: set[DeviceID]
    known: _Known
    numa: Numa

    def best(self, need: int) -> set[DeviceID]:
        """All devices that the container gets, the fixed ones and `need` chosen ones: chosen from
        all free devices, or from those of one NUMA node if that takes no more shadow pods and
        cards."""
        nodes = sorted({node for one in self.free for node in self.numa(one)})
        near = [{one for one in self.free if node in (self.numa(one) or nodes)} for node in nodes]
        choices = [self, *(replace(self, free=some) for some in near if len(some) >= need)]
        fixed = self.known.fixed
        return min((fixed | one.over_shadows(need) for one in choices), key=self._spread)

    def _spread(self, chosen: set[DeviceID]) -> tuple[int, int, int]:
        """How many shadow pods, cards and NUMA nodes the devices are spread over."""
        numa = {node for one in chosen for node in self.numa(one)}
        cards = {self.known.card(one) for one in chosen}
        return len({_shadow(one) for one in chosen}), len(cards), len(numa)

    def over_shadows(self, need: int) -> set[DeviceID]:
        """`need` devices from the fewest shadow pods."""
        groups = _grouped(self.free, _shadow)

        def cards(shadow: Shadow, some: int) -> int:
            return len({self.known.card(one) for one in self.over_cards(groups[shadow], some)})

        counts = _share_out(groups, need, self.known.shadows_in_use, cards)
        chosen = (self.over_cards(groups[shadow], some) for shadow, some in counts.items())
        return set().union(*chosen)

    def over_cards(self, devices: list[DeviceID], need: int) -> set[DeviceID]:
        """`need` of one shadow pod's devices from the fewest cards, the lowest indices first."""
        groups = _grouped(devices, self.known.card)
        counts = _share_out(groups, need, self.known.cards_in_use, lambda _card, _some: 1)
        return {one for card, some in counts.items() for one in groups[card][:some]}


def _shadow(device: DeviceID) -> Shadow:
    return (device.namespace, device.shadow)


def _grouped(
    devices: Iterable[DeviceID], key: Callable[[DeviceID], _K]
) -> dict[_K, list[DeviceID]]:
    """The devices by their key, the lowest first."""
    groups: dict[_K, list[DeviceID]] = defaultdict(list)
    for one in sorted(devices):
        groups[key(one)].append(one)
    return dict(groups)


def _share_out(
    groups: Mapping[_K, list[DeviceID]],
    need: int,
    known: tuple[set[_K], set[_K]],
    cards: Callable[[_K, int], int],
) -> dict[_K, int]:
    """How many devices to take of each group, so that the container gets devices of the fewest
    groups.

    Groups of its fixed devices come first. Then, as long as no group has enough, the largest; then,
    of those that have enough, the group with the fewest cards; a group in use before an idle one;
    the tightest fit.
    """
    started, used = known
    rest = {key: len(devices) for key, devices in groups.items()}
    taken: dict[_K, int] = {}

    def rank(key: _K) -> tuple[Any, ...]:
        free = rest[key]
        fit = (0, cards(key, need), key not in used) if free >= need else (1, -free, False)
        return (key not in started, *fit, free, key)

    while need:
        key = min(rest, key=rank)
        taken[key] = min(rest.pop(key), need)
        need -= taken[key]
    return taken
