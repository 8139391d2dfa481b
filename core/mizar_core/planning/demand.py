"""Shadow pods for those who wait and for those who may come: keep `min` warm, meet demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mizar_core.names import EventReason
from mizar_core.planning.actions import CancelDrain
from mizar_core.planning.bins import Bins
from mizar_core.planning.draft import Draft
from mizar_core.planning.offers import Offer
from mizar_core.planning.pots import Placement, Spot, demand, place
from mizar_core.planning.refusals import Denial, denial, too_many
from mizar_core.planning.snapshot import Key, Pairs, ShadowView, ShareView
from mizar_core.planning.stages import Stage


@dataclass
class Outcome:
    """A pot once all that can be done for it is planned. `denials`: why a pod got no shadow
    pod, by the pod's UID."""

    waiting: list[ShareView]
    placement: Placement
    denials: dict[str, Denial] = field(default_factory=dict)


def keep_warm(draft: Draft) -> None:
    """At least `min` shadow pods of every offer, as far as the quota's cards go."""
    for offer in draft.offers:
        missing = offer.limits.min - draft.usage.live.shadows[offer.key, offer.profile.devices]
        for _ in range(missing):
            if not _revive_one(draft, offer) and not _create_one(draft, offer):
                break


def meet(draft: Draft, resource: str) -> Outcome:
    """Cancel drains and create shadow pods until everybody who can be helped is.

    Placed anew after each round, so that the next plan, which sees the same devices, comes to the
    same placement and plans nothing.
    """
    waiting = demand(draft, resource)
    while True:
        placement = place(draft, resource, waiting)
        planned = len(draft.actions)
        hopeless = [one for one in waiting if _spot(placement, one) is Spot.STUCK]
        nowhere = [one for one in waiting if _spot(placement, one) is Spot.NOWHERE]
        helped = _revive(draft, resource, hopeless + nowhere)
        denials = _create(draft, [one for one in nowhere if one.uid not in helped])
        if len(draft.actions) == planned:
            return Outcome(waiting, placement, denials)


def _spot(placement: Placement, share: ShareView) -> Spot:
    return placement.places[share.uid].spot


def _revive(draft: Draft, resource: str, waiting: Iterable[ShareView]) -> set[str]:
    """Cancel the drains that would help; returns the UIDs of those helped."""
    candidates = _revivable(draft, resource)
    bins, helped, hopeless = Bins(), set[str](), set[Pairs]()
    for share in waiting:
        fits = bins.put(share.count, share.selector) is not None
        if not fits and share.selector not in hopeless and too_many(share) is None:
            chosen = _pick(draft, candidates, share)
            if chosen is None:
                hopeless.add(share.selector)
                continue
            draft.do(CancelDrain(chosen.key))
            bins.add(chosen.devices, draft.nodes[chosen.place or ""].labels)
            fits = bins.put(share.count, share.selector) is not None
        if fits:
            helped.add(share.uid)
    return helped


def _revivable(draft: Draft, resource: str) -> list[ShadowView]:
    """Draining shadow pods that the scheduler could use again, the last asked first."""
    found = [one for one in draft.of_resource(resource) if _is_revivable(draft, one)]
    return sorted(found, key=_last_asked_first)


def _last_asked_first(shadow: ShadowView) -> tuple[float, Key]:
    asked = shadow.pod.drain_asked if shadow.pod else None
    return -(asked.timestamp() if asked else 0.0), shadow.key


def _is_revivable(draft: Draft, shadow: ShadowView) -> bool:
    if draft.stages[shadow.key] is not Stage.DRAINING or not draft.is_wanted(shadow):
        return False
    node = draft.nodes.get(shadow.place or "")
    return node is not None and node.available


def _pick(draft: Draft, candidates: list[ShadowView], share: ShareView) -> ShadowView | None:
    for position, shadow in enumerate(candidates):
        offer = draft.offers.of(shadow.quota_key, shadow.devices)
        if offer is None or draft.usage.live.refusal(offer) is not None:
            continue
        if share.selector <= draft.nodes[shadow.place or ""].labels:
            return candidates.pop(position)
    return None


def _revive_one(draft: Draft, offer: Offer) -> bool:
    if draft.usage.live.refusal(offer) is not None:
        return False
    for shadow in _revivable(draft, offer.resource):
        if shadow.quota_key == offer.key:
            draft.do(CancelDrain(shadow.key))
            return True
    return False


def _create_one(draft: Draft, offer: Offer) -> bool:
    if denial(draft, offer) is not None:
        return False
    draft.create(offer)
    return True


def _create(draft: Draft, waiting: Iterable[ShareView]) -> dict[str, Denial]:
    """Create what the waiting pods need; returns why not, for those who get nothing."""
    bins, denials = Bins(), dict[str, Denial]()
    for share in waiting:
        if bins.put(share.count, share.selector) is not None:
            continue
        offer, why = _payer(draft, share)
        if offer is None:
            if why is not None:
                denials[share.uid] = why
            continue
        action = draft.create(offer, _needed(draft, offer, share))
        bins.add(offer.profile.devices, draft.promised(action.selector))
        bins.put(share.count, share.selector)
    return denials


def _payer(draft: Draft, share: ShareView) -> tuple[Offer | None, Denial | None]:
    """The first quota that allows one more shadow pod for the share pod, or why none does; two
    Nones where there is no quota to ask."""
    first = None
    for offer in draft.offers.to(share.namespace, share.resource):
        found = too_many(share) or _contradiction(offer, share) or denial(draft, offer)
        if found is None:
            return offer, None
        first = first or found
    return None, first


def _contradiction(offer: Offer, share: ShareView) -> Denial | None:
    pool = dict(offer.selector)
    for key, value in sorted(share.selector):
        if pool.get(key, value) != value:
            name = offer.pool.metadata.name
            return Denial(
                EventReason.NO_NODE_FITS,
                f"its nodeSelector {key}={value} excludes the nodes of pool {name}",
            )
    return None


def _needed(draft: Draft, offer: Offer, share: ShareView) -> Pairs:
    """What the share pod's selector demands of the node beyond what the pool's promises."""
    return share.selector - draft.promised(offer.selector)
