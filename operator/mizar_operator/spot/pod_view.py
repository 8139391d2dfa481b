"""Reduces spot pods to the planner's view."""

from __future__ import annotations

import sys

from mizar_core.names import POD_CONDITION_BORROWS, SpotEvictionReason
from mizar_core.planning.spot import SpotView
from mizar_core.planning.spot.snapshot import GRACE_S
from mizar_core.pod_requests import spot_cards_requested
from mizar_kube.kinds import Object
from mizar_operator.evict_or_delete import BY_EVICTION, DISRUPTION_TARGET
from mizar_operator.node_needs import needs_of
from mizar_operator.object_views import Json, condition_of
from mizar_operator.pod_views import EPOCH, time_or_none, unschedulable_message

REASONS = {str(one): one for one in SpotEvictionReason} | {BY_EVICTION: SpotEvictionReason.DRAIN}
"""Why a pod has lost its cards, by the reason of its condition DisruptionTarget. Before the API
server deletes an evicted pod, it overwrites a node agent's reason by its own (BY_EVICTION). If it
fails between the two, only that reason says that the pod must go."""


def spot_view(obj: Object) -> SpotView | None:
    """The view of a spot pod; None for one that has ended."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    return SpotView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        cards=spot_cards_requested(spec),
        created=time_or_none(meta.get("creationTimestamp")) or EPOCH,
        node=spec.get("nodeName") or None,
        gates=tuple(one["name"] for one in spec.get("schedulingGates") or ()),
        needs=needs_of(obj),
        scheduler=sys.intern(spec.get("schedulerName") or "default-scheduler"),
        unschedulable=unschedulable_message(condition_of(status, "PodScheduled")),
        lost=_lost(status),
        deleting="deletionTimestamp" in meta,
        grace_s=spec.get("terminationGracePeriodSeconds", GRACE_S),
        gone_by=time_or_none(meta.get("deletionTimestamp")),
        borrows=_borrows(status),
    )


def _lost(status: Json) -> SpotEvictionReason | None:
    """Why a pod has lost its cards, by the condition DisruptionTarget, which a node agent or the
    start of an eviction sets; None without it."""
    found = condition_of(status, DISRUPTION_TARGET)
    return REASONS.get(found.get("reason", "")) if found.get("status") == "True" else None


def _borrows(status: Json) -> str:
    found = condition_of(status, POD_CONDITION_BORROWS)
    return str(found.get("message", "")) if found.get("status") == "True" else ""
