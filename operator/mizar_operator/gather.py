"""Gathers the snapshot that a plan is made from, out of the caches: the first of the three steps of
a reconcile.

A cache may be behind, and each kind has a watch of its own. An object that looks missing (a shadow
pod's pod, its node) is therefore read live before the planner may treat it as lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from mizar_core.models import GPUPool
from mizar_core.names import DRA_RESOURCE, LABEL_POOL, LABEL_SHADOW_POD, PHYSICAL_RESOURCE
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.preemption_gates import FREED_FOR
from mizar_core.planning.quotas import resource_of
from mizar_core.planning.snapshot import (
    Key,
    NodeView,
    PendingView,
    ShadowView,
    ShareView,
    Snapshot,
    quota_key,
)
from mizar_core.pod_requests import cards_requested
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, POD, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator import pod_views, unreadable
from mizar_operator.caches import NO_POOL, UNREADABLE, Caches
from mizar_operator.claimed_cards import Claim, ClaimedCards, claims_of
from mizar_operator.live_objects import find, views_on
from mizar_operator.namespace_labels import Labels, NamespaceLabels
from mizar_operator.node_view import node_view
from mizar_operator.pod_views import HolderPod
from mizar_operator.posted_events import PostedEvents
from mizar_operator.reconcile_state import Excluded, ReconcileState
from mizar_operator.runtime_classes import RuntimeClasses
from mizar_operator.volume_nodes import Terms, VolumeNodes, together

log = get_logger(__name__)

CONFIRMED_FOR_S = 30.0
"""Seconds for which an object that a live read did not find counts as gone."""
TAKEN_FOR_S = 10.0
"""Seconds for which the number of cards that other pods hold on a node is cached."""
LOOKS_AT_ONCE = 16
"""The most objects that are read live at the same time. Also the most nodes with idle shadow pods
whose pods are read for one plan."""
JUDGED_NODES_MOST = 64
"""The most nodes whose free cards are looked at to find out whether a pod lacks cards. A pod that
fits more of them waits for idle shadow pods to reach their timeout."""
JUDGED_SHAPES_MOST = 64
"""The most kinds of pods that may lack cards (by needs and resource) for which one plan finds the
nodes that fit: first those that name their nodes, since the others mostly fit too many."""


@dataclass
class FoundLive:
    """Objects that the caches lack and the API server has: pods by their ShadowPod's UID, nodes by
    name."""

    pods: dict[str, HolderPod] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """What the API server answered about objects that the caches do not have, for one snapshot.
    `missing_classes`: the pools' RuntimeClasses that do not exist. `taken`: how many cards other
    pods have on nodes, by (resource, node). `namespaces`: labels of those that may get a default
    quota. `volumes`: node affinity of share pods' volumes, by claim."""

    live: FoundLive
    missing_classes: frozenset[str]
    taken: Mapping[tuple[str, str], int]
    namespaces: Mapping[str, Labels]
    volumes: Mapping[Key, Terms]


class Gatherer:
    """Makes snapshots; `clock` gives monotonic seconds."""

    def __init__(
        self, client: KubeClient, caches: Caches, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock
        self._states: dict[str, ReconcileState] = {}
        self._freed_until: dict[str, datetime] = {}
        self._classes = RuntimeClasses(client, clock)
        self._namespaces = NamespaceLabels(client, clock)
        self._volumes = VolumeNodes(client, clock)
        self._claimed = ClaimedCards(client)

    def state(self, key: str) -> ReconcileState:
        """The state that is kept from plan to plan for a key."""
        if key not in self._states:
            self._states[key] = ReconcileState(posted_events=PostedEvents(self._clock))
        return self._states[key]

    def note_freed(self, resources: Iterable[str], at: datetime) -> None:
        """Note that cards of these physical resources are being freed. This is kept for all keys:
        their pools may have the same physical resource."""
        self._freed_until |= dict.fromkeys(resources, at + FREED_FOR)

    def unreadable(self) -> dict[str, int]:
        """How many objects exist that cannot be read, by kind."""
        return self._caches.unreadable()

    def excluded(self, snapshot: Snapshot) -> Excluded:
        """The parts of the snapshot that depend on objects that cannot be read."""
        return unreadable.excluded(self._caches, snapshot)

    def pools_of(self, key: str) -> str:
        """The names of the pools that are planned under the key."""
        return ", ".join(sorted(self._pools(key)))

    async def gather(self, key: str) -> Snapshot:
        """A snapshot of everything that is planned under the key. Raises KubeError when an object
        looks missing and the API server does not answer."""
        return self._snapshot(key, await self._ask(key))

    async def _ask(self, key: str) -> Answers:
        """Ask the API server for what the caches do not have."""
        live = await self._look_for(self._suspects(key), self.state(key))
        missing = await self._classes.missing(
            one.spec.runtime_class_name
            for one in self._pools(key).values()
            if one.spec.runtime_class_name
        )
        taken = await self._look_for_cards(key)
        namespaces = await self._namespaces.of(self._without_quota(key))
        shared = (one for pod in self._caches.shares.values() for _, one in pod.demands)
        volumes = await self._volumes.of({claim for one in shared for claim in _claims(one)})
        return Answers(live, missing, taken, namespaces, volumes)

    def _snapshot(self, key: str, answers: Answers) -> Snapshot:
        """The snapshot, from the answers and the caches. It awaits nothing, so that all that comes
        from the caches is of one moment."""
        memory, pools = self.state(key), self._pools(key)
        shadows = [self._whole(one, pools, answers.live, memory) for one in self._shadows(key)]
        shares = [_bound_by(answers.volumes, one) for one in self._shares(key, shadows)]
        pending = self._caches.pending.values()
        quotas = [one for one in self._caches.quotas.values() if self._is_mine(one.spec.pool, key)]
        uids = {one.uid for one in shadows} | {one.uid for one in shares}
        memory.forget_old(self._clock(), uids, set(map(quota_key, quotas)))
        # A shadow pod that exists was created after all, so its number must not be used again.
        memory.unanswered -= {(one.quota_key, one.devices, one.sequence) for one in shadows}
        return Snapshot(
            pools=tuple(pools.values()),
            quotas=tuple(quotas),
            shadows=tuple(shadows),
            shares=tuple(shares),
            nodes=self._all_nodes(key, answers.live),
            announced=memory.posted_events.known(uids),
            missing_classes=answers.missing_classes,
            refused=memory.refusals(self._clock()),
            free_since=memory.free_since,
            attempted=memory.attempts(self._clock(), _waiting(shares, pending, shadows)),
            pending=tuple(pending),
            taken=answers.taken,
            unanswered=frozenset(memory.unanswered),
            refused_nodes=memory.nodes_refused(self._clock()),
            names_taken=frozenset(memory.names_taken),
            silent_nodes=memory.nodes_silent(self._clock()),
            gated_since=memory.gated_since,
            unopenable=frozenset(uid for uid, _ in memory.unopenable.active(self._clock())),
            freed_until=dict(self._freed_until),
            namespaces=answers.namespaces,
            nodes_without_class=self._caches.dra.without_class(),
            dra_refusal=self._caches.dra.refusal(),
        )

    def _all_nodes(self, key: str, live: FoundLive) -> tuple[NodeView, ...]:
        """The nodes of the caches, those that only the API server has, and those of which only the
        names are known."""
        cached = {one.name: one for one in self._caches.node_views()}
        bare = {name: NodeView(name, available=False) for name in self._nodes_unseen(key)}
        return tuple({**live.nodes, **bare, **cached}.values())

    def _nodes_unseen(self, key: str) -> Iterator[str]:
        """The names of nodes of which nothing is known but that they exist, or existed so recently
        that they may be registered again."""
        yield from (name for _, name in self._caches.nodes.unreadable)
        missing = (ref for one in self._shadows(key) for ref in self._missing(one))
        memory, now = self.state(key), self._clock()
        memory.note_missing_nodes((ref.name for ref in missing if ref.kind == NODE), now)
        yield from (name for name, _ in memory.nodes_expected_back(now))

    def _pools(self, key: str) -> dict[str, GPUPool]:
        found = self._caches.pools.values()
        return {one.metadata.name: one for one in found if one.spec.resource_prefix == key}

    def _is_mine(self, pool: str, key: str) -> bool:
        return self._caches.key_of_pool(pool) == key != UNREADABLE

    def _shadows(self, key: str) -> list[ShadowView]:
        known = (*self._caches.shadows.values(), *unreadable.shadows(self._caches))
        return [one for one in known if self._is_mine(one.pool, key)]

    def _shares(self, key: str, shadows: Iterable[ShadowView]) -> list[ShareView]:
        """The share pods that may have devices of these shadow pods, and those that may get some
        of the key's pools. Share pods that no pool serves are handled under NO_POOL, which posts
        events about them."""
        resources = {one.resource for one in shadows}
        keys: dict[str, set[str]] = {}
        found = []
        for value in self._caches.shares.values():
            for prefix, view in value.demands:
                if prefix not in keys:
                    keys[prefix] = self._caches.keys_serving(prefix)
                if key in keys[prefix] or (view.resource in resources and view.node is not None):
                    found.append(view)
        return found

    def _without_quota(self, key: str) -> set[str]:
        """The namespaces that may get a default quota: share pods wait there, and there is no quota
        of the key's pools, nor one that cannot be read or whose pool is not known, and so may be of
        the key again in a moment."""
        if all(one.spec.default_quota is None for one in self._pools(key).values()):
            return set()
        have = {
            one.metadata.namespace
            for one in self._caches.quotas.values()
            if self._caches.key_of_pool(one.spec.pool) in (key, NO_POOL, UNREADABLE)
        }
        have |= {namespace for namespace, _ in self._caches.quotas.unreadable}
        return {one.namespace for one in self._shares(key, ()) if one.node is None} - have

    def _whole(
        self,
        shadow: ShadowView,
        pools: Mapping[str, GPUPool],
        found: FoundLive,
        memory: ReconcileState,
    ) -> ShadowView:
        """The shadow pod with its pod and its resource."""
        holder = self._caches.holder_of(shadow) or found.pods.get(shadow.uid)
        pool = pools.get(shadow.pool)
        resource = holder.resource if holder else shadow.resource
        if not resource and pool is not None:
            resource = resource_of(pool.spec, shadow.namespace, shadow.devices) or ""
        return replace(
            shadow,
            resource=resource,
            pod=self._caches.with_asked(holder.view) if holder else None,
            contested=memory.contested.is_waiting(shadow.uid, self._clock()),
        )

    def _suspects(self, key: str) -> list[Ref]:
        """The objects that are missing from the caches and not known to be gone. Where a share pod
        may have to be evicted because of it, an object is read anew each time."""
        gone, now = self.state(key).gone, self._clock()
        found = {
            ref
            for shadow in self._shadows(key)
            for ref in self._missing(shadow)
            if shadow.held or gone.get(str(ref), 0.0) <= now
        }
        return sorted(found, key=str)

    def _missing(self, shadow: ShadowView) -> Iterator[Ref]:
        """The shadow pod's pod and node, as far as the caches do not have them."""
        holder = self._caches.holder_of(shadow)
        if holder is None and shadow.key not in self._caches.holders.unreadable:
            yield Ref(POD, shadow.name, shadow.namespace)
        place = (holder.view.node if holder else None) or shadow.node
        if place is not None and not self._caches.has_node(place):
            yield Ref(NODE, place)

    async def _look_for(self, suspects: Iterable[Ref], memory: ReconcileState) -> FoundLive:
        limit, found = asyncio.Semaphore(LOOKS_AT_ONCE), FoundLive()

        async def look(ref: Ref) -> None:
            async with limit:
                obj = await find(self._client, ref)
            if obj is None or not self._take(ref, obj, found):
                memory.gone[str(ref)] = self._clock() + CONFIRMED_FOR_S

        await asyncio.gather(*(look(ref) for ref in suspects))
        return found

    async def _look_for_cards(self, key: str) -> Mapping[tuple[str, str], int]:
        """How many cards other pods have on nodes, by (resource, node). They are read only while
        a pod waits for several cards, on nodes with idle shadow pods, since how many shadow pods
        it preempts depends on them; and while a pod waits whose scheduler does not say what it
        lacks, on all nodes that fit it."""
        pending = self._caches.pending.values()
        wide = any(cards > 1 for one in pending for _, cards in one.cards)
        unknown = any(one.reason_unknown for one in pending)
        idle = self._idle_nodes(key) if wide or unknown else set[str]()
        judged = self._judged_nodes(key) if unknown and idle else set[str]()
        if not wide and not judged:
            return {}
        memory, now = self.state(key), self._clock()
        memory.taken = {name: one for name, one in memory.taken.items() if one[0] > now}
        near = sorted(idle - memory.taken.keys())[:LOOKS_AT_ONCE] if wide else ()
        await self._look_at(key, {*near, *(judged - memory.taken.keys())})
        return {
            (resource, name): found[resource]
            for name, (_, found) in memory.taken.items()
            for resource in {pool.spec.physical_resource for pool in self._caches.pools.values()}
        }

    def _idle_nodes(self, key: str) -> set[str]:
        """The nodes with idle shadow pods."""
        idle = (one for one in self._shadows(key) if one.idle_since is not None and not one.held)
        return {one.node for one in idle if one.node is not None}

    def _judged_nodes(self, key: str) -> set[str]:
        """The nodes with cards that fit pods whose schedulers do not say what they lack."""
        ours = {one.spec.physical_resource for one in self._pools(key).values()}
        shapes = dict.fromkeys(
            (one.needs, resource)
            for one in self._caches.pending.values()
            for resource, _ in one.cards
            if one.reason_unknown and resource in ours
        )
        memory, now, found = self.state(key), self._clock(), set[str]()
        memory.fitting = {one: two for one, two in memory.fitting.items() if two[0] > now}
        for shape in sorted(shapes, key=lambda one: not one[0].pins)[:JUDGED_SHAPES_MOST]:
            if shape not in memory.fitting:
                memory.fitting[shape] = now + TAKEN_FOR_S, self._fitting(*shape)
            _, names = memory.fitting[shape]
            if len(names | found) <= JUDGED_NODES_MOST:
                found |= names
        return found

    def _fitting(self, needs: Needs, resource: str) -> frozenset[str]:
        """The nodes with cards of the resource that fit the needs; of more than JUDGED_NODES_MOST,
        one more than that."""
        nodes = (one for one in self._caches.node_views() if resource in one.cards)
        fitting = (one.name for one in nodes if one.available and fits(needs, one))
        return frozenset(islice(fitting, JUDGED_NODES_MOST + 1))

    async def _look_at(self, key: str, names: Iterable[str]) -> None:
        """Read which cards other pods have on these nodes."""
        limit, pools = asyncio.Semaphore(LOOKS_AT_ONCE), self._pools(key)
        taken, until = self.state(key).taken, self._clock() + TAKEN_FOR_S

        async def look(name: str) -> None:
            async with limit:
                try:
                    taken[name] = until, await self._cards_on(name, pools)
                except KubeError as error:
                    # No free card is known on a node that could not be read, which delays a
                    # preemption. It must not delay everything else.
                    log.info("a node's pods could not be read", node=name, error=error)

        await asyncio.gather(*(look(one) for one in sorted(names)))

    async def _cards_on(self, node: str, pools: Container[str]) -> Counter[str]:
        """The cards that other pods than shadow pods of these pools have on the node."""
        found, claims = Counter[str](), set[Claim]()
        by_dra = self._caches.dra.devices(node)

        def view(pod: Object) -> Mapping[str, int]:
            if by_dra and not _has_ended(pod):
                claims.update(claims_of(pod))
            return _cards_held(pod, pools)

        for cards in await views_on(self._client, node, view, cached=True):
            found.update(cards)
        devices = set().union(*[await self._claimed.of(one) for one in sorted(claims)])
        found.update(by_dra[one] for one in devices & by_dra.keys())
        return found

    def _take(self, ref: Ref, obj: Object, found: FoundLive) -> bool:
        """Keep the object that was found. Returns False if it is another client's pod of that
        name."""
        if ref.kind == NODE:
            self._caches.nodes.observe(obj)
            (found.nodes[ref.name],) = self._caches.dra.with_cards([node_view(obj)])
            return True
        shadow = self._caches.shadows.get(ref.name, ref.namespace or "")
        holder = pod_views.holder_view(obj)
        if holder is None or shadow is None or holder.owner_uid != shadow.uid:
            return False
        self._caches.holders.observe(obj)
        found.pods[shadow.uid] = holder
        return True


def _cards_held(pod: Object, pools: Container[str]) -> Mapping[str, int]:
    """The cards that a pod on a node holds, by resource; those that it requests by their
    DeviceClass, as PHYSICAL_RESOURCE. Empty for a shadow pod of these `pools`, since the snapshot
    has it already, and for a pod that has ended."""
    labels = pod["metadata"].get("labels") or {}
    own = labels.get(LABEL_SHADOW_POD) == "true" and labels.get(LABEL_POOL, "") in pools
    if own or _has_ended(pod):
        return {}
    held = Counter(cards_requested(pod["spec"]))
    held[PHYSICAL_RESOURCE] += held.pop(DRA_RESOURCE, 0)
    return held


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _claims(share: ShareView) -> list[Key]:
    return [(share.namespace, name) for name in share.claims]


def _bound_by(volumes: Mapping[Key, Terms], share: ShareView) -> ShareView:
    """The share pod, with the node affinity of its volumes among its needs."""
    if not share.claims or not (terms := together(_claims(share), volumes)):
        return share
    return replace(share, needs=share.needs.merged_with(Needs(terms=terms)))


def _waiting(
    shares: Iterable[ShareView], pending: Iterable[PendingView], shadows: Iterable[ShadowView]
) -> set[str]:
    """The UIDs of the objects that an attempt may be meant to help: pods and shadow pods that wait
    for a node, and the controllers of pods that can never start with their devices."""
    found = {one.uid for one in pending}
    for one in shares:
        if one.node is None:
            found.add(one.uid)
        elif one.must_go:
            found.add(one.owner)
    return found | {one.uid for one in shadows if one.on_node is None}
