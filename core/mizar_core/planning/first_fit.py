"""First fit: the first bin, in the order they were added, that has room and suits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mizar_core.planning.node_fit import NO_NEEDS, Needs, Pin

Kind = tuple[Needs, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Accepts:
    """Tells whether something, such as a node, serves a pod, by the pod's needs. `pins`: needs that
    have pins are accepted only if one of their pins is among these; None if any needs may be
    accepted."""

    judge: Callable[[Needs], bool]
    pins: frozenset[Pin] | None = None

    def __call__(self, needs: Needs) -> bool:
        return self.judge(needs)


class Bins:
    """Bins with free devices. `put` is amortised O(1) per distinct (needs, groups, count).

    Needs that name a few nodes are tried only on the bins of those nodes: a DaemonSet has a pod for
    each node, and each of its pods has needs of its own.

    First fit rather than best fit, since removing a bin that stayed empty changes no placement:
    reaping an idle shadow pod never moves a share pod elsewhere.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._suits: list[Accepts] = []
        self._groups: list[set[str]] = []
        self._numbers: defaultdict[Pin | None, list[int]] = defaultdict(list)
        self._needs: defaultdict[Pin | None, list[Needs]] = defaultdict(list)
        self._fitting: dict[Needs, list[int]] = {}
        self._first: dict[tuple[Kind, int], int] = {}

    def add(self, free: int, suits: Accepts, groups: Iterable[str] = ()) -> int:
        """Add a bin after all others, for pods whose needs it accepts and that are of no group in
        it already; returns its number."""
        number = len(self._free)
        self._free.append(free)
        self._suits.append(suits)
        self._groups.append(set(groups))
        for pin in (None,) if suits.pins is None else suits.pins:
            self._numbers[pin].append(number)
        for needs in self._needs_for(suits):
            if suits(needs):
                self._fitting[needs].append(number)
        return number

    def put(
        self, count: int, needs: Needs = NO_NEEDS, groups: frozenset[str] = frozenset()
    ) -> int | None:
        """Take `count` devices from the first bin that has so many, accepts the needs and has none
        of the groups in it; returns the bin's number, or None if there is none."""
        fitting, key = self._fitting_of(needs), ((needs, groups), count)
        position = self._first.get(key, 0)
        # Room only shrinks and groups only grow: a bin that did not fit never will.
        while position < len(fitting) and not self._has_room(fitting[position], count, groups):
            position += 1
        self._first[key] = position
        if position == len(fitting):
            return None
        number = fitting[position]
        self._free[number] -= count
        self._groups[number] |= groups
        return number

    def fill(self, number: int) -> None:
        """Leave no room in a bin."""
        self._free[number] = 0

    def left(self, number: int) -> int:
        """How many devices are left in a bin."""
        return self._free[number]

    def groups(self, number: int) -> frozenset[str]:
        """The anti-affinity groups of the pods in a bin."""
        return frozenset(self._groups[number])

    def _has_room(self, number: int, count: int, groups: frozenset[str]) -> bool:
        return self._free[number] >= count and not (groups and groups & self._groups[number])

    def _needs_for(self, suits: Accepts) -> Iterable[Needs]:
        """The needs seen so far that a bin may accept."""
        if suits.pins is None:
            return self._fitting
        found = (needs for pin in suits.pins for needs in self._needs.get(pin, ()))
        return dict.fromkeys([*self._needs[None], *found])

    def _fitting_of(self, needs: Needs) -> list[int]:
        if (fitting := self._fitting.get(needs)) is None:
            fitting = [one for one in self._numbers_for(needs) if self._suits[one](needs)]
            self._fitting[needs] = fitting
            for pin in needs.pins or (None,):
                self._needs[pin].append(needs)
        return fitting

    def _numbers_for(self, needs: Needs) -> Iterable[int]:
        """The bins that may accept the needs, in order."""
        if not needs.pins:
            return range(len(self._suits))
        found = (self._numbers.get(pin, ()) for pin in needs.pins)
        return sorted({*self._numbers[None]}.union(*found))
