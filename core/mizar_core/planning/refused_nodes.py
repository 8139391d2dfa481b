"""Finds the nodes that the scheduler refuses a share pod although devices are free there: for lack
of CPU, because of another pod, a volume or anything else. Its reasons cannot be evaluated here, but
its decisions can be observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from mizar_core.planning.creation_checks import EXCLUDED_NODES_MAX
from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import NO_NEEDS, Needs, fits
from mizar_core.planning.refusal_message import names_no_node
from mizar_core.planning.scheduler_simulation import DevicePool, NodeDevices, device_pool
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import NodeView, ShadowView, ShareView

REFUSAL_CONFIRMED_AFTER = timedelta(seconds=15)
"""How long devices must have been free while the scheduler refuses the node, until the refusal
counts as confirmed: long enough for the scheduler to have tried again with devices that have just
become free."""


def refused_on_every_node(draft: Draft, share: ShareView) -> bool:
    """Whether the scheduler has refused the pod for a while because of the pod itself, for example
    since a claim of a volume does not exist: no other node would help."""
    return _is_confirmed(draft, share.unschedulable_since) and names_no_node(share.unschedulable)


def _is_confirmed(draft: Draft, since: datetime | None) -> bool:
    """Whether what holds since then has held for long enough."""
    return since is not None and since + REFUSAL_CONFIRMED_AFTER <= draft.now


_DRAINED = (ShadowStage.DRAINING, ShadowStage.LEAVING)


class RefusedNodes:
    """The nodes that the share pods of one resource cannot have: those that the scheduler refuses,
    and those with a pod that their anti-affinity excludes."""

    def __init__(self, draft: Draft, resource: str) -> None:
        self._draft = draft
        self._resource = resource
        self._taken: dict[frozenset[str], frozenset[str]] = {}
        self._known: dict[tuple[Needs, int, bool], frozenset[str]] = {}
        self._without: dict[tuple[Needs, frozenset[str]], Needs] = {}
        self._zones: dict[tuple[Needs, str, frozenset[str], frozenset[str]], frozenset[str]] = {}
        self._drained: dict[tuple[int, datetime], frozenset[str]] = {}

    def excluding_refused(self, share: ShareView) -> ShareView:
        """The share pod, with the nodes that it cannot have excluded from its needs, among them
        those of zones (or other groups of nodes) that the scheduler refuses as a whole."""
        nodes, since = self._occupied(share.groups), share.unschedulable_since
        confirmed = _is_confirmed(self._draft, since) and not names_no_node(share.unschedulable)
        if since is not None and confirmed:
            refused = self._by(share) | self._before_a_drain(share, since)
            if refused:
                refused = self._with_zones(share, nodes, refused)
                self._draft.refused_nodes[share.uid, share.resource] = refused
                nodes |= refused
            if before := self._before(share, nodes, still_refused=bool(refused)):
                nodes |= before
        return replace(share, needs=self._excluding(share.needs, nodes)) if nodes else share

    def _excluding(self, needs: Needs, nodes: frozenset[str]) -> Needs:
        """The needs with these nodes excluded: one object for all share pods that are alike."""
        if (needs, nodes) not in self._without:
            self._without[needs, nodes] = replace(needs, excluded_nodes=nodes)
        return self._without[needs, nodes]

    def _with_zones(
        self, share: ShareView, others: frozenset[str], refused: frozenset[str]
    ) -> frozenset[str]:
        """The refused nodes, and those that have the same value of the label that the scheduler
        refuses them by. Only the refused ones where no node with cards is left then, or where they
        would be too many to exclude."""
        if share.refused_by is None:
            return refused
        key = share.needs, share.refused_by, others, refused
        if key not in self._zones:
            label, zones = share.refused_by, self._values(share.refused_by, refused)
            nodes = list(self._nodes_with_cards(NO_NEEDS))
            same = {one.name for one in nodes if one.label(label) in zones}
            needs = replace(share.needs, excluded_nodes=others | refused | same)
            fitting = any(fits(needs, one) for one in nodes)
            few = len(needs.excluded_nodes) <= EXCLUDED_NODES_MAX
            self._zones[key] = refused | same if fitting and few else refused
        return self._zones[key]

    def _values(self, label: str, nodes: frozenset[str]) -> set[str]:
        """The values that the nodes have of the label."""
        there = (self._draft.nodes[one] for one in nodes & self._draft.nodes.keys())
        return {value for one in there if (value := one.label(label)) is not None}

    def _before(
        self, share: ShareView, nodes: frozenset[str], *, still_refused: bool
    ) -> frozenset[str]:
        """The nodes that were refused recently or in an earlier round of this plan, so that
        replacements of their shadow pods do not go there again. Where no other node is left and no
        devices are kept for the share pod, any of them may be tried again."""
        draft, key = self._draft, (share.uid, share.resource)
        before = draft.refused_before.get(key, frozenset())
        before |= draft.refused_nodes.get(key, frozenset())
        needs = replace(share.needs, excluded_nodes=share.needs.excluded_nodes | nodes | before)
        left = any(fits(needs, one) for one in self._nodes_with_cards(needs)) if before else False
        return before if left or still_refused else frozenset()

    def _nodes_with_cards(self, needs: Needs) -> Iterator[NodeView]:
        known = {pool.spec.physical_resource for pool in self._draft.pools.values()}
        nodes = self._draft.feasible_nodes.candidates(needs)
        return (one for one in nodes if one.available and not known.isdisjoint(one.cards))

    def _by(self, share: ShareView) -> frozenset[str]:
        needs, key = share.needs, (share.needs, share.count, share.lacks_devices)
        if key not in self._known:
            nodes = self._nodes_with_devices(needs)
            found = (one for one in nodes if self._is_refused(one, share))
            self._known[key] = frozenset(one.name for one in found if fits(needs, one))
        return self._known[key]

    def _is_refused(self, node: NodeView, share: ShareView) -> bool:
        """Whether the scheduler refuses the node with free devices. A message that names only a
        lack of these devices is not about a node whose status offers them: it is older. It stays
        while a gang scheduler keeps them for the pod until the whole gang can start."""
        room = self._devices[node.name]
        offered = node.devices.get(self._resource, 0) - room.bound >= share.count
        outdated = share.lacks_devices and offered
        return not outdated and self._was_free(node.name, room, share.count)

    @cached_property
    def _devices(self) -> DevicePool:
        return device_pool(self._draft, self._resource)

    def _nodes_with_devices(self, needs: Needs) -> Iterable[NodeView]:
        if not needs.pins:
            return (self._draft.nodes[name] for name in self._devices)
        candidates = self._draft.feasible_nodes.candidates(needs)
        return (one for one in candidates if one.name in self._devices)

    def _was_free(self, node: str, room: NodeDevices, count: int) -> bool:
        """Whether so many devices have been free on the node for long enough."""
        since = free_since(self._draft, self._resource, node, count)
        return room.free >= count and _is_confirmed(self._draft, since)

    def _before_a_drain(self, share: ShareView, refused: datetime) -> frozenset[str]:
        """The nodes that had been refused before their shadow pods were drained: cancelling those
        drains would not help."""
        key = share.count, refused
        if key not in self._drained:
            self._drained[key] = frozenset(
                shadow.on_node or ""
                for shadow in self._draining
                if shadow.devices >= share.count and _was_refused(shadow, refused)
            )
        return self._drained[key]

    @cached_property
    def _draining(self) -> list[ShadowView]:
        """The shadow pods that are drained, also while they are being deleted: that changes nothing
        about what the scheduler has refused."""
        found = self._draft.of_resource(self._resource)
        return [one for one in found if self._draft.stages[one.key] in _DRAINED]

    def _occupied(self, groups: frozenset[str]) -> frozenset[str]:
        """The nodes with a bound pod of one of the anti-affinity groups."""
        if groups not in self._taken:
            bound = self._draft.bound_to(self._resource) if groups else ()
            self._taken[groups] = frozenset(one.node or "" for one in bound if one.groups & groups)
        return self._taken[groups]


def _was_refused(shadow: ShadowView, refused: datetime) -> bool:
    asked = shadow.pod.drain_asked if shadow.pod else None
    return asked is not None and was_idle_while_refused(shadow, refused, asked)


def was_idle_while_refused(shadow: ShadowView, refused: datetime, until: datetime) -> bool:
    """Whether the shadow pod was unused for long enough before `until`, while a share pod was
    refused since `refused`."""
    return (
        shadow.idle_since is not None
        and max(shadow.idle_since, refused) + REFUSAL_CONFIRMED_AFTER <= until
    )


def free_since(draft: Draft, resource: str, node: str, count: int) -> datetime | None:
    """Since when at least `count` devices have been free on the node; None if that is not known."""
    times = draft.free_since.get((resource, node), ())
    return times[count - 1] if count <= len(times) else None


def next_check(
    draft: Draft, resource: str, devices: Mapping[str, NodeDevices]
) -> Iterator[datetime]:
    """The times at which the refusal of a node may become confirmed."""
    refused = [one.unschedulable_since for one in draft.waiting(resource)]
    times = [one for one in refused if one is not None]
    if not times:
        return
    yield from (one + REFUSAL_CONFIRMED_AFTER for one in times)
    for node, room in devices.items():
        for count in range(1, room.free + 1):
            yield (free_since(draft, resource, node, count) or draft.now) + REFUSAL_CONFIRMED_AFTER
    for shadow in draft.of_resource(resource):
        first = free_since(draft, resource, shadow.on_node or "", 1)
        if first is not None and shadow.idle_since is not None and shadow.idle_since > first:
            yield shadow.idle_since + REFUSAL_CONFIRMED_AFTER
