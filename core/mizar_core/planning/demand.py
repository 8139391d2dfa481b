"""Shadow pods for those who wait and for those who may come: keep `min` warm, meet demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mizar_core.planning.actions import CancelDrain
from mizar_core.planning.creation import Denial, Payer, carrier, denial, payer, too_many
from mizar_core.planning.draft import Draft
from mizar_core.planning.first_fit import Bins
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.quotas import Offer
from mizar_core.planning.refused_nodes import PassedOver
from mizar_core.planning.scheduling import Placement, Spot, hardest_first, is_admitted, place
from mizar_core.planning.shadow_stage import Stage
from mizar_core.planning.snapshot import Key, ShadowView, ShareView

Choice = Payer | Denial | None


@dataclass
class Outcome:
    """A pot once all that can be done for it is planned. `denials`: why a pod got no shadow
    pod, by the pod's UID."""

    waiting: list[ShareView]
    placement: Placement
    denials: dict[str, Denial] = field(default_factory=dict)


def keep_warm(draft: Draft, offers: Iterable[Offer]) -> None:
    """At least `min` shadow pods of every offer, as far as the quota's cards go."""
    for offer in offers:
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
        passed = [one for one in waiting if _spot(placement, one) is Spot.PASSED]
        helped = _revive(draft, resource, hopeless + nowhere)
        denials = _create(draft, [one for one in nowhere if one.uid not in helped], payer)
        denials |= _create(draft, passed, carrier)
        if len(draft.actions) == planned:
            return Outcome(waiting, placement, denials)


def demand(draft: Draft, resource: str) -> list[ShareView]:
    """The waiting share pods that devices of the resource could serve, hardest first, each asking
    for none of the nodes that the scheduler has refused it."""
    found = [one for one in draft.waiting(resource) if is_admitted(draft, one)]
    if not found:
        return []
    passed = PassedOver(draft, resource)
    return sorted((passed.without(one) for one in found), key=hardest_first)


def _spot(placement: Placement, share: ShareView) -> Spot:
    return placement.places[share.uid].spot


def _revive(draft: Draft, resource: str, waiting: Iterable[ShareView]) -> set[str]:
    """Cancel the drains that would help; returns the UIDs of those helped."""
    candidates = _revivable(draft, resource)
    bins, helped, hopeless = Bins(), set[str](), set[tuple[Needs, frozenset[str]]]()
    for share in waiting:
        fits = bins.put(share.count, share.needs, share.groups) is not None
        kind = share.needs, share.groups
        if not fits and kind not in hopeless and too_many(share) is None:
            chosen = _pick(draft, candidates, share)
            if chosen is None:
                hopeless.add(kind)
                continue
            draft.do(CancelDrain(chosen.key))
            _add_node(draft, bins, chosen)
            fits = bins.put(share.count, share.needs, share.groups) is not None
        if fits:
            helped.add(share.uid)
    return helped


def _add_node(draft: Draft, bins: Bins, shadow: ShadowView) -> None:
    node = draft.nodes[shadow.place or ""]
    groups = draft.groups(node.name, shadow.resource)
    bins.add(shadow.devices, lambda needs: fits(needs, node), groups)


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
        if _may_go_to(draft, share, shadow.place or ""):
            return candidates.pop(position)
    return None


def _may_go_to(draft: Draft, share: ShareView, node: str) -> bool:
    occupied = share.groups & draft.groups(node, share.resource)
    return fits(share.needs, draft.nodes[node]) and not occupied


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
    draft.create(offer, draft.sites.of_pool(offer.pool.metadata.name))
    return True


def _create(
    draft: Draft, waiting: Iterable[ShareView], choose: Callable[[Draft, ShareView], Choice]
) -> dict[str, Denial]:
    """Create what the waiting pods need, at the cost of whom `choose` names; returns why not, for
    those who get nothing."""
    bins, denials = Bins(), dict[str, Denial]()
    for share in waiting:
        if bins.put(share.count, share.needs, share.groups) is not None:
            continue
        chosen = choose(draft, share)
        if isinstance(chosen, Payer):
            action = draft.create(chosen.offer, chosen.needs)
            bins.add(action.devices, draft.sites.to(action.pool, action.needs))
            bins.put(share.count, share.needs, share.groups)
        elif chosen is not None:
            denials[share.uid] = chosen
    return denials
