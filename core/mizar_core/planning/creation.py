"""Whether one more shadow pod may be created: which quota pays for it and what it must ask of its
node, or why there can be none."""

from __future__ import annotations

from dataclasses import dataclass

from mizar_core.names import EventReason, parse_resource
from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.quotas import Offer
from mizar_core.planning.snapshot import ShareView, Try


@dataclass(frozen=True, slots=True)
class Denial:
    """Why no shadow pod is created: the rest of a sentence, and the event that tells it.

    `offer`: which would pay if its quota allowed more."""

    reason: EventReason
    message: str
    offer: Offer | None = None


def denial(draft: Draft, offer: Offer) -> Denial | None:
    """Why an offer can't have one more shadow pod now; None if it can."""
    if excess := draft.usage.existing.refusal(offer):
        return Denial(EventReason.QUOTA_EXCEEDED, excess, offer)
    if message := draft.refused.get((offer.key, offer.profile.devices)):
        return Denial(EventReason.SHADOW_REFUSED, refused_sentence(message))
    return None


def too_many(share: ShareView) -> Denial | None:
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


def refused_sentence(message: str) -> str:
    """The API server's words, introduced."""
    return f"the API server refuses a shadow pod: {message}"


# Each is a line in the pod's spec.
NOT_ON_MAX = 256


@dataclass(frozen=True, slots=True)
class Payer:
    """A quota that allows one more shadow pod, and what that has to ask of its node."""

    offer: Offer
    needs: Needs


def payer(draft: Draft, share: ShareView) -> Payer | Denial | None:
    """The first quota that allows one more shadow pod for the share pod, or why the first one does
    not; None where there is no quota to ask."""
    first = None
    for offer in draft.offers.to(share.namespace, share.resource):
        pool = offer.pool.metadata.name
        needs = draft.sites.needed(pool, share.needs)
        why = too_many(share) or _unfit(draft, offer, share, needs) or denial(draft, offer)
        if why is None:
            return Payer(offer, needs)
        first = first or why
    return first


def _unfit(draft: Draft, offer: Offer, share: ShareView, needs: Needs) -> Denial | None:
    """Why no node of the pool could ever be the share pod's."""
    name = offer.pool.metadata.name
    pool = dict(offer.selector)
    for key, value in sorted(share.needs.selector):
        if pool.get(key, value) != value:
            return _no_node(f"its nodeSelector {key}={value} excludes the nodes of pool {name}")
    if len(share.needs.not_on) > NOT_ON_MAX:
        return _no_node(f"there are {len(share.needs.not_on)} nodes that it cannot go to")
    if found := draft.sites.forbidding(name, needs):
        node, taint = found
        return _no_node(
            f"it does not tolerate the taint {taint} of node {node}, nor is there a node of pool "
            f"{name} for it without one: add a toleration to the pod"
        )
    return None


def _no_node(message: str) -> Denial:
    return Denial(EventReason.NO_NODE_FITS, message)


def carrier(draft: Draft, share: ShareView) -> Payer | Denial:
    """Who pays for a shadow pod on another node: one at a time for all share pods of an owner, and
    not again soon where it was in vain. Else what the scheduler says."""
    what = f"carry/{share.owner or share.uid}/{share.resource}"
    found = payer(draft, share) if what not in draft.tried else None
    if isinstance(found, Payer):
        draft.attempt(Try(what, share.uid))
        return found
    also = f" (on other nodes: {found.message})" if found else ""
    return Denial(
        EventReason.NO_NODE_FITS,
        f"devices are free, but the scheduler finds no node: {share.unschedulable}{also}",
        found.offer if found else None,
    )
