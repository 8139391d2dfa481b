"""Computes the conditions Satisfied and Exhausted of quotas and Ready of pools, each with a
message."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mizar_core.models import CardCounts, GPUPool, GPUQuota
from mizar_core.names import DRA_DRIVER, PHYSICAL_RESOURCE, EventReason, may_be_of_dra_driver
from mizar_core.planning.creation_checks import (
    Denial,
    finds_no_node,
    no_entitlement,
    refusal_message,
)
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.evict_share_pods import loss_message
from mizar_core.planning.lifecycle import waits_for_silent_agent
from mizar_core.planning.pool_nodes import card_sizes, misfit, small_cards
from mizar_core.planning.preempt_idle import waits_for_cards
from mizar_core.planning.scheduler_simulation import Assignment, Availability
from mizar_core.planning.shadow_stage import agent_silence
from mizar_core.planning.snapshot import Key, NodeView, ShadowView, ShareView, quota_key
from mizar_core.planning.surplus import overdrawn
from mizar_core.quantities import counted
from mizar_core.validation import (
    check_pool_among,
    check_quota_against_pool,
    check_quota_among,
)


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition's status, reason and message, without its time."""

    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A waiting share pod, where it will find its devices, and why it gets no shadow pod, if it
    gets none."""

    share: ShareView
    assignment: Assignment
    denial: Denial | None


def waiting_pods(draft: Draft, outcomes: dict[str, DemandOutcome]) -> dict[Key, list[WaitingPod]]:
    """The waiting share pods, by the first quota that could allow them a shadow pod; those whose
    profile no quota of the namespace has, by the namespace's first quota."""
    found: defaultdict[Key, list[WaitingPod]] = defaultdict(list)
    for resource, outcome in sorted(outcomes.items()):
        for share in outcome.waiting:
            quota = draft.entitlements.quota_for(share.namespace, resource)
            if quota is not None:
                found[quota].append(_waiting_pod(draft, outcome, share))
    return dict(found)


def _waiting_pod(draft: Draft, outcome: DemandOutcome, share: ShareView) -> WaitingPod:
    assignment = outcome.placement.assignments[share.uid]
    denial = outcome.denials.get(share.uid)
    if denial is None and assignment.availability is Availability.NONE:
        denial = no_entitlement(draft, share)
    return WaitingPod(share, assignment, denial)


def satisfied(draft: Draft, quota: GPUQuota, waiting: list[WaitingPod]) -> ConditionState:
    """Whether no share pod and no spot pod waits and `min` shadow pods are warm, else the first
    reason why not."""
    for state in (
        _misconfigured(draft, quota),
        _lost(draft, quota),
        _refused(draft, quota, waiting),
        _quota_exceeded(waiting),
        _denied(waiting),
        _blocked(draft, quota, waiting),
        _silent(draft, quota),
        _coming(waiting),
        _unscheduled(waiting),
        _borrowers_wait(quota),
        _below_minimum(draft, quota),
    ):
        if state is not None:
            return state
    if not quota.spec.profiles:
        return ConditionState(
            True, "Satisfied", "the quota has no profiles: its namespace only borrows cards"
        )
    return ConditionState(True, "Satisfied", "no pod waits, and the minimum is kept warm")


def exhausted(draft: Draft, quota: GPUQuota, waiting: list[WaitingPod]) -> ConditionState:
    """Whether share pods wait because the quota allows no more, or the quota is overdrawn."""
    if found := sorted({one.message for one in _denials(waiting, EventReason.QUOTA_EXCEEDED)}):
        return ConditionState(True, "QuotaExceeded", f"share pods wait: {'; '.join(found)}")
    if over := _overdrawn(draft, quota):
        return ConditionState(True, "Overdrawn", over)
    return ConditionState(False, "WithinLimits", "no pod waits for a larger quota")


def pool_ready(
    draft: Draft, pool: GPUPool, cards: CardCounts, nodes: Collection[NodeView]
) -> ConditionState:
    """Whether a pool has cards to share that are large enough, and a prefix that no other pool
    uses. `nodes`: those of the pool."""
    if problems := check_pool_among(pool, draft.pools.values()):
        return ConditionState(False, "BadPool", str(problems[0]))
    if (wanted := pool.spec.runtime_class_name) in draft.missing_classes:
        return ConditionState(
            False,
            "RuntimeClassNotFound",
            f"there is no RuntimeClass {wanted}, so Kubernetes refuses the pool's shadow pods: "
            "create it, or change runtimeClassName",
        )
    sizes = card_sizes(pool, nodes, draft.card_sizes(pool.metadata.name))
    # A node whose cards' size is not known may have larger ones.
    if cards.total and len(sizes) == len(nodes) and (problem := misfit(pool, sizes)):
        return ConditionState(False, "ProfileTooLarge", problem)
    if cards.total:
        found = f"{counted(cards.total, 'card')}, {cards.healthy} healthy"
        small = small_cards(pool, sizes)
        return ConditionState(True, "CardsFound", f"{found}; {small}" if small else found)
    return ConditionState(False, "NoCards", _no_cards(draft, pool))


def _no_cards(draft: Draft, pool: GPUPool) -> str:
    resource = pool.spec.physical_resource
    if resource == PHYSICAL_RESOURCE and (count := _without_class(draft, pool)):
        return (
            f"{DRA_DRIVER}, NVIDIA's DRA driver, offers the cards of {counted(count, 'node')}, but "
            f"no DeviceClass has the extendedResourceName {resource}, by which pods request them: "
            f"set it in the DeviceClass {DRA_DRIVER} (Kubernetes 1.36 or newer keeps it, 1.34 and "
            "1.35 only with the feature gate DRAExtendedResource)"
        )
    checks = (
        f"no node that nodeSelector and cardModels allow offers {resource}: check them, and that "
        "the device plugin or the DRA driver of the cards runs"
    )
    if not may_be_of_dra_driver(resource) or not draft.dra_refusal:
        return checks
    return (
        f"{checks}; cards of {DRA_DRIVER}, NVIDIA's DRA driver, do not count, since the operator "
        f"lacks a right, which the chart's ClusterRole has: {draft.dra_refusal}"
    )


def _without_class(draft: Draft, pool: GPUPool) -> int:
    """How many nodes that the pool selects have cards that pods cannot request for want of a
    DeviceClass."""
    wanted = frozenset(pool.spec.node_selector.items())
    found = (draft.nodes.get(name) for name in draft.nodes_without_class)
    return sum(one is not None and wanted <= one.labels for one in found)


def _misconfigured(draft: Draft, quota: GPUQuota) -> ConditionState | None:
    """The first problem of the quota itself, independent of the state of the cluster; None without
    one."""
    pool = draft.pools.get(quota.spec.pool)
    if pool is None:
        return ConditionState(
            False, "PoolNotFound", f"there is no GPUPool {quota.spec.pool}: create it"
        )
    problems = [
        *check_quota_against_pool(quota, pool),
        *check_quota_among(quota, draft.quotas_by_namespace[quota_key(quota)[0]], draft.pools),
    ]
    return ConditionState(False, "BadQuota", str(problems[0])) if problems else None


def _lost(draft: Draft, quota: GPUQuota) -> ConditionState | None:
    lost = loss_message(draft, _unsettled(draft, quota))
    return ConditionState(False, "CardLost", lost) if lost else None


def _denials(waiting: list[WaitingPod], reason: EventReason) -> list[Denial]:
    return [one.denial for one in waiting if one.denial and one.denial.reason is reason]


def _refused(draft: Draft, quota: GPUQuota, waiting: list[WaitingPod]) -> ConditionState | None:
    """Whether the API server refuses to create a shadow pod."""
    words = [draft.refusal(one) for one in _relevant_shadows(draft, quota, waiting)]
    found = [refusal_message(one) for one in words if one]
    found += [one.message for one in _denials(waiting, EventReason.SHADOW_REFUSED)]
    return ConditionState(False, str(EventReason.SHADOW_REFUSED), found[0]) if found else None


def _quota_exceeded(waiting: list[WaitingPod]) -> ConditionState | None:
    reason = EventReason.QUOTA_EXCEEDED
    unserved = [one.share for one in waiting if one.denial and one.denial.reason is reason]
    if not unserved:
        return None
    devices = sum(share.count for share in unserved)
    return ConditionState(
        False,
        str(reason),
        f"waiting for more quota: {counted(len(unserved), 'share pod')}, "
        f"{counted(devices, 'device')}",
    )


def _denied(waiting: list[WaitingPod]) -> ConditionState | None:
    """Why no shadow pod is created for the first share pod that is denied one."""
    for one in waiting:
        if one.denial is not None:
            name = f"share pod {one.share.name}"
            return ConditionState(
                False, str(one.denial.reason), f"{name} waits: {one.denial.message}"
            )
    return None


def _relevant_shadows(draft: Draft, quota: GPUQuota, waiting: list[WaitingPod]) -> list[ShadowView]:
    """The quota's own shadow pods that are not ready, and in a Shared pool those of others that its
    share pods wait for."""
    needed = {
        one.assignment.shadow
        for one in waiting
        if one.assignment.availability is Availability.BLOCKED
    }
    others = [draft.shadows[key] for key in sorted(key for key in needed if key)]
    return list({one.key: one for one in [*_unsettled(draft, quota), *others]}.values())


def _blocked(draft: Draft, quota: GPUQuota, waiting: list[WaitingPod]) -> ConditionState | None:
    found = _relevant_shadows(draft, quota, waiting)
    blocked = [one for one in found if one.unschedulable is not None]
    if not blocked:
        return None
    cards = waits_for_cards(draft, blocked[0])
    reason = EventReason.NO_CARD_FREE if cards else EventReason.NO_NODE_FITS
    lacking, count = "free cards" if cards else "a node", counted(len(blocked), "shadow pod")
    why = blocked[0].unschedulable if cards else finds_no_node(draft, blocked[0])
    message = f"{count} waiting for {lacking}: {why}"
    return ConditionState(False, str(reason), message)


def _silent(draft: Draft, quota: GPUQuota) -> ConditionState | None:
    for shadow in _unsettled(draft, quota):
        if waits_for_silent_agent(draft, shadow):
            return ConditionState(False, "NodeAgentSilent", agent_silence(shadow))
    return None


def _coming(waiting: list[WaitingPod]) -> ConditionState | None:
    if not any(one.assignment.availability is Availability.COMING for one in waiting):
        return None
    return ConditionState(False, "Creating", "shadow pods for the waiting share pods are starting")


def _unscheduled(waiting: list[WaitingPod]) -> ConditionState | None:
    """Whether share pods wait though devices are free."""
    if not waiting:
        return None
    return ConditionState(
        False,
        "Scheduling",
        f"devices are free; the scheduler has yet to place {counted(len(waiting), 'share pod')}",
    )


def _borrowers_wait(quota: GPUQuota) -> ConditionState | None:
    """Whether spot pods of the namespace wait for cards to borrow."""
    if quota.status.spot is None or not quota.status.spot.waiting:
        return None
    return ConditionState(
        False,
        str(EventReason.SPOT_WAITING),
        f"spot pods wait to borrow {counted(quota.status.spot.waiting, 'card')}: their events say "
        "why",
    )


def _below_minimum(draft: Draft, quota: GPUQuota) -> ConditionState | None:
    key = quota_key(quota)
    for one in quota.spec.profiles:
        found = draft.usage.live.of_profile(key, one.devices)
        if found < one.min:
            return ConditionState(
                False,
                "MinimumNotWarm",
                f"{found} of at least {counted(one.min, 'shadow pod')} of profile "
                f"{one.devices} are kept warm: the quota's other limits leave no room for more",
            )
        own = (s for s in _unsettled(draft, quota) if s.devices == one.devices and not s.ready)
        starting = sum(draft.is_live(s) for s in own)
        if found - starting < one.min:
            return ConditionState(False, "Creating", "the shadow pods to keep warm are starting")
    return None


def _overdrawn(draft: Draft, quota: GPUQuota) -> str | None:
    if not overdrawn([quota], draft.usage.existing):
        return None
    limits = {one.devices: one.max for one in quota.spec.profiles}
    own = draft.of_quota(quota_key(quota))
    counted_ones = (one for one in own if not draft.is_stranded(one))
    kept = [one for one in counted_ones if draft.is_live(one) or one.held]
    for devices, count in sorted(Counter(one.devices for one in kept).items()):
        limit = limits.get(devices, 0)
        if count > limit:
            return (
                f"{counted(count, 'shadow pod')} of profile {devices}, {limit} allowed: those in "
                "use stay until their share pods end"
            )
    cards, ceiling = sum(one.cards for one in kept), quota.spec.max_cards
    if ceiling is not None and cards > ceiling:
        return f"{counted(cards, 'card')} held, {ceiling} allowed: those in use stay"
    return None


def _unsettled(draft: Draft, quota: GPUQuota) -> Sequence[ShadowView]:
    return draft.unsettled_of(quota_key(quota))
