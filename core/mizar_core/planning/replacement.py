"""Idle shadow pods that are replaced: their quota allows no more, and a share pod of it waits that
cannot use them, for where they are, for their profile, or for what the scheduler says of their
node. As many as it takes, and only where a node has cards for what replaces them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mizar_core.names import EventReason
from mizar_core.planning.actions import Drain
from mizar_core.planning.creation import Denial
from mizar_core.planning.demand import Outcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.first_fit import Bins
from mizar_core.planning.node_fit import fits
from mizar_core.planning.quotas import Offer
from mizar_core.planning.reap import Spare, by_idleness, is_above_min, is_idle
from mizar_core.planning.scheduling import Spot
from mizar_core.planning.shadow_stage import Stage
from mizar_core.planning.snapshot import ShadowView, ShareView, Try


def replace_idle(draft: Draft, outcomes: dict[str, Outcome], spare: Spare) -> None:
    """Drain what keeps a quota from paying for a shadow pod that somebody waits for."""
    replacing = _Replacing(draft, spare)
    for outcome in outcomes.values():
        coming, kept = Bins(), _kept_in_vain(outcome)
        for share in outcome.waiting:
            denied = outcome.denials.get(share.uid)
            if denied is None or denied.offer is None:
                continue
            place = outcome.placement.places[share.uid]
            pot = share.resource, place.node or ""
            spare.add(pot, kept[place.node])
            attempt = _attempt(share, place.spot)
            if _fits(coming, share) or replacing.make_room(share, denied.offer, coming, attempt):
                outcome.denials[share.uid] = _told(denied.offer)
            spare.add(pot, -kept[place.node])


def _kept_in_vain(outcome: Outcome) -> Counter[str | None]:
    """Devices per node that are kept for pods that the scheduler refuses that node: theirs to
    give."""
    kept = Counter[str | None]()
    for share in outcome.waiting:
        if node := outcome.placement.places[share.uid].node:
            kept[node] += share.count
    return kept


def _fits(coming: Bins, share: ShareView) -> bool:
    return coming.put(share.count, share.needs, share.groups) is not None


def _attempt(share: ShareView, spot: Spot) -> Try:
    """Where the scheduler refuses a node nobody knows whether another will do, so one at a time is
    replaced for an owner."""
    who = share.owner if spot is Spot.PASSED and share.owner else share.uid
    return Try(f"replace/{who}", share.uid)


def _told(offer: Offer) -> Denial:
    return Denial(
        EventReason.WAITING_FOR_SHADOW,
        f"a shadow pod of quota {offer.key[1]} that it cannot use gives way to one for it",
    )


class _Replacing:
    """`left`: what quotas pay for once what is drained is gone and what replaces it is there."""

    def __init__(self, draft: Draft, spare: Spare) -> None:
        self._draft = draft
        self._spare = spare
        self._cards: dict[str, Bins] = {}
        self._left = draft.usage.live.copy()

    def make_room(self, share: ShareView, offer: Offer, coming: Bins, attempt: Try) -> bool:
        """Whether the quota has, or will have, room for a shadow pod for the share pod."""
        draft = self._draft
        if self._left.refusal(offer) is not None:
            victims = self._victims(offer) if attempt.what not in draft.tried else []
            if not victims or not self._has_cards(share, offer):
                return False
            draft.attempt(attempt)
            self._drain(victims)
        self._left.count(offer.key, offer.profile.devices, offer.profile.cards)
        pool = offer.pool.metadata.name
        needs = draft.sites.needed(pool, share.needs)
        coming.add(offer.profile.devices, draft.sites.to(pool, needs))
        return _fits(coming, share)

    def _drain(self, victims: Iterable[ShadowView]) -> None:
        for shadow in victims:
            self._spare.take(shadow)
            self._left.add(shadow, by=-1)
            why = "it gives way to one that a pod waits for"
            self._draft.do(Drain(shadow.key, self._draft.now, why))

    def _victims(self, offer: Offer) -> list[ShadowView]:
        """Idle shadow pods of the quota without which it allows one more of the offer's; none if
        there are not enough. The offer's minimum is kept by what replaces them."""
        draft, left, chosen = self._draft, self._left.copy(), list[ShadowView]()
        for shadow in by_idleness(draft, draft.of_quota(offer.key)):
            if left.refusal(offer) is None:
                break
            helps = shadow.devices == offer.profile.devices or (
                not left.is_full(offer) and is_above_min(draft, shadow, beside=chosen)
            )
            if helps and is_idle(draft, shadow) and self._spare.has(shadow, beside=chosen):
                left.add(shadow, by=-1)
                chosen.append(shadow)
        return chosen if left.refusal(offer) is None else []

    def _has_cards(self, share: ShareView, offer: Offer) -> bool:
        """Whether a node for the share pod has cards, or will once idle shadow pods give way."""
        resource = offer.pool.spec.physical_resource
        if resource not in self._cards:
            self._cards[resource] = _cards(self._draft, resource)
        needs = self._draft.sites.needed(offer.pool.metadata.name, share.needs)
        return self._cards[resource].put(offer.profile.cards, needs) is not None


def _cards(draft: Draft, resource: str) -> Bins:
    """The cards of each node that nobody uses, as far as is known."""
    used, bins = Counter[str](), Bins()
    for key, shadow in draft.shadows.items():
        if draft.stages[key] not in (Stage.LOST, Stage.DRAINING) and not is_idle(draft, shadow):
            used[shadow.place or ""] += shadow.cards
    for node in draft.nodes.values():
        if node.available and resource in node.cards:
            others = draft.taken.get((resource, node.name), 0)
            free = node.cards[resource].healthy - used[node.name] - others
            bins.add(free, lambda needs, node=node: fits(needs, node))  # type: ignore[misc]
    return bins
