"""The events of a plan: why each share pod waits, what was decided about shadow pods, and silent
node agents."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from mizar_core.names import EventReason, ReapReason, parse_resource, tenant_of
from mizar_core.planning.actions import Action, CreateShadow, DeleteShadow, Drain, EmitEvent
from mizar_core.planning.creation_checks import (
    Denial,
    finds_no_node,
    no_entitlement,
    refusal_message,
)
from mizar_core.planning.default_quotas import why_no_default
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.evict_share_pods import loss_reason
from mizar_core.planning.lifecycle import waits_for_silent_agent
from mizar_core.planning.preempt_idle import waits_for_cards
from mizar_core.planning.quotas import ShadowCount
from mizar_core.planning.scheduler_simulation import Assignment, Availability, is_admitted
from mizar_core.planning.shadow_stage import ShadowStage, agent_silence, stage_of
from mizar_core.planning.snapshot import ShadowView, ShareView, Snapshot
from mizar_core.quantities import counted

SCHEDULING = "Scheduling"

DRAINED_FOR = {
    ReapReason.PREEMPTED: "its cards go to a pod that waits for them",
    ReapReason.REPLACED: "it makes room for a shadow pod that a share pod waits for",
    ReapReason.AGENT_SILENT: "its node's agent does not offer its devices",
    ReapReason.IDLE: "no pod has used it for its idle timeout",
    ReapReason.OVER_QUOTA: "its quota allows fewer now",
    ReapReason.UNWANTED: "its quota or pool is gone or has another profile, or its cards failed",
}

NO_QUOTA_AFTER = timedelta(seconds=3)
"""How long after a pod's creation the first event says that it has no quota. A quota that was
applied together with the pod may be seen a moment later."""
NO_QUOTA = (EventReason.NO_QUOTA, EventReason.UNKNOWN_PROFILE)

AT_THE_LIMIT = (
    "the pod runs once another one ends, or an administrator raises the GPUQuota; "
    "`kubectl describe shadowpods` in this namespace names the pods that have devices"
)
"""What a user can do about a quota's limit. It does not name the pods itself: each change of a
message is another event on each waiting pod."""

Why = tuple[EventReason, str]


def waiting_events(
    draft: Draft, resource: str, outcome: DemandOutcome
) -> Iterator[tuple[ShareView, EmitEvent | None]]:
    """Each share pod that waits for the resource, with the event that says why; None while only the
    scheduler has to place it, which needs no event."""
    silence = _silence(draft, resource)
    for share in sorted(draft.waiting(resource), key=lambda one: one.key):
        why = _why(draft, share, outcome, silence)
        yield share, _waiting_event(share, *why) if why is not None else None


def posted_from(share: ShareView, event: EmitEvent) -> datetime:
    """The earliest time at which the event may be posted."""
    return share.created + (NO_QUOTA_AFTER if event.reason in NO_QUOTA else timedelta(0))


def _why(draft: Draft, share: ShareView, outcome: DemandOutcome, silence: str) -> Why | None:
    if not is_admitted(draft, share):
        return _not_admitted(draft, share)
    assignment = outcome.placement.assignments[share.uid]
    if assignment.availability is Availability.FREE:
        denied = outcome.denials.get(share.uid)
        return (denied.reason, denied.message) if denied else None
    if assignment.availability is Availability.COMING:
        return _coming(assignment, silence)
    if assignment.availability is Availability.BLOCKED:
        return _blocked(draft, share, assignment)
    if denial := outcome.denials.get(share.uid):
        return _denied(draft, assignment, denial)
    if share.namespace in draft.granted:
        return None
    denial = no_entitlement(draft, share)
    return denial.reason, denial.message + why_no_default(draft, share)


def _not_admitted(draft: Draft, share: ShareView) -> Why:
    parsed = parse_resource(share.resource)
    prefix = parsed.prefix if parsed else ""
    tenant = next(
        (t for pool in draft.pools.values() if (t := tenant_of(prefix, pool.spec.resource_prefix))),
        None,
    )
    if tenant not in (None, share.namespace):
        return (
            EventReason.NOT_ADMITTED,
            f"{share.resource} belongs to namespace {tenant}: ask for the resource without a "
            f"namespace, as in the examples",
        )
    if prefix.startswith(f"{share.namespace}."):
        return (
            EventReason.NO_POOL,
            f"the GPUPool that offered {share.resource} is gone, or has another resource prefix or "
            "tenancy: create the pod again once a GPUPool offers it",
        )
    return (
        EventReason.NOT_ADMITTED,
        f"{share.resource} was not rewritten at admission and no node will ever offer it: "
        "check that mizar-webhook is running, then create the pod again",
    )


def _silence(draft: Draft, resource: str) -> str:
    """Why none of the resource's shadow pods that start offers its devices, if node agents are
    overdue with all of them; else empty."""
    if not draft.silence.shadows:
        return ""
    stages, every = draft.stages, draft.of_resource(resource)
    starting = [one for one in every if stages[one.key] is ShadowStage.STARTING]
    if not starting or not all(one.key in draft.silence.shadows for one in starting):
        return ""
    return agent_silence(starting[0])


def _coming(assignment: Assignment, silence: str) -> Why:
    if assignment.shadow is None:
        if silence:
            return EventReason.NODE_AGENT_SILENT, silence
        return EventReason.WAITING_FOR_SHADOW, "a shadow pod with free devices is starting"
    return EventReason.WAITING_FOR_SHADOW, f"shadow pod {assignment.shadow[1]} is being created"


def _blocked(draft: Draft, share: ShareView, assignment: Assignment) -> Why:
    assert assignment.shadow is not None
    shadow = draft.shadows[assignment.shadow]
    if refusal := draft.refusal(shadow):
        return EventReason.SHADOW_REFUSED, refusal_message(refusal)
    message = shadow.unschedulable
    if waits_for_cards(draft, shadow):
        why = f"no card is free for shadow pod {assignment.shadow[1]}: {message}"
        return EventReason.NO_CARD_FREE, why + _outranked(share, shadow)
    why = finds_no_node(draft, shadow)
    return EventReason.NO_NODE_FITS, f"shadow pod {assignment.shadow[1]} finds no node: {why}"


def _outranked(share: ShareView, shadow: ShadowView) -> str:
    """The note that pods of a lower priority than the share pod's may get cards first, since the
    scheduler uses the shadow pod's priority; empty if they may not."""
    if shadow.pod is None or share.priority <= shadow.pod.priority:
        return ""
    return (
        f" (the shadow pod has priority {shadow.pod.priority}, the share pod {share.priority}: "
        "pods that request whole cards with a priority in between go first; set a higher "
        f"priorityClassName in pool {shadow.pool})"
    )


def _is_limit(draft: Draft, denial: Denial) -> bool:
    """Whether only what exists already keeps the pod waiting at its quota's limit."""
    one = denial.entitlement
    return (
        one is not None
        and denial.message == draft.usage.existing.limit_reached(one)
        and ShadowCount().limit_reached(one) is None
    )


def _denied(draft: Draft, assignment: Assignment, denial: Denial) -> Why:
    said_all = (
        assignment.availability is Availability.REFUSED
        or assignment.availability is Availability.POSTPONED
        or denial.reason is EventReason.TOO_MANY_DEVICES
    )
    # Devices may be free on a cordoned node, or on one that the pod excludes.
    lead = "" if said_all else "no node where it can run has enough free devices, and "
    advice = f": {AT_THE_LIMIT}" if _is_limit(draft, denial) else ""
    return denial.reason, f"{lead}{denial.message}{advice}"


def _waiting_event(share: ShareView, reason: EventReason, message: str) -> EmitEvent:
    normal = reason is EventReason.WAITING_FOR_SHADOW
    return EmitEvent(
        kind="Pod",
        about=share.key,
        uid=share.uid,
        type="Normal" if normal else "Warning",
        reason=reason,
        message=message,
    )


def post_decisions(draft: Draft, snapshot: Snapshot) -> None:
    """Plan the events about the planned actions, and about silent node agents."""
    about = {one.shadow for one in draft.actions if isinstance(one, (Drain, DeleteShadow))}
    before = {one.key: one for one in snapshot.shadows if one.key in about} if about else {}
    for action in list(draft.actions):
        event = _event(draft, before, action)
        if event is not None:
            draft.post(event)
    for shadow, _ in draft.unsettled():
        if waits_for_silent_agent(draft, shadow):
            draft.post(
                shadow_event(
                    shadow, EventReason.NODE_AGENT_SILENT, agent_silence(shadow), warning=True
                )
            )


def _event(
    draft: Draft, before: dict[tuple[str, str], ShadowView], action: Action
) -> EmitEvent | None:
    match action:
        case CreateShadow():
            return _created(action)
        case Drain():
            why = DRAINED_FOR.get(action.reason, "its devices are being withdrawn")
            return shadow_event(before[action.shadow], EventReason.SHADOW_DRAINING, why)
        case DeleteShadow():
            return _deleted(draft, before[action.shadow])
        case _:
            return None


def _deleted(draft: Draft, shadow: ShadowView) -> EmitEvent | None:
    stage = stage_of(shadow, draft.nodes)
    if stage is ShadowStage.LOST:
        return lost_event(draft, shadow) if shadow.phase != "Lost" else None
    return shadow_event(
        shadow, EventReason.SHADOW_REAPED, "no pod uses it; its cards are free again"
    )


def _created(action: CreateShadow) -> EmitEvent:
    return EmitEvent(
        kind="GPUQuota",
        about=(action.shadow[0], action.quota),
        uid=f"{action.quota_uid}/{action.shadow[1]}",
        type="Normal",
        reason=EventReason.SHADOW_CREATED,
        message=f"shadow pod {action.shadow[1]} for {counted(action.devices, 'device')} on "
        f"{counted(action.cards, 'card')}",
    )


def shadow_event(
    shadow: ShadowView, reason: EventReason, message: str, *, warning: bool = False
) -> EmitEvent:
    """An event on a ShadowPod."""
    return EmitEvent(
        kind="ShadowPod",
        about=shadow.key,
        uid=shadow.uid,
        type="Warning" if warning else "Normal",
        reason=reason,
        message=message,
    )


def lost_event(draft: Draft, shadow: ShadowView) -> EmitEvent:
    """The event that says that a shadow pod lost its cards, and how."""
    how = f"lost its cards: {loss_reason(draft, shadow)}"
    return shadow_event(shadow, EventReason.SHADOW_LOST, how, warning=True)
