"""Whose turn it is: the spot pods that the scheduler may have, by what their namespaces had of
late, as far as cards are lendable and quotas allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from mizar_core.names import SPOT_RESOURCE
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.snapshot import NodeView
from mizar_core.planning.spot.accounts import Accounts
from mizar_core.planning.spot.snapshot import SpotView


class Room:
    """The cards of each node that nobody has: what the node offers less what pods there have, as
    the scheduler counts."""

    def __init__(self, nodes: Iterable[NodeView], spots: Iterable[SpotView]) -> None:
        self._nodes = {
            one.name: one for one in nodes if one.available and SPOT_RESOURCE in one.cards
        }
        taken: Counter[str] = Counter()
        for spot in spots:
            if spot.node is not None:
                taken[spot.node] += spot.cards
        self.free = {
            name: max(0, node.cards[SPOT_RESOURCE].healthy - taken[name])
            for name, node in sorted(self._nodes.items())
        }
        self._full: set[tuple[Needs, int]] = set()

    @property
    def total(self) -> int:
        """Free cards of all nodes."""
        return sum(self.free.values())

    def place(self, spot: SpotView) -> bool:
        """Take the pod's cards from the fullest node where it can run; whether there is one."""
        shape = spot.needs, spot.cards
        # Room only shrinks: where one pod finds none, another of the same shape finds none.
        if shape in self._full:
            return False
        found = [name for name in self.free if self._takes(name, spot)]
        if not found:
            self._full.add(shape)
            return False
        self.free[min(found, key=lambda name: (self.free[name], name))] -= spot.cards
        return True

    def _takes(self, name: str, spot: SpotView) -> bool:
        return self.free[name] >= spot.cards and fits(spot.needs, self._nodes[name])


def queues(spots: Iterable[SpotView]) -> dict[str, list[SpotView]]:
    """The pods of each namespace, in the order of their turns."""
    found: defaultdict[str, list[SpotView]] = defaultdict(list)
    for spot in spots:
        found[spot.namespace].append(spot)
    return {name: sorted(found[name], key=lambda one: one.order) for name in sorted(found)}


def take_turns(
    waiting: Iterable[SpotView], room: Room, accounts: Accounts, in_use: Counter[str]
) -> list[SpotView]:
    """The pods whose turn it is, in order. `in_use`: cards of each namespace, to which theirs are
    added; `room` shrinks by them.

    A pod that fits nowhere now holds up no other.
    """
    queue, granted = queues(waiting), list[SpotView]()
    while queue:
        name = min(queue, key=lambda one: (accounts.figure(one, in_use[one]), one))
        spot = _next(queue, name, room, accounts.most(name) - in_use[name])
        if spot is not None:
            in_use[name] += spot.cards
            granted.append(spot)
    return granted


def _next(queue: dict[str, list[SpotView]], name: str, room: Room, allowed: int) -> SpotView | None:
    """The namespace's next pod that finds room and is allowed; it, and those before it, leave the
    queue, which goes when it is empty."""
    left = queue[name]
    for at, spot in enumerate(left):
        if spot.cards <= allowed and room.place(spot):
            queue[name] = left[at + 1 :]
            return spot
    del queue[name]
    return None
