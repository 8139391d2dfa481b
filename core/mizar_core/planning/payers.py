"""Who pays for a shadow pod that a share pod needs, and what that has to ask for."""

from __future__ import annotations

from dataclasses import dataclass

from mizar_core.names import EventReason
from mizar_core.planning.draft import Draft
from mizar_core.planning.fit import Needs
from mizar_core.planning.offers import Offer
from mizar_core.planning.refusals import Denial, denial, too_many
from mizar_core.planning.snapshot import ShareView

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
