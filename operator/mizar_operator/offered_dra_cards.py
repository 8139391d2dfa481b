"""The cards that NVIDIA's DRA driver offers, where the scheduler gives them to pods that request
`nvidia.com/gpu`: on nodes on which no device plugin offers that resource, if a DeviceClass names it
(`extendedResourceName`). MIG devices are cards of a resource for each size, such as
`nvidia.com/mig-1g.5gb`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Final

from mizar_core.names import PHYSICAL_RESOURCE
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from mizar_core.slice_devices import newest
from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, NotFound
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import DEVICE_CLASS, RESOURCE_SLICE
from mizar_kube.logs import get_logger
from mizar_operator.resource_slices import (
    OF_DRIVER,
    SliceView,
    cards_together,
    extended_resource,
    slice_view,
)

log = get_logger(__name__)

SERVED_AT: Final = "/apis/resource.k8s.io/v1"
"""Where the API server lists the kinds of this group and version, which Kubernetes has since
1.34."""

ASKED_EVERY_S = 600.0
"""Seconds until the API server is asked again whether it serves these kinds, if it does not: it may
have been upgraded since."""

KEPT_FOR_S = 300.0
"""Seconds for which the cards of a node count as failed, rather than as gone, once its last slice
is deleted, and those of all nodes, once no DeviceClass names their resource any more. A kubelet
that starts deletes all slices of its node, and those of a driver that has been away for half a
minute; the class is deleted and made again when the driver's chart is installed anew. Of a stopped
device plugin, the kubelet keeps the cards for as long as this."""

SLACK_S = 1.0
"""Seconds by which a pause is longer than the time left, since it may end a rounding error too
early."""


class OfferedDraCards:
    """A copy of the driver's ResourceSlices and of all DeviceClasses, which `run()` keeps current
    until cancelled. Where the API server does not serve these kinds, nothing is watched."""

    def __init__(self, client: KubeClient, timing: Timing | None = None) -> None:
        self.synced = asyncio.Event()
        self._client = client
        self._timing = timing or Timing()
        self._copies: tuple[Informer[Any], ...] = ()
        self._slices: defaultdict[str, set[SliceView]] = defaultdict(set)
        self._classes: list[str] = []
        self._cards: dict[str, Mapping[str, CardsOnNode]] = {}
        """The cards by node and resource."""
        self._gone_at: dict[str, float] = {}
        """When a node's cards were gone."""
        self._class_gone_at: dict[str, float] = {}
        """When no class named a resource any more."""
        self._gone = asyncio.Event()
        self._views: dict[str, tuple[NodeView, NodeView]] = {}
        self._listeners: list[Callable[[], None]] = []

    # What the operator reads.

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever the cards of a node change."""
        self._listeners.append(listener)

    def with_cards(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        """The nodes, with the cards that the driver offers and pods can request. The views stay the
        same objects as long as nothing changes."""
        if not self._cards or not self._requestable() or self.refusal():
            return list(nodes)
        return [self._with_cards(one) for one in nodes]

    def without_class(self) -> frozenset[str]:
        """The nodes whose whole cards the driver offers, if no DeviceClass names the resource by
        which pods could request them, nor did within KEPT_FOR_S."""
        if PHYSICAL_RESOURCE in self._requestable() or self.refusal():
            return frozenset()
        return frozenset(node for node, cards in self._cards.items() if PHYSICAL_RESOURCE in cards)

    def refusal(self) -> str:
        """Why it is not known which cards the driver offers, and so none count: the API server's
        message that says which right the operator lacks. Empty if it has these rights, or had them
        a moment ago."""
        found = (str(one.forbidden) for one in self._copies if one.forbidden and one.problem())
        return next(found, "")

    def devices(self, node: str) -> Mapping[tuple[str, str], str]:
        """The resource of each device, as (pool, device), that the driver offers on the node."""
        return {
            (one.pool, name): devices.resource
            for one in newest(self._slices.get(node, ()))
            for devices in one.devices
            for name in devices.names
        }

    # The copies.

    def make_informers(self) -> tuple[Informer[SliceView], Informer[str]]:
        """Make the informers of slices and classes anew, and return them, not yet running."""
        of_driver = Watched(RESOURCE_SLICE, field_selector=OF_DRIVER)
        slices = Informer(self._client, of_driver, slice_view, self._timing)
        classes = Informer(self._client, Watched(DEVICE_CLASS), extended_resource, self._timing)
        slices.on_change(self._slice_changed)
        classes.on_change(self._class_changed)
        self._copies = (slices, classes)
        return slices, classes

    async def run(self) -> None:
        """Watch for ever, as soon as the API server serves the kinds. Until then, ask now and then
        whether it does."""
        while not await self._is_served():
            self.synced.set()
            await self._timing.sleep(ASKED_EVERY_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forget_in_time())
            for one in (copies := self.make_informers()):
                tasks.create_task(one.run())
            for one in copies:
                await one.answered.wait()
            self.synced.set()

    def problem(self) -> str | None:
        """Why the copy cannot be relied on now, or None: without the rights to watch it, the
        operator plans without the driver's cards."""
        if not self.synced.is_set() and not self._copies:
            return f"{RESOURCE_SLICE.plural}: not known yet whether they are served"
        allowed = (one for one in self._copies if not one.forbidden)
        return next((found for one in allowed if (found := one.problem())), None)

    def stands_still(self) -> str | None:
        """The problem that a restart would solve, or None: see Copy."""
        return next((found for one in self._copies if (found := one.stands_still())), None)

    async def _is_served(self) -> bool:
        backoff = Backoff(most=self._timing.max_delay, random=self._timing.random)
        while True:
            try:
                found = await self._client.request("GET", SERVED_AT)
            except NotFound:
                return False
            except KubeError as error:
                log.info("not known yet whether ResourceSlices are served", error=error)
                await self._timing.sleep(max(backoff.next(), error.retry_after or 0.0))
            else:
                served = {one["name"] for one in found.get("resources") or ()}
                return {RESOURCE_SLICE.plural, DEVICE_CLASS.plural} <= served

    def _slice_changed(self, old: SliceView | None, new: SliceView | None) -> None:
        for one in (old, new):
            if one is not None:
                slices = self._slices[one.node]
                (slices.add if one is new else slices.discard)(one)
        for node in sorted({one.node for one in (old, new) if one is not None}):
            self._count(node)

    def _count(self, node: str) -> None:
        """Count the node's cards, and tell if there are others than before."""
        before, found = self._cards.get(node), cards_together(self._slices[node])
        if not self._slices[node]:
            del self._slices[node]
        if found:
            self._gone_at.pop(node, None)
        elif before:
            self._gone_at.setdefault(node, self._timing.clock())
            self._gone.set()
            found = _failed(before)
        if found and found != before:
            self._cards[node] = found
            self._views.pop(node, None)
            self._tell()

    def _class_changed(self, old: str | None, new: str | None) -> None:
        before = set(self._classes)
        if old is not None:
            self._classes.remove(old)
        if new is not None:
            self._classes.append(new)
        if changed := before ^ set(self._classes):
            self._note_class(*changed)

    def _note_class(self, *resources: str) -> None:
        """Note which of the resources are named by a class now, which is not as it was."""
        for one in resources:
            if one in self._classes:
                self._class_gone_at.pop(one, None)
            else:
                self._class_gone_at[one] = self._timing.clock()
                self._gone.set()
        self._views.clear()
        self._tell()

    def _requestable(self) -> Set[str]:
        """The resources that a class names, or did so within KEPT_FOR_S."""
        return {*self._classes, *self._class_gone_at}

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def forget_gone(self) -> None:
        """Forget the cards, and the classes, that have been gone for KEPT_FOR_S."""
        last = self._timing.clock() - KEPT_FOR_S
        for node in [name for name, at in self._gone_at.items() if at <= last]:
            for known in (self._gone_at, self._cards, self._views):
                known.pop(node, None)
            self._tell()
        for resource in [name for name, at in self._class_gone_at.items() if at <= last]:
            del self._class_gone_at[resource]
            self._views.clear()
            self._tell()

    async def _forget_in_time(self) -> None:
        while True:
            await self._gone.wait()
            self._gone.clear()
            while gone := [*self._gone_at.values(), *self._class_gone_at.values()]:
                left = min(gone) + KEPT_FOR_S - self._timing.clock()
                await self._timing.sleep(max(0.0, left) + SLACK_S)
                self.forget_gone()

    def _with_cards(self, node: NodeView) -> NodeView:
        known = self._views.get(node.name)
        if known is not None and known[0] is node:
            return known[1]
        if not (cards := self._offered(node)):
            return node
        made = replace(node, cards={**node.cards, **cards})
        self._views[node.name] = node, made
        return made

    def _offered(self, node: NodeView) -> dict[str, CardsOnNode]:
        """The driver's cards that count on the node: pods can request them, and no device plugin
        offers any of their resource. They have failed while no class names it."""
        requestable = self._requestable()
        found = {
            resource: cards
            for resource, cards in self._cards.get(node.name, {}).items()
            if resource in requestable and not _has_plugin(node, resource)
        }
        without = found.keys() - set(self._classes)
        return found | _failed({one: found[one] for one in without})


def _failed(cards: Mapping[str, CardsOnNode]) -> dict[str, CardsOnNode]:
    return {resource: replace(one, healthy=0) for resource, one in cards.items()}


def _has_plugin(node: NodeView, resource: str) -> bool:
    """Whether a device plugin offers the resource on the node: then the scheduler counts its cards
    alone. It looks at what is allocatable, so cards of a plugin that has stopped do not count."""
    own = node.cards.get(resource)
    return own is not None and own.healthy > 0
