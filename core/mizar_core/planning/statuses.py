"""What the operator writes into statuses, and the events that go with a change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mizar_core.conditions import Condition, set_condition
from mizar_core.models import GPUPool, GPUPoolStatus, GPUQuota, GPUQuotaStatus, Phase, ProfileStatus
from mizar_core.names import ConditionType, EventReason
from mizar_core.planning.actions import (
    EmitEvent,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.demand import Outcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.evict import how_lost
from mizar_core.planning.figures import pool_figures
from mizar_core.planning.refusals import refused_sentence
from mizar_core.planning.snapshot import Key, ShadowView, quota_key
from mizar_core.planning.stages import Stage, phase_of
from mizar_core.planning.verdicts import Waiter, exhausted, pool_ready, satisfied, waiters
from mizar_core.planning.words import counted

UNSCHEDULABLE = "Unschedulable"
OBSTACLES = {
    UNSCHEDULABLE: EventReason.SHADOW_UNSCHEDULABLE,
    str(EventReason.SHADOW_REFUSED): EventReason.SHADOW_REFUSED,
}
"""The event that tells why a shadow pod has no node, by the reason of its condition Scheduled."""


def write_shadows(draft: Draft) -> None:
    """Phase and condition Scheduled of every shadow pod, where they changed."""
    for shadow, stage in list(draft.in_order()):
        refusal = draft.refusal(shadow)
        if stage is Stage.GONE or (stage is Stage.UNBORN and refusal is None):
            continue
        # A phase says that there was a pod: see stage_of.
        phase = None if stage is Stage.UNBORN else phase_of(shadow, stage)
        scheduled = _scheduled(shadow, refusal, draft.now)
        if (phase, scheduled) != (shadow.phase, shadow.scheduled):
            if stage is not Stage.LEAVING:
                for event in _transitions(draft, shadow, phase, scheduled):
                    draft.say(event)
            draft.do(WriteShadowStatus(shadow.key, phase, scheduled))


def _scheduled(shadow: ShadowView, refusal: str | None, now: datetime) -> Condition:
    known = [shadow.scheduled] if shadow.scheduled else []
    if shadow.place is not None:
        status, reason, message = True, "Bound", f"on node {shadow.place}"
    elif refusal is not None:
        status, reason, message = False, str(EventReason.SHADOW_REFUSED), refused_sentence(refusal)
    elif shadow.unschedulable is not None:
        status, reason, message = False, UNSCHEDULABLE, shadow.unschedulable
    else:
        status, reason, message = False, "Waiting", "the scheduler has not answered yet"
    (condition,) = set_condition(known, ConditionType.SCHEDULED, status, reason, message, now)
    return condition


def _transitions(
    draft: Draft, shadow: ShadowView, phase: Phase | None, scheduled: Condition
) -> Iterator[EmitEvent]:
    if phase == "Ready" and shadow.phase in (None, "Pending"):
        offer = f"offers {counted(shadow.healthy, 'device')} on node {shadow.place}"
        yield shadow_event(shadow, EventReason.SHADOW_READY, offer)
    if phase == "Lost" and shadow.phase != "Lost":
        yield lost_event(draft, shadow)
    before = shadow.scheduled.reason if shadow.scheduled else ""
    reason = OBSTACLES.get(scheduled.reason)
    if reason is not None and scheduled.reason != before:
        yield shadow_event(shadow, reason, scheduled.message, warning=True)


def lost_event(draft: Draft, shadow: ShadowView) -> EmitEvent:
    """Says that a shadow pod lost its cards, and how."""
    how = f"lost its cards: {how_lost(draft, shadow)}"
    return shadow_event(shadow, EventReason.SHADOW_LOST, how, warning=True)


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


def write_quotas(
    draft: Draft,
    figures: dict[Key, dict[int, ProfileStatus]],
    outcomes: dict[str, Outcome],
) -> dict[Key, GPUQuotaStatus]:
    """The status of every quota, written where it changed; returns all of them."""
    written, waiting = {}, waiters(draft, outcomes)
    for key, quota in sorted(draft.quotas.items()):
        status = _quota_status(draft, quota, figures.get(key, {}), waiting.get(key, []))
        written[key] = status
        if status != quota.status:
            draft.actions.append(WriteQuotaStatus(key, status))
    return written


def _quota_status(
    draft: Draft,
    quota: GPUQuota,
    profiles: dict[int, ProfileStatus],
    waiting: list[Waiter],
) -> GPUQuotaStatus:
    key, conditions = quota_key(quota), quota.status.conditions
    for type, verdict in (
        (ConditionType.SATISFIED, satisfied(draft, quota, waiting)),
        (ConditionType.EXHAUSTED, exhausted(draft, quota, waiting)),
    ):
        conditions = set_condition(
            conditions, type, verdict.status, verdict.reason, verdict.message, draft.now
        )
    found = list(profiles.values())
    return GPUQuotaStatus(
        profiles=tuple(found),
        ready=sum(one.ready for one in found),
        pipelining=sum(one.pipelining for one in found),
        in_use=sum(one.in_use for one in found),
        waiting=sum(one.waiting for one in found),
        cards=draft.usage.existing.cards[key],
        next_sequence=draft.next_sequence(key),
        observed_generation=quota.metadata.generation,
        conditions=conditions,
    )


def write_pools(draft: Draft) -> None:
    """The status of every pool, where it changed."""
    for name in sorted(draft.pools):
        status = _pool_status(draft, draft.pools[name])
        if status != draft.pools[name].status:
            draft.actions.append(WritePoolStatus(name, status))


def _pool_status(draft: Draft, pool: GPUPool) -> GPUPoolStatus:
    cards, models = pool_figures(draft, pool)
    verdict = pool_ready(draft, pool, cards)
    return GPUPoolStatus(
        cards=cards,
        models=models,
        observed_generation=pool.metadata.generation,
        conditions=set_condition(
            pool.status.conditions,
            ConditionType.READY,
            verdict.status,
            verdict.reason,
            verdict.message,
            draft.now,
        ),
    )
