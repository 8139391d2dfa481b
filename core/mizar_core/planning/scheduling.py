"""A pot: all devices of one resource, since the scheduler can't tell whose shadow pods they are
from. How many are free on which node, and which share pod would find room where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from mizar_core.names import parse_resource, tenant_of
from mizar_core.planning.draft import Draft
from mizar_core.planning.first_fit import Bins, Suits
from mizar_core.planning.node_fit import fits
from mizar_core.planning.shadow_stage import UNPLACED, Stage
from mizar_core.planning.snapshot import Key, ShadowView, ShareView


class Spot(Enum):
    """Where a waiting share pod finds its devices."""

    NOW = auto()
    """They are free on a node."""
    COMING = auto()
    """They are on their way."""
    STUCK = auto()
    """They would be, if the API server let the shadow pod in and the scheduler found cards."""
    PASSED = auto()
    """They are free, on nodes that the scheduler refuses it."""
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """A spot, the shadow pod it depends on where that has no node yet, and the node that the
    scheduler refuses."""

    spot: Spot
    shadow: Key | None = None
    node: str | None = None


@dataclass(slots=True)
class Room:
    """Devices of one node: offered now, offered soon as well, and asked for by bound pods."""

    offered: int = 0
    coming: int = 0
    bound: int = 0

    @property
    def free(self) -> int:
        """As the scheduler counts: offered minus requests, whoever holds what."""
        return max(0, self.offered - self.bound)

    @property
    def soon(self) -> int:
        """Free once those on their way are there."""
        return max(0, self.offered + self.coming - self.bound)


@dataclass
class Placement:
    """Who finds room where. `pot`: what there is. `left_now`, `left_soon`: devices that nobody
    needs, per node."""

    pot: dict[str, Room] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    left_now: Counter[str] = field(default_factory=Counter)
    left_soon: Counter[str] = field(default_factory=Counter)
    relied_on: set[Key] = field(default_factory=set)


def is_admitted(draft: Draft, share: ShareView) -> bool:
    """Whether the pod asks for what its namespace may ask for at all."""
    parsed = parse_resource(share.resource)
    if parsed is None:
        return False
    for pool in draft.pools.values():
        if pool.spec.tenancy == "Shared" and parsed.prefix == pool.spec.resource_prefix:
            return True
        if tenant_of(parsed.prefix, pool.spec.resource_prefix) == share.namespace:
            return True
    return False


def rooms(draft: Draft, resource: str) -> dict[str, Room]:
    """The devices of the pot on each node that the scheduler may use, by the node's name."""
    found: dict[str, Room] = {}
    for shadow in draft.of_resource(resource):
        node = draft.nodes.get(shadow.place or "")
        if node is None or not node.available:
            continue
        stage = draft.stages[shadow.key]
        if stage is Stage.READY:
            found.setdefault(node.name, Room()).offered += shadow.healthy
        elif stage is Stage.STARTING:
            found.setdefault(node.name, Room()).coming += shadow.devices
    for name, room in found.items():
        room.bound = sum(one.count for one in draft.bound.get((name, resource), []))
    return {name: found[name] for name in sorted(found)}


def place(draft: Draft, resource: str, waiting: Iterable[ShareView]) -> Placement:
    """Simulate the scheduler: free devices first, then those on their way, then those stuck.

    A pod's devices must all be on one node. Whoever finds none keeps a place on a node that the
    scheduler refuses it, should it think better of it.
    """
    pot = rooms(draft, resource)
    placement = Placement(pot)
    bins, names = Bins(), list(pot)
    for name in names:
        bins.add(pot[name].free, _to_node(draft, name), draft.groups(name, resource))
    rest = _onto_free(bins, list(waiting), placement)
    rest = _onto_coming(draft, resource, (bins, pot), rest, placement)
    rest = _onto_stuck(draft, resource, rest, placement)
    for share in rest:
        placement.places[share.uid] = _onto_passed(bins, names, share)
    for number, name in enumerate(names):
        placement.left_now[name] = bins.left(number)
    return placement


def _to_node(draft: Draft, name: str) -> Suits:
    node = draft.nodes[name]
    return lambda needs: fits(needs, node)


def _onto_free(bins: Bins, waiting: list[ShareView], placement: Placement) -> list[ShareView]:
    rest = []
    for share in waiting:
        if bins.put(share.count, share.needs, share.groups) is None:
            rest.append(share)
        else:
            placement.places[share.uid] = Place(Spot.NOW)
    return rest


def _onto_passed(bins: Bins, names: list[str], share: ShareView) -> Place:
    if not share.needs.not_on:
        return Place(Spot.NOWHERE)
    anywhere = replace(share.needs, not_on=frozenset())
    number = bins.put(share.count, anywhere, share.groups)
    return Place(Spot.NOWHERE) if number is None else Place(Spot.PASSED, node=names[number])


def _onto_coming(
    draft: Draft,
    resource: str,
    free: tuple[Bins, dict[str, Room]],
    waiting: list[ShareView],
    placement: Placement,
) -> list[ShareView]:
    bins, (before, pot) = Bins(), free
    for number, (name, room) in enumerate(pot.items()):
        left = max(0, room.soon - (room.free - before.left(number)))
        bins.add(left, _to_node(draft, name), before.groups(number))
    shadows = _unplaced(draft, resource, stuck=False)
    rest = _onto_shadows(draft, bins, shadows, waiting, placement, Spot.COMING)
    for number, name in enumerate(pot):
        placement.left_soon[name] = bins.left(number)
    return rest


def _onto_stuck(
    draft: Draft, resource: str, waiting: list[ShareView], placement: Placement
) -> list[ShareView]:
    shadows = _unplaced(draft, resource, stuck=True)
    return _onto_shadows(draft, Bins(), shadows, waiting, placement, Spot.STUCK)


def _onto_shadows(
    draft: Draft,
    bins: Bins,
    shadows: list[ShadowView],
    waiting: list[ShareView],
    placement: Placement,
    spot: Spot,
) -> list[ShareView]:
    owners: dict[int, Key] = {}
    for shadow in shadows:
        needs = shadow.pod.needs if shadow.pod else draft.sites.of_pool(shadow.pool)
        owners[bins.add(shadow.devices, draft.sites.to(shadow.pool, needs))] = shadow.key
    rest = []
    for share in waiting:
        number = bins.put(share.count, share.needs, share.groups)
        if number is None:
            rest.append(share)
            continue
        owner = owners.get(number)
        placement.places[share.uid] = Place(spot, owner)
        if owner is not None:
            placement.relied_on.add(owner)
    return rest


def _unplaced(draft: Draft, resource: str, *, stuck: bool) -> list[ShadowView]:
    """Shadow pods without a node, those that something keeps from one or the others, oldest
    first."""
    found = [
        one
        for one in draft.of_resource(resource)
        if draft.stages[one.key] in UNPLACED
        and draft.is_wanted(one)
        and (draft.obstacle(one) is not None) == stuck
    ]
    return sorted(found, key=lambda one: (one.quota_key, one.sequence, one.name))


def hardest_first(share: ShareView) -> tuple[object, ...]:
    """The order in which share pods are placed."""
    return share.needs.order, -share.count, share.created, share.namespace, share.name
