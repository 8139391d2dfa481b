"""Computes the statuses that the operator writes for ShadowPods, quotas and pools: phases,
conditions, and the counts of devices and cards."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from mizar_core.condition import Condition, set_condition
from mizar_core.models import (
    CardCounts,
    GPUPool,
    GPUPoolStatus,
    GPUQuota,
    GPUQuotaStatus,
    ModelCounts,
    Phase,
    ProfileStatus,
)
from mizar_core.names import ConditionType, EventReason
from mizar_core.planning.actions import (
    EmitEvent,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.creation_checks import refusal_message
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.events import lost_event, shadow_event
from mizar_core.planning.evict_share_pods import cards_lost_in_use
from mizar_core.planning.pool_nodes import in_pool, known_model
from mizar_core.planning.quota_conditions import (
    WaitingPod,
    exhausted,
    pool_ready,
    satisfied,
    waiting_pods,
)
from mizar_core.planning.scheduler_simulation import device_pool
from mizar_core.planning.shadow_stage import UNPLACED, ShadowStage, phase_of
from mizar_core.planning.snapshot import Key, NodeView, ShadowView, quota_key
from mizar_core.quantities import bounded, counted

UNSCHEDULABLE = "Unschedulable"
OBSTACLES = {
    UNSCHEDULABLE: EventReason.SHADOW_UNSCHEDULABLE,
    str(EventReason.SHADOW_REFUSED): EventReason.SHADOW_REFUSED,
}
"""The event that says why a shadow pod has no node, by the reason of its condition Scheduled."""


def write_shadows(draft: Draft) -> None:
    """Plan phase and condition Scheduled of every shadow pod where they change, and the events
    about that."""
    for shadow, stage in draft.in_order():
        refusal = draft.refusal(shadow)
        if stage is ShadowStage.GONE or (stage is ShadowStage.NO_POD and refusal is None):
            continue
        # A phase means that there was a pod: see stage_of.
        phase = None if stage is ShadowStage.NO_POD else phase_of(shadow, stage)
        scheduled = _scheduled(shadow, refusal, draft.now)
        if (phase, scheduled) != (shadow.phase, shadow.scheduled):
            if stage is not ShadowStage.LEAVING:
                for event in _transitions(draft, shadow, phase, scheduled):
                    draft.post(event)
            draft.do(WriteShadowStatus(shadow.key, phase, scheduled))


def _scheduled(shadow: ShadowView, refusal: str | None, now: datetime) -> Condition:
    known = shadow.scheduled
    if shadow.on_node is not None:
        status, reason, message = True, "Bound", f"on node {shadow.on_node}"
    elif refusal is not None:
        status, reason, message = False, str(EventReason.SHADOW_REFUSED), refusal_message(refusal)
    elif shadow.unschedulable is not None:
        status, reason, message = False, UNSCHEDULABLE, shadow.unschedulable
    else:
        status, reason, message = False, "Waiting", "the scheduler has not answered yet"
    # Most shadow pods are where they were, and validating a condition takes longer than all else
    # here.
    if known and (known.status == "True", known.reason, known.message) == (status, reason, message):
        return known
    before = [known] if known else []
    (condition,) = set_condition(before, ConditionType.SCHEDULED, status, reason, message, now)
    return condition


def _transitions(
    draft: Draft, shadow: ShadowView, phase: Phase | None, scheduled: Condition
) -> Iterator[EmitEvent]:
    if phase == "Ready" and shadow.phase in (None, "Pending"):
        message = f"offers {counted(shadow.healthy, 'device')} on node {shadow.on_node}"
        yield shadow_event(shadow, EventReason.SHADOW_READY, message)
    if phase == "Lost" and shadow.phase != "Lost":
        yield lost_event(draft, shadow)
    before = shadow.scheduled.reason if shadow.scheduled else ""
    reason = OBSTACLES.get(scheduled.reason)
    if reason is not None and scheduled.reason != before:
        yield shadow_event(shadow, reason, scheduled.message, warning=True)


def write_quotas(
    draft: Draft,
    counts: dict[Key, dict[int, ProfileStatus]],
    outcomes: dict[str, DemandOutcome],
) -> dict[Key, GPUQuotaStatus]:
    """Plan the status of every quota where it changes; returns all of them."""
    written, waiting = {}, waiting_pods(draft, outcomes)
    for key, quota in sorted(draft.quotas.items()):
        status = _quota_status(draft, quota, counts.get(key, {}), waiting.get(key, []))
        written[key] = status
        if status != quota.status:
            draft.actions.append(WriteQuotaStatus(key, status))
    return written


def _quota_status(
    draft: Draft,
    quota: GPUQuota,
    profiles: dict[int, ProfileStatus],
    waiting: list[WaitingPod],
) -> GPUQuotaStatus:
    key, conditions = quota_key(quota), quota.status.conditions
    for type, state in (
        (ConditionType.SATISFIED, satisfied(draft, quota, waiting)),
        (ConditionType.EXHAUSTED, exhausted(draft, quota, waiting)),
    ):
        conditions = set_condition(
            conditions, type, state.status, state.reason, state.message, draft.now
        )
    found = list(profiles.values())
    waited_for = sum(one.share.count for one in waiting)
    # A profile that no quota has gets no entry: a pod may ask for any number.
    unknown = waited_for - sum(one.waiting for one in found)
    return GPUQuotaStatus(
        profiles=tuple(found),
        ready=sum(one.ready for one in found) - unknown,
        pipelining=bounded(sum(one.pipelining for one in found)),
        in_use=bounded(sum(one.in_use for one in found)),
        waiting=bounded(waited_for),
        cards=draft.usage.existing.cards[key],
        spot=quota.status.spot,
        next_sequence=draft.next_sequence(key),
        observed_generation=quota.metadata.generation,
        conditions=conditions,
    )


def write_pools(draft: Draft) -> None:
    """Plan the status of every pool where it changes."""
    for name in sorted(draft.pools):
        status = _pool_status(draft, draft.pools[name])
        if status != draft.pools[name].status:
            draft.actions.append(WritePoolStatus(name, status))


def _pool_status(draft: Draft, pool: GPUPool) -> GPUPoolStatus:
    nodes = [one for one in draft.nodes.values() if in_pool(one, pool)]
    cards, models = pool_counts(draft, pool, nodes)
    state = pool_ready(draft, pool, cards, nodes)
    return GPUPoolStatus(
        cards=cards,
        models=models,
        observed_generation=pool.metadata.generation,
        conditions=set_condition(
            pool.status.conditions,
            ConditionType.READY,
            state.status,
            state.reason,
            state.message,
            draft.now,
        ),
    )


MODELS_MAX = 64
"""The most card models in a pool's status, which is the maxItems of the list in the CRD."""


@dataclass(slots=True)
class DeviceCounts:
    """A shadow pod's devices in the counts of its quota."""

    free: int = 0
    coming: int = 0
    used: int = 0


def quota_counts(
    draft: Draft, outcomes: dict[str, DemandOutcome]
) -> dict[Key, dict[int, ProfileStatus]]:
    """The counts of every quota, by profile. A waiting share pod counts for the first quota that
    could allow it a shadow pod."""
    counts: defaultdict[Key, defaultdict[int, Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for entitlement in draft.entitlements:
        counts[entitlement.key][entitlement.profile.devices].update({})
    for resource, outcome in outcomes.items():
        for shadow, share in _device_counts(draft, resource):
            profile = counts[shadow.quota_key][shadow.devices]
            profile["ready"] += share.free
            profile["pipelining"] += share.coming
            profile["in_use"] += share.used
            profile["shadow_pods"] += 1
        for pod in outcome.waiting:
            if entitlements := draft.entitlements.for_pods_of(pod.namespace, resource):
                profile = counts[entitlements[0].key][entitlements[0].profile.devices]
                profile.update(ready=-pod.count, waiting=pod.count)
    return {
        quota: {n: _profile_status(n, profiles[n]) for n in sorted(profiles)}
        for quota, profiles in counts.items()
    }


def _profile_status(devices: int, counts: Counter[str]) -> ProfileStatus:
    """The status of a profile. Counts are bounded, since pods may wait for more devices than a
    status can hold."""
    return ProfileStatus(devices=devices, **{name: bounded(counts[name]) for name in counts})


def _device_counts(draft: Draft, resource: str) -> Iterable[tuple[ShadowView, DeviceCounts]]:
    """The counts of every shadow pod of a resource.

    The scheduler counts requests per node; here they are spread over the node's shadow pods, those
    with holders first.
    """
    pending = {name: room.bound for name, room in device_pool(draft, resource).items()}
    found = draft.of_resource(resource)
    for shadow in sorted(found, key=lambda one: _count_order(draft, one)):
        stage, node = draft.stages[shadow.key], shadow.on_node or ""
        if stage is ShadowStage.GONE:
            continue
        there = stage in (ShadowStage.READY, ShadowStage.STARTING)
        if node in pending and there and not draft.is_given_up(shadow):
            offered = shadow.healthy if stage is ShadowStage.READY else shadow.devices
            used = min(pending[node], offered)
            pending[node] -= used
            yield shadow, _split(stage, offered - used, used)
        else:
            on_its_way = shadow.devices if stage in UNPLACED and draft.is_wanted(shadow) else 0
            yield shadow, DeviceCounts(coming=on_its_way, used=len(shadow.holders))


def _split(stage: ShadowStage, free: int, used: int) -> DeviceCounts:
    if stage is ShadowStage.READY:
        return DeviceCounts(free=free, used=used)
    return DeviceCounts(coming=free, used=used)


def _count_order(draft: Draft, shadow: ShadowView) -> tuple[bool, int, Key]:
    return draft.stages[shadow.key] is not ShadowStage.READY, -len(shadow.holders), shadow.key


def pool_counts(
    draft: Draft, pool: GPUPool, nodes: Iterable[NodeView]
) -> tuple[CardCounts, tuple[ModelCounts, ...]]:
    """The counts of a pool's cards, in all and per model: those of its nodes, and of these those
    that its own shadow pods hold, since nodes may be in several pools."""
    held, resource = draft.cards_held(pool.metadata.name), pool.spec.physical_resource
    models: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        cards, counts = node.cards[resource], models[known_model(node, pool)]
        counts["total"] += cards.total
        counts["healthy"] += cards.healthy
        counts["held"] += held[node.name]
    sums: Counter[str] = Counter()
    for one in models.values():
        sums.update(one)
    per_model = [ModelCounts(model=name, **models[name]) for name in sorted(models)]
    own = (one for one, _ in draft.unsettled() if one.pool == pool.metadata.name)
    lost = cards_lost_in_use(draft, own)
    return CardCounts(lost=lost, lent=pool.status.cards.lent, **sums), tuple(per_model[:MODELS_MAX])
