"""Decides whether one more shadow pod may be created: the quota that it counts against and its
constraints on the node, or why it is denied. demand.py decides how many are created."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mizar_core.models import GPUQuota
from mizar_core.names import LABEL_NODE, EventReason, parse_resource
from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import HOSTNAME, Needs
from mizar_core.planning.postponed import EPOCH, next_turn
from mizar_core.planning.quotas import Entitlement
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import Attempt, ShadowView, ShareView

MOVE_TURN = timedelta(seconds=60)
"""How long one of the resources of a pod may be moved to another node, and how long none may until
the next one may."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why no shadow pod is created. `reason`, `message`: those of the event that reports it; the
    message completes a sentence. `entitlement`: the one that would allow it if its quota were
    larger."""

    reason: EventReason
    message: str
    entitlement: Entitlement | None = None


def denial_for(draft: Draft, entitlement: Entitlement) -> Denial | None:
    """Why no further shadow pod of an entitlement can be created now; None if it can."""
    if (shadow := draft.refused_by_kubelet.get(entitlement.shape)) is not None:
        return Denial(
            EventReason.SHADOW_REFUSED,
            f"the kubelet of node {shadow.on_node} has refused shadow pod {shadow.name}, and "
            f"another one is tried in a moment{_why(shadow)}",
        )
    if excess := draft.usage.existing.limit_reached(entitlement):
        if (failed := _with_failed_cards(draft, entitlement)) is not None:
            return Denial(EventReason.NO_CARD_FREE, _failed_message(failed))
        return Denial(EventReason.QUOTA_EXCEEDED, excess, entitlement)
    if message := draft.refused.get((entitlement.key, entitlement.profile.devices)):
        return Denial(EventReason.SHADOW_REFUSED, refusal_message(message))
    return None


def _why(shadow: ShadowView) -> str:
    refusal = shadow.pod.refusal if shadow.pod else ""
    return f" ({refusal})" if refusal else ""


def _with_failed_cards(draft: Draft, entitlement: Entitlement) -> ShadowView | None:
    """A shadow pod that keeps its place although its cards have failed, if the quota allows another
    one without such shadow pods; else None."""
    kept = [one for one in draft.unsettled_of(entitlement.key) if draft.keeps_failed_cards(one)]
    if not kept:
        return None
    left = draft.usage.existing.only(entitlement.key)
    for one in kept:
        left.add(one, by=-1)
    return kept[0] if left.limit_reached(entitlement) is None else None


def _failed_message(shadow: ShadowView) -> str:
    """Why no other shadow pod takes the place of one with failed cards yet, as a sentence."""
    return (
        f"the cards of shadow pod {shadow.name} on node {shadow.on_node} have failed, as its "
        "condition Healthy says: another one is tried in a minute"
    )


def has_node(draft: Draft, share: ShareView) -> bool:
    """Whether a present node fits a shadow pod for the share pod."""
    found = draft.entitlements.for_pods_of(share.namespace, share.resource)
    feasible, pools = draft.feasible_nodes, {one.pool.metadata.name for one in found}
    return any(feasible.has_any(one, feasible.needs_for(one, share.needs)) for one in pools)


def too_many_devices(share: ShareView) -> Denial | None:
    """Why no single shadow pod could serve the share pod; None if one can.

    The share pod may still run on a node where several shadow pods have enough free devices.
    """
    parsed = parse_resource(share.resource)
    most = parsed.profile if parsed else 0
    if share.count <= most:
        return None
    return Denial(
        EventReason.TOO_MANY_DEVICES,
        f"asks for {share.count} devices, a shadow pod of profile {most} has {most}, and no node "
        f"has as many free: ask for {most} at most, or for a larger profile",
    )


def no_entitlement(draft: Draft, share: ShareView) -> Denial:
    """Why no quota of the share pod's namespace allows a shadow pod for its request: the namespace
    has no quota, or none with the profile."""
    parsed = parse_resource(share.resource)
    profile = parsed.profile if parsed else 0
    own = sorted(key for key in draft.active_quotas if key[0] == share.namespace)
    if own:
        has = ", ".join(_profiles(draft.active_quotas[key]) for key in own)
        return Denial(
            EventReason.UNKNOWN_PROFILE,
            f"no quota of namespace {share.namespace} ({has}) has profile {profile} "
            "of a pool that offers it: request a profile that a quota has, or ask an administrator "
            "to add this one",
        )
    return Denial(
        EventReason.NO_QUOTA,
        f"namespace {share.namespace} has no GPUQuota of a pool that offers {share.resource}: ask "
        f"an administrator for one with profile {profile}",
    )


def _profiles(quota: GPUQuota) -> str:
    """The quota's name and the profiles that it has, for a message."""
    found = " and ".join(str(one.devices) for one in quota.spec.profiles)
    return f"{quota.metadata.name} has {found or 'none'}"


def refusal_message(message: str) -> str:
    """The API server's refusal of a shadow pod as a sentence."""
    return f"the API server refuses a shadow pod: {message}"


EXCLUDED_NODES_MAX = 256
"""The most nodes that a shadow pod's affinity may exclude by name: each takes a requirement of its
own in the pod's spec."""

EXCLUDED_HOSTNAMES_MAX = 5_000
"""The most hostnames, or values of Mizar's label, that a shadow pod's affinity may exclude: as many
as Kubernetes supports nodes. They take about a quarter of a MiB, and even with names of 253
characters, the longest, less than the 1.5 MiB that etcd accepts."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A shadow pod to create: the entitlement that allows it, and its pod's constraints on the
    node."""

    entitlement: Entitlement
    needs: Needs


def creation_for(draft: Draft, share: ShareView) -> Creation | Denial | None:
    """The shadow pod to create for the share pod, by the first quota that allows it; the first
    quota's denial if none does; None if the namespace has no quota for the resource."""
    first = None
    for entitlement in draft.entitlements.for_pods_of(share.namespace, share.resource):
        pool = entitlement.pool.metadata.name
        why = (
            too_many_devices(share)
            or _no_node_can_fit(draft, entitlement, share)
            or denial_for(draft, entitlement)
        )
        if why is None:
            needs = _shortened(draft, draft.feasible_nodes.needs_for(pool, share.needs))
            return Creation(entitlement, needs.outlasting(share.outages))
        first = first or why
    return first


def _no_node_can_fit(draft: Draft, entitlement: Entitlement, share: ShareView) -> Denial | None:
    """Why no node of the pool, present or future, can run the share pod; None if one may. A shadow
    pod is created even if no present node fits: a cluster autoscaler adds nodes only for pending
    pods."""
    name = entitlement.pool.metadata.name
    pool = dict(entitlement.selector)
    for key, value in sorted(share.needs.selector):
        if pool.get(key, value) != value:
            return _no_node(f"its nodeSelector {key}={value} excludes the nodes of pool {name}")
    if share.needs.terms and all(one.is_empty for one in share.needs.terms):
        return _no_node(
            "no node can ever match its node affinity, whose terms are empty, or it has more node "
            "selectors, tolerations and affinity terms than Mizar reads"
        )
    if _excludes_too_many(_shortened(draft, share.needs)):
        return _no_node(
            f"it cannot run on {len(share.needs.excluded_nodes)} nodes, too many to exclude: the "
            "scheduler refuses them (the pod's condition PodScheduled says why), or a pod there "
            "excludes it by anti-affinity"
        )
    return None


def _shortened(draft: Draft, needs: Needs) -> Needs:
    if len(needs.excluded_nodes) > EXCLUDED_NODES_MAX:
        return draft.feasible_nodes.shortened(needs)
    # Each of the pod's own terms repeats the line with the labels, but not the names.
    found = draft.feasible_nodes.by_label(needs)
    return needs if _excludes_too_many(found) else found


def _excludes_too_many(needs: Needs) -> bool:
    lines = [one for term in needs.terms for one in term.labels if one.operator == "NotIn"]
    hosts = (len(one.values) for one in lines if one.key in (HOSTNAME, LABEL_NODE))
    return len(needs.excluded_nodes) > EXCLUDED_NODES_MAX or sum(hosts) > EXCLUDED_HOSTNAMES_MAX


def _no_node(message: str) -> Denial:
    return Denial(EventReason.NO_NODE_FITS, message)


def finds_no_node(draft: Draft, shadow: ShadowView) -> str:
    """The scheduler's message about a shadow pod without a node, and what a person can do about it
    if only taints keep the shadow pod away."""
    message = shadow.unschedulable or ""
    if shadow.pod is None or shadow.pool not in draft.pools:
        return message
    found = draft.feasible_nodes.forbidding_taint(shadow.pool, shadow.pod.needs)
    if found is None:
        return message
    node, taint = found
    return (
        f"{message}; it does not tolerate the taint {taint} of node {node}, and pool {shadow.pool} "
        "has no node for it without such a taint: add a toleration to the share pod, or such nodes "
        "to the pool"
    )


def creation_elsewhere(draft: Draft, share: ShareView, unoffered: str = "") -> Creation | Denial:
    """A shadow pod on another node, for a share pod that the scheduler refuses although devices are
    free; or a denial, as by `scheduler_refuses`.

    It is not known whether the share pod can run on that node, so only one shadow pod is created at
    a time for all share pods of an owner, and the next one only after a delay if the last did not
    help. Of a pod's several resources, one at a time is moved (see `may_move`).
    """
    if not may_move(share, draft.now):
        return scheduler_refuses(share, unoffered)
    what = f"carry/{share.owner or share.uid}/{share.resource}"
    found = creation_for(draft, share) if what not in draft.attempted else None
    if isinstance(found, Creation):
        draft.record_attempt(Attempt(what, share.uid))
        return found
    return scheduler_refuses(share, unoffered, found)


def may_move(share: ShareView, now: datetime) -> bool:
    """Whether a shadow pod on another node may be created now for the share pod's resource. Devices
    of several resources must be on one node: if each were moved away from its own node at once, two
    would only change places, again and again. The resources have turns by the time of day, since
    each pool is planned alone; after each turn comes a pause, in which a shadow pod arrives."""
    if not share.beside:
        return True
    resources = sorted((share.resource, *share.beside))
    turn = (now - EPOCH) // MOVE_TURN % (2 * len(resources))
    return turn == 2 * resources.index(share.resource)


def next_move(now: datetime) -> datetime:
    """When the next turn begins."""
    return next_turn(now, MOVE_TURN)


def scheduler_refuses(share: ShareView, unoffered: str, elsewhere: Denial | None = None) -> Denial:
    """The denial of a share pod that the scheduler refuses although devices are free. `unoffered`:
    a sentence about free devices that their node does not offer, empty if all are offered.
    `elsewhere`: why no shadow pod is created on another node."""
    also = f" (on other nodes: {elsewhere.message})" if elsewhere else ""
    entitlement = elsewhere.entitlement if elsewhere else None
    if unoffered and share.lacks_devices:
        return Denial(EventReason.NODE_AGENT_SILENT, f"{unoffered}{also}", entitlement)
    return Denial(
        EventReason.NO_NODE_FITS,
        f"devices are free, but the scheduler finds no node: {share.unschedulable}{also}",
        entitlement,
    )


def unoffered_devices(draft: Draft, resource: str) -> str:
    """A sentence about a node whose status has no device of the resource although a shadow pod is
    ready there; empty if there is none. Its agent has ended, and can no longer say so."""
    for shadow in sorted(draft.of_resource(resource), key=lambda one: one.key):
        node = draft.nodes.get(shadow.on_node or "")
        ready = draft.stages[shadow.key] is ShadowStage.READY and shadow.healthy
        if ready and node is not None and node.available and not node.devices.get(resource):
            return (
                f"shadow pod {shadow.name} is ready, but node {node.name} does not offer its "
                "devices: check that mizar-nodeagent runs there"
            )
    return ""
