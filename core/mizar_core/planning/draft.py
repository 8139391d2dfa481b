"""The draft of a plan: the actions planned so far, and the snapshot as it will be after them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property, lru_cache

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_core.models import GPUQuota
from mizar_core.names import CreationReason, shadow_name
from mizar_core.planning.actions import Action, CreateQuota, CreateShadow, EmitEvent, ShadowAction
from mizar_core.planning.feasible_nodes import FeasibleNodes
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.pool_nodes import has_other_model
from mizar_core.planning.projection import project
from mizar_core.planning.quotas import Entitlement, Entitlements, QuotaUsage
from mizar_core.planning.shadow_groups import ShadowGroups
from mizar_core.planning.shadow_stage import (
    LIVE,
    ShadowStage,
    failed_until,
    retried_at,
    stage_of,
    stranded_at,
)
from mizar_core.planning.silent_agents import find_silence
from mizar_core.planning.snapshot import (
    Attempt,
    Key,
    ShadowView,
    ShareView,
    Snapshot,
    Subject,
    quota_key,
)

_NO_GROUPS = frozenset[str]()


class Draft:
    """The snapshot as it will be after the actions planned so far. Each action takes effect at
    once, so that the next decision sees it."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.now = now
        self.actions: list[Action] = []
        self.attempts: list[Attempt] = []
        self.granted: set[str] = set()
        self.held_back: set[Subject] = set()
        self.refused_nodes: dict[tuple[str, str], frozenset[str]] = {}
        self._take_facts(snapshot)
        self._take_earlier_outcomes(snapshot)
        self._take_quotas(snapshot)
        self._take_nodes(snapshot)
        self._take_shadows(snapshot)
        self._take_shares(snapshot)

    def _take_facts(self, snapshot: Snapshot) -> None:
        """Take over what no action of a plan changes."""
        self.dra_refusal = snapshot.dra_refusal
        self.freed_until = snapshot.freed_until
        self.free_since = snapshot.free_since
        self.gated_since = snapshot.gated_since
        self.missing_classes = snapshot.missing_classes
        self.namespaces = snapshot.namespaces
        self.nodes_without_class = snapshot.nodes_without_class
        self.pending = snapshot.pending
        self.taken = snapshot.taken

    def _take_earlier_outcomes(self, snapshot: Snapshot) -> None:
        """Take over what came of earlier plans: what was posted, attempted, refused or not
        answered."""
        self.announced = snapshot.announced
        self.attempted = set(snapshot.attempted)
        self.refused = {(one.quota, one.devices): one.message for one in snapshot.refused}
        self.refused_before = snapshot.refused_nodes
        self.refused_by_kubelet = {
            (one.quota_key, one.devices): one
            for one in sorted(filter(self.is_retried_later, snapshot.shadows), key=_key)
        }
        self.unopenable = snapshot.unopenable
        self._names_taken = snapshot.names_taken
        self._unanswered = sorted(snapshot.unanswered)

    def _take_quotas(self, snapshot: Snapshot) -> None:
        """Take over pools and quotas, and what quotas entitle to."""
        self.pools = {one.metadata.name: one for one in snapshot.pools}
        self.quotas = {quota_key(one): one for one in snapshot.quotas}
        self.active_quotas = {
            key: one for key, one in self.quotas.items() if not one.metadata.deletion_timestamp
        }
        self.quotas_by_namespace: defaultdict[str, list[GPUQuota]] = defaultdict(list)
        for (namespace, _), quota in self.quotas.items():
            self.quotas_by_namespace[namespace].append(quota)
        self.entitlements = Entitlements(self.pools.values(), self.active_quotas.values())

    def _take_nodes(self, snapshot: Snapshot) -> None:
        """Take over the nodes, with the silence of their agents."""
        self.nodes = {one.name: one for one in snapshot.nodes}
        self.silence = find_silence(snapshot, self.nodes, self.now)
        self.feasible_nodes = FeasibleNodes(
            self.pools, snapshot.nodes, snapshot.shadows, self.silence.avoided, snapshot.taken
        )

    def _take_shadows(self, snapshot: Snapshot) -> None:
        """Take over the shadow pods. Their stages follow from the nodes, and whether they are
        wanted from the quotas and from earlier plans."""
        self.shadows: dict[Key, ShadowView] = {}
        self.stages: dict[Key, ShadowStage] = {}
        self.usage = QuotaUsage()
        self._given = snapshot.shadows
        self._in_order: list[tuple[ShadowView, ShadowStage]] | None = None
        self._of_quota = ShadowGroups[Key]()
        self._of_resource = ShadowGroups[str]()
        self._sequences = _sequences(snapshot)
        self._sorted_keys: list[Key] | None = None
        self._unsettled: list[tuple[ShadowView, ShadowStage]] | None = None
        self._unsettled_of = ShadowGroups[Key]()
        self._wanted: dict[Key, tuple[ShadowView, bool]] = {}
        for shadow in snapshot.shadows:
            self._put(shadow)

    def _take_shares(self, snapshot: Snapshot) -> None:
        """Take over the share pods: those that wait, and those that have a node."""
        self.shares = snapshot.shares
        self.bound: defaultdict[tuple[str, str], list[ShareView]] = defaultdict(list)
        self.bound_devices: Counter[tuple[str, str]] = Counter()
        self._waiting: defaultdict[str, list[ShareView]] = defaultdict(list)
        for share in snapshot.shares:
            self._put_share(share)

    def do(self, action: ShadowAction) -> None:
        """Plan the action and apply it to the draft."""
        self.actions.append(action)
        before = self.shadows.get(action.shadow)
        if before is not None:
            self._drop(before)
        after = project(before, action)
        if after is not None:
            self._put(after)
        self._in_order = self._unsettled = None
        if (before is None) != (after is None):
            self._sorted_keys = None

    def grant(self, action: CreateQuota) -> None:
        """Plan a quota for a namespace that has none. Shadow pods that it allows are left to the
        next plan."""
        self.actions.append(action)
        self.granted.add(action.quota[0])

    def post(self, event: EmitEvent) -> None:
        """Plan an event, unless its subject or message was posted too recently."""
        if not event.uid or not event.is_announced(self.announced):
            self.actions.append(event)
        elif event.is_held_back(self.announced):
            self.held_back.add(event.subject)

    def of_resource(self, resource: str) -> Sequence[ShadowView]:
        """The shadow pods that offer a resource, by name."""
        return self._of_resource.of(resource)

    def resources(self) -> list[str]:
        """All resources that a shadow pod offers, a quota allows or a share pod requests, sorted. A
        shadow pod that has neither a pod nor a pool has no resource that is known."""
        offered = (entitlement.resource for entitlement in self.entitlements)
        held = (name for name in self._of_resource if name)
        return sorted({*offered, *held, *self._waiting})

    def of_quota(self, quota: Key) -> Sequence[ShadowView]:
        """The shadow pods of a quota, by name."""
        return self._of_quota.of(quota)

    def unsettled_of(self, quota: Key) -> Sequence[ShadowView]:
        """As `unsettled`, those of one quota."""
        return self._unsettled_of.of(quota)

    def groups(self, node: str, resource: str) -> frozenset[str]:
        """The anti-affinity groups of the share pods of a resource that are bound to a node."""
        apart = [one for one in self.bound.get((node, resource), ()) if one.needs.anti_affinity]
        return frozenset().union(*(one.groups for one in apart)) if apart else _NO_GROUPS

    def bound_to(self, resource: str) -> list[ShareView]:
        """The share pods of a resource that have a node."""
        return self._bound_to.get(resource, [])

    @cached_property
    def _bound_to(self) -> dict[str, list[ShareView]]:
        found: defaultdict[str, list[ShareView]] = defaultdict(list)
        for one in self.shares:
            if one.node is not None:
                found[one.resource].append(one)
        return dict(found)

    def record_attempt(self, one: Attempt) -> None:
        """Record an attempt that may not help, so that it is not repeated soon."""
        self.attempts.append(one)
        self.attempted.add(one.what)

    def waiting(self, resource: str) -> list[ShareView]:
        """The share pods that request the resource and have no node."""
        return self._waiting.get(resource, [])

    def is_wanted(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod should exist: its quota and pool exist, the pool still has its
        shape and names the model of its cards, it is not being deleted, not all of its cards have
        failed, and its pod exists or may be created."""
        known = self._wanted.get(shadow.key)
        if known is None or known[0] is not shadow:
            known = self._wanted[shadow.key] = shadow, self._find_wanted(shadow)
        return known[1]

    def is_retried_later(self, shadow: ShadowView) -> bool:
        """Whether its kubelet has just refused the shadow pod, so that none takes its place yet."""
        at = retried_at(shadow)
        return at is not None and at > self.now

    def keeps_failed_cards(self, shadow: ShadowView) -> bool:
        """Whether all of its cards have failed too soon after its start for it to be replaced, and
        no pod uses it. There is no other reason for its end, which has not begun either."""
        until = failed_until(shadow)
        kept = until is not None and until > self.now and not shadow.held
        stays = kept and self.stages[shadow.key] is ShadowStage.STARTING
        return stays and self._is_allowed(shadow)

    def _find_wanted(self, shadow: ShadowView) -> bool:
        return self._is_allowed(shadow) and not shadow.all_failed

    def _is_allowed(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod should exist if its cards work."""
        quota = self.active_quotas.get(shadow.quota_key)
        if quota is None or shadow.pool not in self.pools or shadow.deleting:
            return False
        if shadow.pod is None and shadow.key in self._names_taken:
            return False
        if self._has_wrong_card(shadow):
            return False
        if shadow.quota_uid and shadow.quota_uid != quota.metadata.uid:
            return False
        return self._has_shape(shadow)

    def _has_wrong_card(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod is on a node whose cards are known to be of a model that its pool
        does not name. A shadow pod that is ready or in use is left alone."""
        node = self.nodes.get(shadow.on_node or "")
        if node is None or shadow.ready or shadow.held:
            return False
        return has_other_model(node, self.pools[shadow.pool])

    def _has_shape(self, shadow: ShadowView) -> bool:
        """Whether the pool would still create the shadow pod with these cards and devices. Changed
        limits are applied to an existing shadow pod, but its shape is fixed."""
        held = _physical_resource(shadow.pod.carve if shadow.pod else None)
        if held not in (None, self.pools[shadow.pool].spec.physical_resource):
            return False  # the pool was deleted and made again for other cards
        entitlement = self.entitlements.of(shadow.quota_key, shadow.devices)
        if entitlement is None:
            return self.pools[shadow.pool].spec.profile(shadow.devices) is not None
        return entitlement.profile.cards == shadow.cards and shadow.resource in (
            "",
            entitlement.resource,
        )

    def is_given_up(self, shadow: ShadowView) -> bool:
        """Whether no share pod waits for the shadow pod's devices any more, since the node's agent
        is silent and a shadow pod on another node can replace it."""
        if shadow.key not in self.silence.unanswered or shadow.pool not in self.pools:
            return False
        return shadow.pod is not None and self.feasible_nodes.has_others(
            shadow.pool, shadow.pod.needs
        )

    def is_live(self, shadow: ShadowView) -> bool:
        """Whether share pods can get the shadow pod's devices, now or soon, and keep them."""
        return self.stages[shadow.key] in LIVE and self.is_wanted(shadow)

    def _counts(self, shadow: ShadowView, stage: ShadowStage) -> bool:
        """Whether the shadow pod counts against its quota."""
        return stage is not ShadowStage.GONE and not self.is_stranded(shadow)

    def is_stranded(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod's end is overdue, since its node does not confirm it."""
        at = self.stranded_at(shadow)
        return at is not None and at <= self.now

    def stranded_at(self, shadow: ShadowView) -> datetime | None:
        """From when on the shadow pod counts as stranded on a node that does not answer; None if it
        is not being deleted on such a node."""
        return stranded_at(shadow.pod, self.nodes.get(shadow.on_node or ""))

    def refusal(self, shadow: ShadowView) -> str | None:
        """The API server's message if it refused to create the shadow pod's pod; None if it did
        not."""
        if self.stages[shadow.key] is not ShadowStage.NO_POD:
            return None
        return self.refused.get((shadow.quota_key, shadow.devices))

    def blocked_by(self, shadow: ShadowView) -> str | None:
        """Why the shadow pod gets no node for now: its pod is refused or unschedulable; None if
        neither."""
        return self.refusal(shadow) or shadow.unschedulable

    def on_same_node(self, shadow: ShadowView) -> list[ShadowView]:
        """The shadow pods of the same resource on the same node, itself included."""
        return self._on_node.get((shadow.on_node or "", shadow.resource), [])

    @cached_property
    def _on_node(self) -> dict[tuple[str, str], list[ShadowView]]:
        found: defaultdict[tuple[str, str], list[ShadowView]] = defaultdict(list)
        for one in self._given:
            found[one.on_node or "", one.resource].append(one)
        return dict(found)

    def cards_held(self, pool: str | None = None, resource: str | None = None) -> Counter[str]:
        """How many cards the shadow pods hold on each node: those of one pool, or all; those with
        cards of one physical resource, or all. Which cards an unknown pool has is not known, so
        its shadow pods count for each resource."""
        held: Counter[str] = Counter()
        for key, shadow in self.shadows.items():
            place = shadow.on_node
            if shadow.pod is None or place is None or pool not in (None, shadow.pool):
                continue
            known = self.pools.get(shadow.pool)
            if known is not None and resource not in (None, known.spec.physical_resource):
                continue
            if self.stages[key] is not ShadowStage.LOST:
                held[place] += shadow.cards
        return held

    def card_sizes(self, pool: str) -> dict[str, int]:
        """MiB of memory of the largest card that the pool's shadow pods hold on each node, as far
        as node agents have reported it."""
        found = dict[str, int]()
        for shadow in self.shadows.values():
            if shadow.pool == pool and shadow.card_mib and (node := shadow.on_node):
                found[node] = max(found.get(node, 0), shadow.card_mib)
        return found

    def in_order(self) -> Sequence[tuple[ShadowView, ShadowStage]]:
        """All shadow pods as they are now, by name."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.shadows)
        if self._in_order is None:
            self._in_order = [(self.shadows[key], self.stages[key]) for key in self._sorted_keys]
        return self._in_order

    def unsettled(self) -> Sequence[tuple[ShadowView, ShadowStage]]:
        """The shadow pods that are not both ready and wanted, or have users on cards that are gone,
        as they are now, by name: few of a large cluster, and the only ones that most decisions are
        about."""
        if self._unsettled is None:
            found = (one for quota in self._unsettled_of for one in self._unsettled_of.of(quota))
            self._unsettled = [(one, self.stages[one.key]) for one in sorted(found, key=_key)]
        return self._unsettled

    def create(
        self, entitlement: Entitlement, needs: Needs, reason: CreationReason
    ) -> CreateShadow:
        """Plan one more shadow pod, which counts against the entitlement's quota; returns the
        action."""
        sequence, name = self._next(entitlement)
        action = CreateShadow(
            shadow=(entitlement.key[0], name),
            pool=entitlement.pool.metadata.name,
            quota=entitlement.key[1],
            quota_uid=entitlement.quota.metadata.uid or "",
            resource=entitlement.resource,
            devices=entitlement.profile.devices,
            cards=entitlement.profile.cards,
            sequence=sequence,
            needs=needs,
            reason=reason,
        )
        self.do(action)
        return action

    def next_sequence(self, quota: Key) -> int:
        """The lowest sequence number that no shadow pod of the quota ever had."""
        return self._sequences.get(quota, 0)

    def _next(self, entitlement: Entitlement) -> tuple[int, str]:
        uid, devices = entitlement.quota.metadata.uid or "", entitlement.profile.devices
        named = ((one, shadow_name(uid, devices, one)) for one in self._numbers(entitlement))
        sequence, name = next(one for one in named if self._is_free(entitlement.key[0], one[1]))
        self._sequences[entitlement.key] = max(self.next_sequence(entitlement.key), sequence + 1)
        return sequence, name

    def _is_free(self, namespace: str, name: str) -> bool:
        """Whether no known object has the name."""
        return (namespace, name) not in self.shadows and (namespace, name) not in self._names_taken

    def _numbers(self, entitlement: Entitlement) -> Iterator[int]:
        """The sequence numbers to try, first those of creations without an answer: if such a
        creation were repeated under another name and took effect after all, there would be one
        shadow pod too many."""
        shape = entitlement.key, entitlement.profile.devices
        yield from (number for *of, number in self._unanswered if (*of,) == shape)
        yield from itertools.count(self.next_sequence(entitlement.key))

    def _put(self, shadow: ShadowView) -> None:
        key, stage = shadow.key, stage_of(shadow, self.nodes)
        self.shadows[key], self.stages[key] = shadow, stage
        self._of_resource.put(shadow.resource, key, shadow)
        self._of_quota.put(shadow.quota_key, key, shadow)
        settled = stage is ShadowStage.READY and self.is_wanted(shadow)
        if shadow.on_lost_cards or not settled:
            self._unsettled_of.put(shadow.quota_key, key, shadow)
        self.usage.add(shadow, exists=self._counts(shadow, stage), live=self.is_live(shadow))

    def _put_share(self, share: ShareView) -> None:
        if share.node is None:
            self._waiting[share.resource].append(share)
            return
        place = share.node, share.resource
        self.bound[place].append(share)
        self.bound_devices[place] += share.count

    def _drop(self, shadow: ShadowView) -> None:
        stage = self.stages[shadow.key]
        exists = self._counts(shadow, stage)
        self.usage.add(shadow, exists=exists, live=self.is_live(shadow), by=-1)
        self._of_resource.drop(shadow.resource, shadow.key)
        self._of_quota.drop(shadow.quota_key, shadow.key)
        self._unsettled_of.drop(shadow.quota_key, shadow.key)
        del self.shadows[shadow.key], self.stages[shadow.key]


def _key(shadow: ShadowView) -> Key:
    return shadow.key


@lru_cache(maxsize=1024)
def _physical_resource(carve: str | None) -> str | None:
    """The resource of the cards that a shadow pod's carve names; None if that is not known."""
    try:
        return Carve.from_json(carve).physical_resource if carve else None
    except CarveRefused:
        return None


def _sequences(snapshot: Snapshot) -> dict[Key, int]:
    """Per quota, the first sequence number that no shadow pod ever had, as far as is known."""
    found = {quota_key(one): one.status.next_sequence for one in snapshot.quotas}
    for one in snapshot.shadows:
        found[one.quota_key] = max(found.get(one.quota_key, 0), one.sequence + 1)
    return found
