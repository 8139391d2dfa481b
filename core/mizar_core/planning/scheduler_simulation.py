"""Simulates the scheduler: how many devices of a resource are free on each node, and where each
waiting share pod will find its devices.

The devices of one resource form one pool: the scheduler cannot tell which shadow pod they belong
to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from mizar_core.names import parse_resource, tenant_of
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import on_node
from mizar_core.planning.first_fit import Accepts, Bins
from mizar_core.planning.shadow_stage import UNPLACED, ShadowStage
from mizar_core.planning.snapshot import Key, ShadowView, ShareView


class Availability(Enum):
    """Where a waiting share pod finds its devices."""

    FREE = auto()
    """Its devices are free on a node."""
    COMING = auto()
    """Its devices are on their way, with a shadow pod that is being created or is starting."""
    BLOCKED = auto()
    """Its devices depend on a shadow pod that the API server refuses or the scheduler finds no
    cards for."""
    REFUSED = auto()
    """Its devices are free only on nodes that the scheduler refuses it."""
    NONE = auto()
    """No devices that it could get are free or on their way."""
    POSTPONED = auto()
    """A later plan considers it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one share pod finds its devices. `shadow`: the shadow pod without a node that it
    depends on, if any. `node`: for REFUSED, the node with free devices that the scheduler refuses
    it."""

    availability: Availability
    shadow: Key | None = None
    node: str | None = None


@dataclass(slots=True)
class NodeDevices:
    """Devices of one resource on one node: `offered` now, `coming` soon, and requested by pods that
    are `bound` to the node."""

    offered: int = 0
    coming: int = 0
    bound: int = 0

    @property
    def free(self) -> int:
        """Devices that are free as the scheduler counts: offered minus requested, whatever holds
        them."""
        return max(0, self.offered - self.bound)

    @property
    def soon(self) -> int:
        """Devices that will be free once those on their way are there."""
        return max(0, self.offered + self.coming - self.bound)


DevicePool = dict[str, NodeDevices]
"""All devices of one resource, by the name of the node."""


@dataclass
class Placement:
    """Where the waiting share pods of a resource find devices.

    `devices`: all devices of the resource. `assignments`: by the share pod's UID. `left_now`,
    `left_soon`: devices that no share pod needs, per node. `groups`: the anti-affinity groups on
    each node, with those of the pods that find devices there. `relied_on`: shadow pods without a
    node that some share pod depends on.
    """

    devices: DevicePool = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    left_now: Counter[str] = field(default_factory=Counter)
    left_soon: Counter[str] = field(default_factory=Counter)
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    relied_on: set[Key] = field(default_factory=set)


def is_admitted(draft: Draft, share: ShareView) -> bool:
    """Whether the pod requests a resource that its namespace may request at all."""
    parsed = parse_resource(share.resource)
    if parsed is None:
        return False
    for pool in draft.pools.values():
        if pool.spec.tenancy == "Shared" and parsed.prefix == pool.spec.resource_prefix:
            return True
        own = tenant_of(parsed.prefix, pool.spec.resource_prefix) == share.namespace
        if own and pool.spec.tenancy != "Shared":
            return True
    return False


NODE_SEEN_AFTER: Final = timedelta(seconds=10)
"""How long after a pod's binding the node may still be seen as it was before. A new node becomes
available the moment before the scheduler binds pods to it, and nodes and pods are watched
separately."""


def device_pool(draft: Draft, resource: str) -> DevicePool:
    """The devices of a resource on each node that the scheduler may use, or has used just now."""
    found: dict[str, NodeDevices] = {}
    for shadow in draft.of_resource(resource):
        node = draft.nodes.get(shadow.on_node or "")
        if node is None or not (node.available or node_seen_by(draft, shadow)):
            continue
        stage = draft.stages[shadow.key]
        if stage is not ShadowStage.READY and (
            stage is not ShadowStage.STARTING or draft.is_given_up(shadow)
        ):
            continue
        if (room := found.get(node.name)) is None:
            room = NodeDevices(bound=draft.bound_devices[node.name, resource])
            found[node.name] = room
        if stage is ShadowStage.READY:
            room.offered += shadow.healthy
        else:
            # Until the agent notices that a drain is cancelled, no device may be healthy. Otherwise
            # all its cards have failed.
            room.coming += shadow.usable or (shadow.devices if shadow.draining else 0)
    return {name: found[name] for name in sorted(found)}


def node_seen_by(draft: Draft, shadow: ShadowView) -> datetime | None:
    """Until when a shadow pod's node that is seen as unavailable counts as available, since the
    scheduler has just bound the shadow pod to it; None if it does not."""
    node, bound = draft.nodes.get(shadow.on_node or ""), shadow.pod.bound_at if shadow.pod else None
    if node is None or node.available or bound is None or draft.now >= bound + NODE_SEEN_AFTER:
        return None
    return bound + NODE_SEEN_AFTER


def schedule(draft: Draft, resource: str, waiting: Iterable[ShareView]) -> Placement:
    """Simulate the scheduler: free devices first, then those on their way, then those of blocked
    shadow pods.

    A pod's devices must all be on one node. A pod that finds none keeps devices on a node that the
    scheduler refuses it, in case the scheduler decides otherwise later.
    """
    devices = device_pool(draft, resource)
    if not (waiting := list(waiting)):
        return _nobody_waits(devices)
    placement = Placement(devices)
    bins, names = Bins(), list(devices)
    for name in names:
        bins.add(devices[name].free, _to_node(draft, name), draft.groups(name, resource))
    rest = _onto_free(bins, waiting, placement)
    rest = _onto_coming(draft, resource, (bins, devices), rest, placement)
    rest = _onto_blocked(draft, resource, rest, placement)
    for share in rest:
        placement.assignments[share.uid] = _onto_refused(bins, names, share)
    for number, name in enumerate(names):
        placement.left_now[name] = bins.left(number)
    return placement


def _nobody_waits(devices: DevicePool) -> Placement:
    placement = Placement(devices)
    placement.left_now.update({name: room.free for name, room in devices.items()})
    placement.left_soon.update({name: room.soon for name, room in devices.items()})
    return placement


def _to_node(draft: Draft, name: str) -> Accepts:
    return on_node(draft.nodes[name])


def _onto_free(bins: Bins, waiting: list[ShareView], placement: Placement) -> list[ShareView]:
    rest = []
    for share in waiting:
        if bins.put(share.count, share.needs, share.groups) is None:
            rest.append(share)
        else:
            placement.assignments[share.uid] = Assignment(Availability.FREE)
    return rest


def _onto_refused(bins: Bins, names: list[str], share: ShareView) -> Assignment:
    if not share.needs.excluded_nodes:
        return Assignment(Availability.NONE)
    anywhere = replace(share.needs, excluded_nodes=frozenset())
    number = bins.put(share.count, anywhere, share.groups)
    return (
        Assignment(Availability.NONE)
        if number is None
        else Assignment(Availability.REFUSED, node=names[number])
    )


def _onto_coming(
    draft: Draft,
    resource: str,
    free: tuple[Bins, DevicePool],
    waiting: list[ShareView],
    placement: Placement,
) -> list[ShareView]:
    bins, (before, devices) = Bins(), free
    for number, (name, room) in enumerate(devices.items()):
        left = max(0, room.soon - (room.free - before.left(number)))
        bins.add(left, _to_node(draft, name), before.groups(number))
    shadows = _unplaced(draft, resource, blocked=False)
    rest = _onto_shadows(draft, bins, shadows, waiting, placement, Availability.COMING)
    for number, name in enumerate(devices):
        placement.left_soon[name] = bins.left(number)
        placement.groups[name] = bins.groups(number)
    return rest


def _onto_blocked(
    draft: Draft, resource: str, waiting: list[ShareView], placement: Placement
) -> list[ShareView]:
    shadows = _unplaced(draft, resource, blocked=True)
    return _onto_shadows(draft, Bins(), shadows, waiting, placement, Availability.BLOCKED)


def _onto_shadows(
    draft: Draft,
    bins: Bins,
    shadows: list[ShadowView],
    waiting: list[ShareView],
    placement: Placement,
    availability: Availability,
) -> list[ShareView]:
    owners: dict[int, Key] = {}
    for shadow in shadows:
        owners[bins.add(shadow.devices, _to_shadow(draft, shadow))] = shadow.key
    rest = []
    for share in waiting:
        number = bins.put(share.count, share.needs, share.groups)
        if number is None:
            rest.append(share)
            continue
        owner = owners.get(number)
        placement.assignments[share.uid] = Assignment(availability, owner)
        if owner is not None:
            placement.relied_on.add(owner)
    return rest


def _to_shadow(draft: Draft, shadow: ShadowView) -> Accepts:
    pod, feasible = shadow.pod, draft.feasible_nodes
    if pod is None:
        return feasible.accepts(shadow.pool, feasible.of_pool(shadow.pool))
    if shadow.unschedulable is not None:
        return feasible.accepts_blocked(shadow.pool, pod.needs, pod.own_needs)
    return feasible.accepts(shadow.pool, pod.needs)


def _unplaced(draft: Draft, resource: str, *, blocked: bool) -> list[ShadowView]:
    """Shadow pods without a node, the oldest first: those that are `blocked` from getting one, or
    the others."""
    found = [
        one
        for one in draft.of_resource(resource)
        if draft.stages[one.key] in UNPLACED
        and draft.is_wanted(one)
        and (draft.blocked_by(one) is not None) == blocked
    ]
    return sorted(found, key=lambda one: (one.quota_key, one.sequence, one.name))


def hardest_first(share: ShareView) -> tuple[object, ...]:
    """The order in which share pods are placed: the hardest to place first, for sorting."""
    return share.needs.order, -share.count, share.created, share.namespace, share.name
