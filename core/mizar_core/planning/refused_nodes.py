"""Nodes that the scheduler passes over: devices are free there and it refuses a share pod all the
same, for want of cpu, because of another pod, a volume, whatever. What it weighs can't be judged
here; what it does can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.scheduling import NodeDevices, device_pool
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import ShadowView, ShareView

# Long enough for a scheduler to have tried again with devices that have just come free.
REFUSAL_CONFIRMED_AFTER = timedelta(seconds=15)


class RefusedNodes:
    """The nodes that won't do for the share pods of one resource: those that the scheduler passes
    over, and those where a pod is from which they must be apart."""

    def __init__(self, draft: Draft, resource: str) -> None:
        self._draft = draft
        self._resource = resource
        self._taken: dict[frozenset[str], frozenset[str]] = {}
        self._known: dict[tuple[Needs, int], frozenset[str]] = {}

    def excluding_refused(self, share: ShareView) -> ShareView:
        """The share pod, asking for none of the nodes that won't do."""
        nodes, since = self._occupied(share.groups), share.unschedulable_since
        if since is not None and since + REFUSAL_CONFIRMED_AFTER <= self._draft.now:
            nodes |= self._by(share.needs, share.count) | self._before_a_drain(share, since)
        return replace(share, needs=replace(share.needs, excluded_nodes=nodes)) if nodes else share

    def _by(self, needs: Needs, count: int) -> frozenset[str]:
        if (needs, count) not in self._known:
            devices = device_pool(self._draft, self._resource).items()
            found = (name for name, room in devices if self._was_free(name, room, count))
            fitting = (one for one in found if fits(needs, self._draft.nodes[one]))
            self._known[needs, count] = frozenset(fitting)
        return self._known[needs, count]

    def _was_free(self, node: str, room: NodeDevices, count: int) -> bool:
        """Whether so many devices have been free there for long enough."""
        since = free_since(self._draft, self._resource, node, count)
        return (
            room.free >= count
            and since is not None
            and since + REFUSAL_CONFIRMED_AFTER <= self._draft.now
        )

    def _before_a_drain(self, share: ShareView, refused: datetime) -> frozenset[str]:
        """The nodes that had been passed over when their devices went out of use: to bring those
        back would help nobody."""
        return frozenset(
            shadow.on_node or ""
            for shadow in self._draining
            if shadow.devices >= share.count and _was_refused(shadow, refused)
        )

    @cached_property
    def _draining(self) -> list[ShadowView]:
        found = self._draft.of_resource(self._resource)
        return [one for one in found if self._draft.stages[one.key] is ShadowStage.DRAINING]

    def _occupied(self, groups: frozenset[str]) -> frozenset[str]:
        """The nodes where there is a pod of one of the groups."""
        if groups not in self._taken:
            bound = self._draft.bound_to(self._resource) if groups else ()
            self._taken[groups] = frozenset(one.node or "" for one in bound if one.groups & groups)
        return self._taken[groups]


def _was_refused(shadow: ShadowView, refused: datetime) -> bool:
    asked = shadow.pod.drain_asked if shadow.pod else None
    return asked is not None and was_idle_while_refused(shadow, refused, asked)


def was_idle_while_refused(shadow: ShadowView, refused: datetime, until: datetime) -> bool:
    """Whether nobody used it for long enough until then, while somebody was refused."""
    return (
        shadow.idle_since is not None
        and max(shadow.idle_since, refused) + REFUSAL_CONFIRMED_AFTER <= until
    )


def free_since(draft: Draft, resource: str, node: str, count: int) -> datetime | None:
    """Since when at least so many devices have been free on the node, as far as is known."""
    times = draft.free_since.get((resource, node), ())
    return times[count - 1] if count <= len(times) else None


def next_check(
    draft: Draft, resource: str, devices: Mapping[str, NodeDevices]
) -> Iterator[datetime]:
    """When it is time to see whether the scheduler has passed over a node."""
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
