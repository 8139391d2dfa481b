"""Plans the steps that follow from a shadow pod's own state: create its pod, cancel a drain, retire
it, finish its drain, clean up after it."""

from __future__ import annotations

from mizar_core.models import GPUPool
from mizar_core.names import ReapReason, may_be_of_dra_driver
from mizar_core.planning.actions import (
    CancelDrain,
    CreatePod,
    DeleteShadow,
    Drain,
    RemoveFinalizer,
)
from mizar_core.planning.device_users import may_be_used
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import has_models_of
from mizar_core.planning.pool_nodes import in_pool, is_selected
from mizar_core.planning.shadow_stage import (
    UNPLACED,
    ShadowStage,
    drain_unanswered_at,
    never_offered,
)
from mizar_core.planning.snapshot import NodeView, ShadowView


def advance(draft: Draft) -> None:
    """Plan, for each shadow pod, the next step that does not depend on demand."""
    for shadow, stage in draft.unsettled():
        if stage in (ShadowStage.FINISHED, ShadowStage.LOST):
            _clean_up(draft, shadow, stage)
        elif stage is ShadowStage.DRAINING and shadow.held:
            draft.do(CancelDrain(shadow.key))
        elif draft.keeps_failed_cards(shadow):
            continue
        elif not draft.is_wanted(shadow):
            retire(draft, shadow, ReapReason.UNWANTED)
        elif stage is ShadowStage.STARTING and never_offered(shadow) and draft.is_given_up(shadow):
            retire(draft, shadow, ReapReason.AGENT_SILENT)
        elif stage is ShadowStage.NO_POD and draft.refusal(shadow) is None:
            draft.do(CreatePod(shadow.key, draft.feasible_nodes.of_pool(shadow.pool)))
        elif stage is ShadowStage.UNSCHEDULED and _is_outdated(draft, shadow):
            retire(draft, shadow, ReapReason.UNWANTED)


def retire(draft: Draft, shadow: ShadowView, reason: ReapReason) -> None:
    """Plan the next step towards the end of a shadow pod, if no pod uses it and there is one."""
    stage = draft.stages[shadow.key]
    if shadow.held:
        return
    if stage in UNPLACED and not shadow.contested:
        draft.do(DeleteShadow(shadow.key, reason))
    elif stage in (ShadowStage.STARTING, ShadowStage.READY) and not shadow.draining:
        draft.do(Drain(shadow.key, draft.now, reason))


def finish_drains(draft: Draft) -> None:
    """Delete the shadow pods that the node agent has drained, or whose devices it never offered and
    will not offer."""
    for shadow, stage in draft.unsettled():
        if stage is not ShadowStage.DRAINING or shadow.held or shadow.contested:
            continue
        if shadow.drained or _is_unanswered(draft, shadow):
            draft.do(DeleteShadow(shadow.key))


def _is_unanswered(draft: Draft, shadow: ShadowView) -> bool:
    """Whether no node agent has answered its drain, and one that starts now would see the drain
    before it offers anything."""
    at = drain_unanswered_at(shadow)
    return at is not None and at <= draft.now and shadow.key in draft.silence.unanswered


def is_misplaced(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod is of no use to the `min` of its quota: its node has left its pool, or
    it gets no node because of constraints from an earlier state of its pool or from share pods that
    are gone, while a shadow pod without them could be placed elsewhere."""
    pod, node = shadow.pod, draft.nodes.get(shadow.on_node or "")
    if node is not None:
        return node.available and _has_left(draft, node, draft.pools[shadow.pool])
    if pod is None or shadow.unschedulable is None:
        return False
    feasible = draft.feasible_nodes
    return not feasible.covers(shadow.pool, pod.own_needs, feasible.of_pool(shadow.pool))


def _has_left(draft: Draft, node: NodeView, pool: GPUPool) -> bool:
    """Whether the node, on which the pool has a shadow pod, is not the pool's any more. While the
    operator may not see the cards of NVIDIA's DRA driver, the shadow pod may have one of these."""
    resource = pool.spec.physical_resource
    if draft.dra_refusal and may_be_of_dra_driver(resource) and resource not in node.cards:
        return not is_selected(node, pool)
    return not in_pool(node, pool)


def waits_for_silent_agent(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod waits for a node agent that is silent, to offer its devices or to take
    them out of use."""
    stage = draft.stages[shadow.key]
    if stage is ShadowStage.DRAINING:
        return shadow.key in draft.silence.shadows and used_by(draft, shadow) is None
    return stage is ShadowStage.STARTING and shadow.key in draft.silence.shadows


def _clean_up(draft: Draft, shadow: ShadowView, stage: ShadowStage) -> None:
    pod = shadow.pod
    if shadow.contested or used_by(draft, shadow) or (pod is not None and pod.deleting):
        return
    if draft.is_retried_later(shadow) and draft.is_wanted(shadow):
        return
    if stage is ShadowStage.FINISHED:
        draft.do(RemoveFinalizer(shadow.key))
    else:
        draft.do(DeleteShadow(shadow.key))


def used_by(draft: Draft, shadow: ShadowView) -> str | None:
    """The user of a lost or finished shadow pod, as far as the snapshot shows; None if there is
    none."""
    place = shadow.on_node
    if place not in draft.nodes or (shadow.drained and not shadow.held):
        return None
    others = [one for one in draft.on_same_node(shadow) if one.key != shadow.key]
    return may_be_used(shadow, others, draft.bound.get((place, shadow.resource), []))


def _is_outdated(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod is unschedulable and could later get a node that its pool does not
    have any more: it lacks the pool's present node selector or card models."""
    pod = shadow.pod
    if pod is None or pod.unschedulable is None:
        return False
    own, wanted = pod.own_needs, draft.feasible_nodes.of_pool(shadow.pool)
    return not (wanted.selector <= own.selector and has_models_of(own, wanted))
