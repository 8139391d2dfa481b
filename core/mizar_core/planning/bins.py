"""First fit: the first bin, in the order they were added, that has room and the right labels."""

from __future__ import annotations

from mizar_core.planning.snapshot import Pairs


class Bins:
    """Bins with free devices. Putting is amortised O(1) per distinct (selector, count).

    First fit rather than best fit, because taking away room that was left over changes nothing
    about who is placed where: reaping an idle shadow pod can't upset a placement.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._labels: list[Pairs] = []
        self._fitting: dict[Pairs, list[int]] = {}
        self._first: dict[tuple[Pairs, int], int] = {}

    def add(self, free: int, labels: Pairs) -> int:
        """A new last bin; returns its number."""
        number = len(self._free)
        self._free.append(free)
        self._labels.append(labels)
        for selector, fitting in self._fitting.items():
            if selector <= labels:
                fitting.append(number)
        return number

    def put(self, count: int, selector: Pairs) -> int | None:
        """Take `count` from the first bin that has so many and all of the selector's labels."""
        fitting = self._fitting_of(selector)
        position = self._first.get((selector, count), 0)
        # Room only ever shrinks, so bins that were too full for this count stay too full.
        while position < len(fitting) and self._free[fitting[position]] < count:
            position += 1
        self._first[selector, count] = position
        if position == len(fitting):
            return None
        self._free[fitting[position]] -= count
        return fitting[position]

    def left(self, number: int) -> int:
        """What is left in a bin."""
        return self._free[number]

    def _fitting_of(self, selector: Pairs) -> list[int]:
        fitting = self._fitting.get(selector)
        if fitting is None:
            fitting = [n for n, labels in enumerate(self._labels) if selector <= labels]
            self._fitting[selector] = fitting
        return fitting
