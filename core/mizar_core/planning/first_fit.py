"""First fit: the first bin, in the order they were added, that has room and suits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mizar_core.planning.node_fit import NO_NEEDS, Needs

Accepts = Callable[[Needs], bool]
Kind = tuple[Needs, frozenset[str]]


class Bins:
    """Bins with free devices. `put` is amortised O(1) per distinct (needs, groups, count).

    First fit rather than best fit, since removing a bin that stayed empty changes no placement:
    reaping an idle shadow pod never moves a share pod elsewhere.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._suits: list[Accepts] = []
        self._groups: list[set[str]] = []
        self._fitting: dict[Needs, list[int]] = {}
        self._first: dict[tuple[Kind, int], int] = {}

    def add(self, free: int, suits: Accepts, groups: Iterable[str] = ()) -> int:
        """Add a bin after all others, for pods whose needs it accepts and that are of no group in
        it already; returns its number."""
        number = len(self._free)
        self._free.append(free)
        self._suits.append(suits)
        self._groups.append(set(groups))
        for needs, fitting in self._fitting.items():
            if suits(needs):
                fitting.append(number)
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

    def left(self, number: int) -> int:
        """How many devices are left in a bin."""
        return self._free[number]

    def groups(self, number: int) -> frozenset[str]:
        """The anti-affinity groups of the pods in a bin."""
        return frozenset(self._groups[number])

    def _has_room(self, number: int, count: int, groups: frozenset[str]) -> bool:
        return self._free[number] >= count and not (groups and groups & self._groups[number])

    def _fitting_of(self, needs: Needs) -> list[int]:
        fitting = self._fitting.get(needs)
        if fitting is None:
            fitting = [n for n, suits in enumerate(self._suits) if suits(needs)]
            self._fitting[needs] = fitting
        return fitting
