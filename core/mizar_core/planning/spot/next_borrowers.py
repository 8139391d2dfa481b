"""Decides which spot pods borrow cards next: those that are released to the scheduler, in turns by
what their namespaces borrowed recently, as far as cards are lendable and quotas allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from mizar_core.names import SPOT_RESOURCE
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.snapshot import NodeView
from mizar_core.planning.spot.accounts import Accounts
from mizar_core.planning.spot.schedulers import Schedulers
from mizar_core.planning.spot.snapshot import SpotView

PATIENCE = timedelta(minutes=10)
"""How long a pod that requests several cards waits before cards are kept for it; until then, others
go first."""

Shape = tuple[Needs, int]
"""A pod's constraints on its node, and how many cards it requests."""


def is_impatient(spot: SpotView, now: datetime) -> bool:
    """Whether cards are kept for the pod until it can have all that it requests."""
    return spot.cards > 1 and now - spot.created >= PATIENCE


class Room:
    """The free cards of each node, as the scheduler counts: offered cards minus those of the pods
    there. `kept`: how many of them are kept for pods that request more."""

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
        self.kept: Counter[str] = Counter()
        self._full: set[Shape] = set()
        self._hopeless: set[Shape] = set()
        self._large: dict[Shape, list[str]] = {}

    @property
    def total(self) -> int:
        """Free cards of all nodes that are not kept for any pod."""
        return self.free_cards - self.kept.total()

    @property
    def free_cards(self) -> int:
        """Free cards of all nodes."""
        return sum(self.free.values())

    def place(self, spot: SpotView) -> bool:
        """Take the pod's cards from the fullest node where it can run. Returns whether there is
        one."""
        if not self.has_place(spot):
            return False
        found = [name for name in self.free if self._takes(name, spot)]
        self.free[min(found, key=lambda name: (self._left(name), name))] -= spot.cards
        return True

    def has_place(self, spot: SpotView) -> bool:
        """Whether a node where the pod can run has its cards free, none of them kept."""
        shape = spot.needs, spot.cards
        # Room only shrinks: where one pod finds none, another of the same shape finds none. A Job
        # may have thousands of them.
        if shape not in self._full and not any(self._takes(name, spot) for name in self.free):
            self._full.add(shape)
        return shape not in self._full

    def keep(self, spot: SpotView) -> None:
        """Keep the cards of the node that has the most for the pod."""
        shape = spot.needs, spot.cards
        if shape in self._hopeless or not (found := self._asleep(spot)):
            return
        name = min(found, key=lambda one: (-self._left(one), one))
        if left := self._left(name):
            self.kept[name] += left
        else:
            self._hopeless.add(shape)

    def will_have(self, spot: SpotView) -> bool:
        """Whether some node can give the pod all its cards once other borrowers there have ended:
        if no node has that many cards to lend, keeping cards for the pod would be in vain."""
        return bool(self._asleep(spot))

    def _asleep(self, spot: SpotView) -> list[str]:
        """The nodes that lend as many cards as the pod requests, in use or not."""
        shape = spot.needs, spot.cards
        if shape not in self._large:
            self._large[shape] = [
                name
                for name, node in self._nodes.items()
                if node.cards[SPOT_RESOURCE].healthy >= spot.cards and fits(spot.needs, node)
            ]
        return self._large[shape]

    def _takes(self, name: str, spot: SpotView) -> bool:
        return self._left(name) >= spot.cards and fits(spot.needs, self._nodes[name])

    def _left(self, name: str) -> int:
        return self.free[name] - self.kept[name]


def queues(spots: Iterable[SpotView]) -> dict[str, list[SpotView]]:
    """The pods of each namespace, in the order of their turns."""
    found: defaultdict[str, list[SpotView]] = defaultdict(list)
    for spot in spots:
        found[spot.namespace].append(spot)
    return {name: sorted(found[name], key=lambda one: one.order) for name in sorted(found)}


def take_turns(
    waiting: Iterable[SpotView],
    room: Room,
    accounts: Accounts,
    in_use: Counter[str],
    schedulers: Schedulers,
    now: datetime,
) -> list[SpotView]:
    """The pods whose turn it is, in order. `in_use`: cards of each namespace, to which theirs are
    added; `room` shrinks by them.

    A pod that fits nowhere now does not hold up others, until it is impatient.
    """

    def keeps(spot: SpotView) -> bool:
        allowed = spot.cards <= accounts.most(spot.namespace) and schedulers.reacts(spot)
        return allowed and is_impatient(spot, now) and room.will_have(spot)

    queue, granted, kept = queues(waiting), list[SpotView](), Counter[str]()
    while queue:
        name = min(queue, key=lambda one: (accounts.figure(one, in_use[one]), one))
        allowed = accounts.most(name) - in_use[name] - kept[name]
        spot, more = _next(queue, name, room, allowed, schedulers, keeps)
        kept[name] += more
        if spot is not None:
            in_use[name] += spot.cards
            schedulers.ask(spot)
            granted.append(spot)
    return granted


def _next(
    queue: dict[str, list[SpotView]],
    name: str,
    room: Room,
    allowed: int,
    schedulers: Schedulers,
    keeps: Callable[[SpotView], bool],
) -> tuple[SpotView | None, int]:
    """The namespace's next pod that finds room and is within the quota, or None; and how many cards
    of the quota are kept for pods before it, as the cards of a node are. That pod and those before
    it leave the queue; if there is no such pod, the namespace's queue is removed."""
    left, kept = queue[name], 0
    for at, spot in enumerate(left):
        fits_quota = spot.cards <= allowed - kept
        if fits_quota and schedulers.takes(spot) and room.place(spot):
            queue[name] = left[at + 1 :]
            return spot, kept
        if keeps(spot):
            if fits_quota:
                room.keep(spot)
            kept += spot.cards
    del queue[name]
    return None, kept
