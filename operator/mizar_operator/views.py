"""The planner's views of the API server's objects; all other fields are dropped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mizar_core.base import parse_time
from mizar_core.carve import Carve
from mizar_core.conditions import find_condition
from mizar_core.errors import CarveRefused
from mizar_core.models import GPUPool, GPUQuota, ShadowPod
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    ANNOTATION_RESOURCE,
    ANNOTATION_SEQUENCE,
    FINALIZER_DRAIN,
    LABEL_IN_USE,
    LABEL_POOL,
    LABEL_SHADOW_POD,
    ConditionType,
    EventReason,
    parse_resource,
)
from mizar_core.planning.node_fit import Taint
from mizar_core.planning.preemption import lacks_cards
from mizar_core.planning.snapshot import (
    CardsOnNode,
    NodeView,
    PendingView,
    PodView,
    ShadowView,
    ShareView,
)
from mizar_core.pod_requests import cards_requested, devices_after_init, devices_requested, is_card
from mizar_kube.kinds import Object
from mizar_operator.node_needs import KUBERNETES_OWN, needs_of

Json = Mapping[str, Any]
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class HolderPod:
    """The pod of a ShadowPod. `owner_uid`: the ShadowPod's UID. `resource`: what its cards are
    carved into."""

    pool: str
    owner_uid: str
    resource: str
    view: PodView


@dataclass(frozen=True)
class SharePod:
    """A pod that requests devices. `demands`: one view per resource, with the resource's prefix.
    `running_at`: when the last of its containers began to run; None until all have."""

    demands: tuple[tuple[str, ShareView], ...]
    running_at: datetime | None = None


def pool_view(obj: Object) -> GPUPool:
    """The GPUPool in an object. Raises pydantic.ValidationError if it is none."""
    return GPUPool.from_dict(obj)


def quota_view(obj: Object) -> GPUQuota:
    """The GPUQuota in an object. Raises pydantic.ValidationError if it is none."""
    return GPUQuota.from_dict(obj)


def shadow_view(obj: Object) -> ShadowView:
    """The view of a ShadowPod, without its pod. Raises pydantic.ValidationError if it is none."""
    shadow = ShadowPod.from_dict(obj)
    meta, spec, status = shadow.metadata, shadow.spec, shadow.status
    ready = find_condition(status.conditions, ConditionType.READY)
    healthy = find_condition(status.conditions, ConditionType.HEALTHY)
    in_use = find_condition(status.conditions, ConditionType.POD_IN_USING)
    draining = find_condition(status.conditions, ConditionType.DRAINING)
    holders = [one.holder for one in status.devices if one.holder is not None]
    sequence = meta.annotations.get(ANNOTATION_SEQUENCE, "")
    return ShadowView(
        namespace=meta.namespace or "",
        name=meta.name,
        uid=meta.uid or "",
        pool=spec.pool,
        quota=spec.quota,
        quota_uid=next((o.uid for o in meta.owner_references if o.kind == "GPUQuota"), ""),
        resource=meta.annotations.get(ANNOTATION_RESOURCE, ""),
        devices=spec.devices,
        cards=spec.cards,
        sequence=int(sequence) if sequence.isdigit() else 0,
        deleting=meta.deletion_timestamp is not None,
        finalizer=FINALIZER_DRAIN in meta.finalizers,
        phase=status.phase,
        scheduled=find_condition(status.conditions, ConditionType.SCHEDULED),
        node=status.node or None,
        ready=ready is not None and ready.status == "True",
        broken=healthy is not None and healthy.status == "False",
        lost=ready is not None and ready.reason == EventReason.CARD_LOST,
        # During a drain the condition is Unknown: the devices are neither offered nor drained.
        draining=draining is not None and draining.status != "False",
        drained=draining is not None and (draining.status, draining.reason) == ("True", "Drained"),
        healthy=sum(one.health == "Healthy" for one in status.devices),
        holders=tuple(sorted((one.namespace, one.name) for one in holders)),
        in_use=in_use is not None and in_use.status == "True",
        idle_since=status.idle_since,
        heard_at=max((o.last_transition_time for o in (ready, draining) if o), default=None),
    )


def pod_view(obj: Object) -> HolderPod | SharePod | None:
    """The view of a shadow pod's pod, or of a share pod; None for all other pods."""
    return holder_view(obj) or share_view(obj)


def holder_view(obj: Object) -> HolderPod | None:
    """The view of a shadow pod's pod; None for all other pods."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    if (meta.get("labels") or {}).get(LABEL_SHADOW_POD) != "true":
        return None
    notes, scheduled = meta.get("annotations") or {}, _condition(status, "PodScheduled")
    return HolderPod(
        pool=(meta.get("labels") or {}).get(LABEL_POOL, ""),
        owner_uid=next(
            (one["uid"] for one in meta.get("ownerReferences") or () if one["kind"] == "ShadowPod"),
            "",
        ),
        resource=_carved_resource(notes.get(ANNOTATION_CARVE, "")),
        view=PodView(
            uid=meta.get("uid", ""),
            phase=status.get("phase", "Pending"),
            node=spec.get("nodeName") or None,
            bound_at=_time(scheduled.get("lastTransitionTime")) if spec.get("nodeName") else None,
            deleting="deletionTimestamp" in meta,
            drain_asked=_time(notes.get(ANNOTATION_DRAIN)),
            in_use=(meta.get("labels") or {}).get(LABEL_IN_USE) == "true",
            unschedulable=_unschedulable(scheduled),
            needs=needs_of(obj),
            # Many pods have the same text: it is kept once, and compared by its address.
            carve=sys.intern(notes.get(ANNOTATION_CARVE, "")),
        ),
    )


def share_view(obj: Object) -> SharePod | None:
    """The view of a pod that requests devices and waits for the scheduler or has a node; None for
    all other pods."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    asked = devices_requested(spec)
    if not asked or status.get("phase") in ("Succeeded", "Failed"):
        return None
    node = spec.get("nodeName") or None
    if node is None and ("deletionTimestamp" in meta or spec.get("schedulingGates")):
        return None
    scheduled = _condition(status, "PodScheduled") if node is None else {}
    unschedulable = _unschedulable(scheduled)
    initialized = _condition(status, "Initialized").get("status") == "True"
    kept = devices_after_init(spec) if initialized and spec.get("initContainers") else None
    needs, owner = needs_of(obj), _controller(meta)
    views = (
        ShareView(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta.get("uid", ""),
            resource=resource,
            count=count,
            created=_time(meta.get("creationTimestamp")) or EPOCH,
            node=node,
            needs=needs,
            owner=owner,
            after_init=kept.get(resource, 0) if kept is not None else None,
            unschedulable=unschedulable,
            unschedulable_since=_time(scheduled.get("lastTransitionTime"))
            if unschedulable
            else None,
            deleting="deletionTimestamp" in meta,
        )
        for resource, count in asked.items()
    )
    return SharePod(tuple((_prefix(one.resource), one) for one in views), _running_at(status))


def _running_at(status: Json) -> datetime | None:
    found = [
        ((one.get("state") or {}).get("running") or {}).get("startedAt")
        for one in status.get("containerStatuses") or ()
    ]
    times = [time for one in found if (time := _time(one)) is not None]
    return max(times) if times and len(times) == len(found) else None


def pending_view(obj: Object) -> PendingView | None:
    """The view of a pod that the scheduler refuses for want of whole cards; None for all other
    pods."""
    meta, spec = obj["metadata"], obj["spec"]
    scheduled = _condition(obj.get("status") or {}, "PodScheduled")
    message = _unschedulable(scheduled)
    cards = cards_requested(spec) if message and not spec.get("nodeName") else {}
    lacking = tuple(one for one in cards.items() if lacks_cards(message, one[0]))
    if not lacking or "deletionTimestamp" in meta:
        return None
    labels = meta.get("labels") or {}
    return PendingView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        created=_time(meta.get("creationTimestamp")) or EPOCH,
        cards=lacking,
        needs=needs_of(obj),
        pool=labels.get(LABEL_POOL, "") if labels.get(LABEL_SHADOW_POD) == "true" else "",
    )


def node_view(obj: Object) -> NodeView:
    """The view of a node, with the cards of all resources that a pool could name."""
    meta, status = obj["metadata"], obj.get("status") or {}
    ready = _condition(status, "Ready").get("status") == "True"
    taints = [_taint(one) for one in obj.get("spec", {}).get("taints") or ()]
    taints = [one for one in taints if one.effect in ("NoSchedule", "NoExecute")]
    own = frozenset(one for one in taints if not one.key.startswith(KUBERNETES_OWN))
    return NodeView(
        name=meta["name"],
        labels=frozenset((meta.get("labels") or {}).items()),
        available=ready
        and not obj.get("spec", {}).get("unschedulable", False)
        and len(own) == len(taints),
        cards=_cards(status),
        taints=own,
    )


def _taint(taint: Json) -> Taint:
    return Taint(taint["key"], taint.get("value") or "", taint["effect"])


def _cards(status: Json) -> dict[str, CardsOnNode]:
    """The node's extended resources that may be whole cards, by name: all but Mizar's own, and
    those of which there are none."""
    allocatable = status.get("allocatable") or {}
    return {
        name: CardsOnNode(int(count), int(allocatable.get(name, 0)))
        for name, count in sorted((status.get("capacity") or {}).items())
        if is_card(name) and str(count).isdigit() and int(count) > 0
    }


def _controller(meta: Json) -> str:
    """The UID of the pod's controller; the pod's own if it has none."""
    owners = meta.get("ownerReferences") or ()
    found = (str(one["uid"]) for one in owners if one.get("controller"))
    return next(found, meta.get("uid", ""))


def _prefix(resource: str) -> str:
    parsed = parse_resource(resource)
    return parsed.prefix if parsed else ""


def _carved_resource(text: str) -> str:
    try:
        return Carve.from_json(text).resource
    except CarveRefused:
        return ""


def _condition(status: Json, type: str) -> Json:
    found: Iterable[Json] = status.get("conditions") or ()
    return next((one for one in found if one["type"] == type), {})


def _unschedulable(scheduled: Json) -> str | None:
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "the scheduler finds no node")
    return None


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        # An annotation that somebody edited: it was asked for at some time.
        return EPOCH
