"""Why each share pod waits, as an event tells it."""

from __future__ import annotations

from collections.abc import Iterator

from mizar_core.names import EventReason, parse_resource, tenant_of
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.demand import Outcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.pots import Place, Spot, is_admitted
from mizar_core.planning.refusals import Denial, refused_sentence
from mizar_core.planning.snapshot import ShareView

SCHEDULING = "Scheduling"

Why = tuple[EventReason, str]


def explain(
    draft: Draft, resource: str, outcome: Outcome
) -> Iterator[tuple[ShareView, EmitEvent | None]]:
    """Each share pod that waits, and why; None while the scheduler is to place it, which is nothing
    to be told of."""
    for share in sorted(draft.waiting(resource), key=lambda one: one.key):
        why = _why(draft, share, outcome)
        yield share, _event(share, *why) if why is not None else None


def _why(draft: Draft, share: ShareView, outcome: Outcome) -> Why | None:
    if not is_admitted(draft, share):
        return _not_admitted(draft, share)
    place = outcome.placement.places[share.uid]
    if place.spot is Spot.NOW:
        return None
    if place.spot is Spot.COMING:
        return _coming(draft, place)
    if place.spot is Spot.STUCK:
        return _stuck(draft, place)
    if denial := outcome.denials.get(share.uid):
        return _denied(place, denial)
    return _nowhere(draft, share)


def _not_admitted(draft: Draft, share: ShareView) -> Why:
    parsed = parse_resource(share.resource)
    prefix = parsed.prefix if parsed else ""
    tenant = next(
        (t for pool in draft.pools.values() if (t := tenant_of(prefix, pool.spec.resource_prefix))),
        None,
    )
    if tenant is not None:
        return (
            EventReason.NOT_ADMITTED,
            f"{share.resource} belongs to namespace {tenant}: ask for the resource without a "
            f"namespace, as in the examples",
        )
    return (
        EventReason.NOT_ADMITTED,
        f"{share.resource} was not rewritten at admission and no node will ever offer it: "
        "see that mizar-webhook runs, then create the pod again",
    )


def _coming(draft: Draft, place: Place) -> Why:
    if place.shadow is None:
        return EventReason.WAITING_FOR_SHADOW, "a shadow pod with free devices is starting"
    return EventReason.WAITING_FOR_SHADOW, f"shadow pod {place.shadow[1]} is being created"


def _stuck(draft: Draft, place: Place) -> Why:
    assert place.shadow is not None
    shadow = draft.shadows[place.shadow]
    if refusal := draft.refusal(shadow):
        return EventReason.SHADOW_REFUSED, refused_sentence(refusal)
    message = shadow.unschedulable
    return (
        EventReason.NO_CARD_FREE,
        f"no card is free for shadow pod {place.shadow[1]}: {message}",
    )


def _denied(place: Place, denial: Denial) -> Why:
    said_all = place.spot is Spot.PASSED or denial.reason is EventReason.TOO_MANY_DEVICES
    lead = "" if said_all else "no devices are free, and "
    return denial.reason, f"{lead}{denial.message}"


def _nowhere(draft: Draft, share: ShareView) -> Why:
    parsed = parse_resource(share.resource)
    profile = parsed.profile if parsed else 0
    own = sorted(key[1] for key in draft.standing if key[0] == share.namespace)
    if own:
        return (
            EventReason.UNKNOWN_PROFILE,
            f"no quota of namespace {share.namespace} ({', '.join(own)}) has profile {profile} "
            "of a pool that offers it: add it to the quota, or ask for another profile",
        )
    return (
        EventReason.NO_QUOTA,
        f"namespace {share.namespace} has no GPUQuota: ask an administrator for one with "
        f"profile {profile}",
    )


def _event(share: ShareView, reason: EventReason, message: str) -> EmitEvent:
    normal = reason is EventReason.WAITING_FOR_SHADOW
    return EmitEvent(
        kind="Pod",
        about=share.key,
        uid=share.uid,
        type="Normal" if normal else "Warning",
        reason=reason,
        message=message,
    )
