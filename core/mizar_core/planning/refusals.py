"""Why there can't be one more shadow pod: the quota forbids it, or the API server refused it."""

from __future__ import annotations

from dataclasses import dataclass

from mizar_core.names import EventReason, parse_resource
from mizar_core.planning.draft import Draft
from mizar_core.planning.offers import Offer
from mizar_core.planning.snapshot import ShareView


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
