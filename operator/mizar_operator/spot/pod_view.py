"""The planner's view of spot pods."""

from __future__ import annotations

from mizar_core.names import SpotEvictionReason
from mizar_core.planning.spot import SpotView
from mizar_core.pod_requests import spot_cards_requested
from mizar_kube.kinds import Object
from mizar_operator.node_needs import needs_of
from mizar_operator.object_views import Json, condition_of
from mizar_operator.pod_views import EPOCH, time_or_none, unschedulable_message

REASONS = frozenset(map(str, SpotEvictionReason))


def spot_view(obj: Object) -> SpotView | None:
    """The view of a spot pod; None for one that has ended."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    scheduled = condition_of(status, "PodScheduled")
    unschedulable = unschedulable_message(scheduled)
    return SpotView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        cards=spot_cards_requested(spec),
        created=time_or_none(meta.get("creationTimestamp")) or EPOCH,
        node=spec.get("nodeName") or None,
        gates=tuple(one["name"] for one in spec.get("schedulingGates") or ()),
        needs=needs_of(obj),
        unschedulable=unschedulable,
        unschedulable_since=time_or_none(scheduled.get("lastTransitionTime"))
        if unschedulable
        else None,
        lost=_lost(status),
        deleting="deletionTimestamp" in meta,
    )


def _lost(status: Json) -> SpotEvictionReason | None:
    """Why a pod has lost its cards, by the condition that a node agent writes; None if none says
    so."""
    found = condition_of(status, "DisruptionTarget")
    told = found.get("status") == "True" and found.get("reason") in REASONS
    return SpotEvictionReason(found["reason"]) if told else None
