"""Whether one more shadow pod may be created: which quota pays for it and what it must ask of its
node, or why there can be none."""

from __future__ import annotations

from dataclasses import dataclass

from mizar_core.names import EventReason, parse_resource
from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.quotas import Entitlement
from mizar_core.planning.snapshot import Attempt, ShareView


@dataclass(frozen=True, slots=True)
class Denial:
    """Why no shadow pod is created: the rest of a sentence, and the event that tells it.

    `offer`: which would pay if its quota allowed more."""

    reason: EventReason
    message: str
    entitlement: Entitlement | None = None


def denial_for(draft: Draft, entitlement: Entitlement) -> Denial | None:
    """Why an offer can't have one more shadow pod now; None if it can."""
    if excess := draft.usage.existing.limit_reached(entitlement):
        return Denial(EventReason.QUOTA_EXCEEDED, excess, entitlement)
    if message := draft.refused.get((entitlement.key, entitlement.profile.devices)):
        return Denial(EventReason.SHADOW_REFUSED, refusal_message(message))
    return None


def too_many_devices(share: ShareView) -> Denial | None:
    """Why no shadow pod alone could serve the share pod; None if one can.

    It may still run: on a node where several shadow pods have free devices enough.
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


def refusal_message(message: str) -> str:
    """The API server's words, introduced."""
    return f"the API server refuses a shadow pod: {message}"


# Each is a line in the pod's spec.
EXCLUDED_NODES_MAX = 256


@dataclass(frozen=True, slots=True)
class Creation:
    """A quota that allows one more shadow pod, and what that has to ask of its node."""

    entitlement: Entitlement
    needs: Needs


def creation_for(draft: Draft, share: ShareView) -> Creation | Denial | None:
    """The first quota that allows one more shadow pod for the share pod, or why the first one does
    not; None where there is no quota to ask."""
    first = None
    for entitlement in draft.entitlements.to(share.namespace, share.resource):
        pool = entitlement.pool.metadata.name
        needs = draft.feasible_nodes.needs_for(pool, share.needs)
        why = (
            too_many_devices(share)
            or _no_node_fits(draft, entitlement, share, needs)
            or denial_for(draft, entitlement)
        )
        if why is None:
            return Creation(entitlement, needs)
        first = first or why
    return first


def _no_node_fits(
    draft: Draft, entitlement: Entitlement, share: ShareView, needs: Needs
) -> Denial | None:
    """Why no node of the pool could ever be the share pod's."""
    name = entitlement.pool.metadata.name
    pool = dict(entitlement.selector)
    for key, value in sorted(share.needs.selector):
        if pool.get(key, value) != value:
            return _no_node(f"its nodeSelector {key}={value} excludes the nodes of pool {name}")
    if len(share.needs.excluded_nodes) > EXCLUDED_NODES_MAX:
        return _no_node(f"there are {len(share.needs.excluded_nodes)} nodes that it cannot go to")
    if found := draft.feasible_nodes.forbidding_taint(name, needs):
        node, taint = found
        return _no_node(
            f"it does not tolerate the taint {taint} of node {node}, nor is there a node of pool "
            f"{name} for it without one: add a toleration to the pod"
        )
    return None


def _no_node(message: str) -> Denial:
    return Denial(EventReason.NO_NODE_FITS, message)


def creation_elsewhere(draft: Draft, share: ShareView) -> Creation | Denial:
    """Who pays for a shadow pod on another node: one at a time for all share pods of an owner, and
    not again soon where it was in vain. Else what the scheduler says."""
    what = f"carry/{share.owner or share.uid}/{share.resource}"
    found = creation_for(draft, share) if what not in draft.attempted else None
    if isinstance(found, Creation):
        draft.record_attempt(Attempt(what, share.uid))
        return found
    also = f" (on other nodes: {found.message})" if found else ""
    return Denial(
        EventReason.NO_NODE_FITS,
        f"devices are free, but the scheduler finds no node: {share.unschedulable}{also}",
        found.entitlement if found else None,
    )
