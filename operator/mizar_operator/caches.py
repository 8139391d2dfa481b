"""The operator's caches: a copy of each kind of object that plans are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from mizar_core.names import LABEL_SHADOW_POD, LABEL_SHARE_POD, LABEL_SPOT_POD, tenant_of
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import NodeView, PendingView, PodView, ShadowView
from mizar_core.planning.spot import SpotView
from mizar_kube.client import KubeClient
from mizar_kube.informer import Copy, Informer, Timing, Watched
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, POD, SHADOW_POD, Object
from mizar_operator import object_views, pod_views
from mizar_operator.kopf_store import KopfStore, Pace
from mizar_operator.node_needs import needs_of
from mizar_operator.node_view import node_view
from mizar_operator.offered_dra_cards import OfferedDraCards
from mizar_operator.pod_views import HolderPod, SharePod
from mizar_operator.spot.pod_view import spot_view

T = TypeVar("T")

NO_POOL = ""
"""The key of objects that belong to a pool that does not exist."""

UNREADABLE = "?"
"""The key of objects that belong to a pool that exists but cannot be read: nothing is planned for
them."""

SPOT = "mizar.spot"
"""The key of spot pods, whose cards may be any pool's. No pool may have it as its prefix."""

UNBOUND = "spec.nodeName=,status.phase=Pending"
"""Field selector of pods without a node. Some of them wait for cards that idle shadow pods hold."""


class Caches:
    """The operator's copies, one per kind, and the keys under which plans are made. A key is the
    resource prefix of a pool: the share pods of pools with the same prefix request the same
    resources, so these pools are planned together, by one worker.

    Kopf's handlers feed the stores of Mizar's own kinds; informers follow pods and nodes, of which
    there are many and which need no handler. The API server sends only pods that hold cards or
    share them, by their labels (the webhook sets the latter, and a policy refuses pods that request
    a share without it), and pods that wait for a node.
    """

    def __init__(
        self, client: KubeClient, pace: Pace | None = None, timing: Timing | None = None
    ) -> None:
        self.pools = KopfStore(client, GPU_POOL, object_views.pool_view, pace)
        self.quotas = KopfStore(client, GPU_QUOTA, object_views.quota_view, pace)
        self.shadows = KopfStore(client, SHADOW_POD, object_views.shadow_view, pace)
        self.holders: Informer[HolderPod] = Informer(
            client,
            Watched(POD, label_selector=f"{LABEL_SHADOW_POD}=true"),
            pod_views.holder_view,
            timing,
        )
        self.shares: Informer[SharePod] = Informer(
            client,
            Watched(POD, label_selector=f"{LABEL_SHARE_POD}=true"),
            pod_views.share_view,
            timing,
        )
        self.pending: Informer[PendingView] = Informer(
            client, Watched(POD, field_selector=UNBOUND), pod_views.pending_view, timing
        )
        self.spots: Informer[SpotView] = Informer(
            client, Watched(POD, label_selector=f"{LABEL_SPOT_POD}=true"), spot_view, timing
        )
        self.nodes: Informer[NodeView] = Informer(client, Watched(NODE), node_view, timing)
        self.dra = OfferedDraCards(client, timing)
        self._asked: dict[str, Needs] = {}
        self._offering: dict[str, Counter[str]] = {}
        self.holders.on_change(self._count_offers)

    def __iter__(self) -> Iterator[Copy]:
        yield from (
            self.pools,
            self.quotas,
            self.shadows,
            self.holders,
            self.shares,
            self.pending,
            self.spots,
            self.nodes,
            self.dra,
        )

    @property
    def synced(self) -> bool:
        """Whether all copies have been listed once."""
        return all(one.synced.is_set() for one in self)

    def problems(self) -> list[str]:
        """Why nothing can be planned from the copies now; empty if it can."""
        return [problem for one in self if (problem := one.problem()) is not None]

    def standing_still(self) -> list[str]:
        """The problems that a restart would solve."""
        return [problem for one in self if (problem := one.stands_still()) is not None]

    def unreadable(self) -> dict[str, int]:
        """How many objects exist that cannot be read, by kind."""
        return {
            "GPUPool": len(self.pools.unreadable),
            "GPUQuota": len(self.quotas.unreadable),
            "ShadowPod": len(self.shadows.unreadable),
            "Pod": len({*self.holders.unreadable, *self.shares.unreadable, *self.spots.unreadable}),
            "Node": len(self.nodes.unreadable),
        }

    def keys(self) -> set[str]:
        """All keys under which there may be something to plan, except SPOT."""
        return {one.spec.resource_prefix for one in self.pools.values()} | {NO_POOL}

    def key_of_pool(self, name: str) -> str:
        """The key under which a pool of that name is planned."""
        if ("", name) in self.pools.unreadable:
            return UNREADABLE
        pool = self.pools.get(name)
        return NO_POOL if pool is None else pool.spec.resource_prefix

    def keys_of_namespace(self, namespace: str) -> set[str]:
        """The keys under which the namespace's shadow pods are planned."""
        found = (one for one in self.shadows.values() if one.namespace == namespace)
        return {self.key_of_pool(one.pool) for one in found}

    def note_created(self, made: Object, wanted: Object) -> None:
        """Keep the newly created pod of a shadow pod (`made`). If admission has added constraints
        on its node, such as the namespace's node selector, keep those that the operator asked for
        (in `wanted`) too. They are in memory only: after a restart of the operator, such shadow
        pods that have no node yet may be created again."""
        self.holders.observe(made)
        if needs_of(made) != (asked := needs_of(wanted)):
            there = {one.view.uid for one in self.holders.values()}
            self._asked = {uid: one for uid, one in self._asked.items() if uid in there}
            self._asked[made["metadata"]["uid"]] = asked

    def with_asked(self, pod: PodView) -> PodView:
        """The pod, with the constraints on its node that the operator asked for, if they are known
        to differ."""
        asked = self._asked.get(pod.uid)
        return pod if asked is None else replace(pod, asked=asked)

    def holder_of(self, shadow: ShadowView) -> HolderPod | None:
        """The shadow pod's own pod, not that of an earlier ShadowPod of the same name."""
        found = self.holders.get(shadow.name, shadow.namespace)
        return found if found is not None and found.owner_uid == shadow.uid else None

    def node_views(self) -> list[NodeView]:
        """All nodes, with the cards that device plugins and NVIDIA's DRA driver offer there."""
        return self.dra.with_cards(self.nodes.values())

    def has_node(self, name: str) -> bool:
        """Whether there is a node of that name, readable or not."""
        return self.nodes.get(name) is not None or ("", name) in self.nodes.unreadable

    def keys_of_cards(self, pod: PendingView) -> set[str]:
        """The keys whose shadow pods may hold cards that the pod waits for."""
        wanted = {resource for resource, _ in pod.cards}
        found = (one.spec for one in self.pools.values())
        return {one.resource_prefix for one in found if one.physical_resource in wanted}

    def keys_of_prefix(self, prefix: str) -> set[str]:
        """The keys whose share pods request resources of this prefix, with or without a tenant
        before it."""
        return {
            key
            for key in self.keys()
            if key and (key == prefix or tenant_of(prefix, key) is not None)
        }

    def keys_serving(self, prefix: str) -> set[str]:
        """As `keys_of_prefix`, or NO_POOL alone if there are none."""
        return self.keys_of_prefix(prefix) or {NO_POOL}

    def keys_of_demand(self, prefix: str, resource: str) -> set[str]:
        """The keys under which share pods that request the resource, of this prefix, are handled:
        those of the pools with the prefix, or else NO_POOL; and those of the shadow pods that offer
        the resource, whose pools may be gone or have another prefix by now."""
        offering = {self.key_of_pool(name) for name in self._offering.get(resource, ())}
        return self.keys_serving(prefix) | offering

    def _count_offers(self, old: HolderPod | None, new: HolderPod | None) -> None:
        """Count the shadow pods that offer a resource, by the name of their pool."""
        for pod, change in ((old, -1), (new, 1)):
            if pod is not None:
                counts = Counter(self._offering.get(pod.resource, ()))
                counts[pod.pool] += change
                if counts := +counts:
                    self._offering[pod.resource] = counts
                else:
                    self._offering.pop(pod.resource, None)


def follow(caches: Caches, add: Callable[[str], None]) -> None:
    """Call `add(key)` whenever a pod or a node changes for which there is something to plan."""

    def of_share(pod: SharePod) -> set[str]:
        found = (caches.keys_of_demand(prefix, one.resource) for prefix, one in pod.demands)
        return set().union(*found)

    _listen(caches.holders, lambda pod: {caches.key_of_pool(pod.pool)}, add)
    _listen(caches.shares, of_share, add)
    _listen(caches.pending, caches.keys_of_cards, add)
    caches.nodes.on_change(lambda old, new: _node_changed(old, new, caches, add))
    caches.dra.on_change(lambda: _add_all(caches, add))


def _node_changed(
    old: NodeView | None, new: NodeView | None, caches: Caches, add: Callable[[str], None]
) -> None:
    """Plan for all pools, unless the node only offers more devices: that follows from a change of
    a ShadowPod, for which there is a plan anyway."""
    if old is None or new is None or not _offers_only_more(old, new):
        _add_all(caches, add)


def _add_all(caches: Caches, add: Callable[[str], None]) -> None:
    for key in sorted(caches.keys()):
        add(key)


def _offers_only_more(old: NodeView, new: NodeView) -> bool:
    more = all(count <= new.devices.get(name, 0) for name, count in old.devices.items())
    return more and replace(old, devices=new.devices) == new


def _listen(
    informer: Informer[T], keys: Callable[[T], Iterable[str]], add: Callable[[str], None]
) -> None:
    def changed(old: T | None, new: T | None) -> None:
        for value in (old, new):
            for key in sorted(keys(value)) if value is not None else ():
                add(key)

    informer.on_change(changed)
