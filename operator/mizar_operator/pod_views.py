"""Reduces pods to the planner's views: pods of ShadowPods, share pods, and pods that wait for
cards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_core.model_base import parse_time
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    LABEL_IN_USE,
    LABEL_POOL,
    LABEL_SHADOW_POD,
    MIRROR,
    PREEMPTION_GATE,
    SPOT_RESOURCE,
    EventReason,
    gives_way,
    may_be_of_dra_driver,
    parse_resource,
    who_starts_after,
)
from mizar_core.planning.refusal_message import (
    gives_reasons,
    lacks,
    lacks_alone,
    lacks_claimed_devices,
)
from mizar_core.planning.snapshot import Key, PendingView, PodView, ShareView
from mizar_core.pod_requests import cards_requested, devices_after_init, devices_requested
from mizar_kube.kinds import Object
from mizar_operator.node_needs import needs_of, outage_tolerations
from mizar_operator.object_views import Json, condition_of, interned
from mizar_operator.refusal_topology import refusal_topology

EPOCH = datetime.fromtimestamp(0, UTC)
"""Stands for a time that is missing or cannot be parsed."""

DEFAULT_SCHEDULER = "default-scheduler"
"""Name of Kubernetes' own scheduler, which pods have that name none."""

NOT_CREATED = "CreateContainerConfigError"
"""The kubelet's reason for a container whose device plugin refuses its start."""


@dataclass(frozen=True)
class HolderPod:
    """The pod of a ShadowPod. `key`: (namespace, name). `owner_uid`: the ShadowPod's UID.
    `resource`: the resource that its devices are offered as."""

    key: Key
    pool: str
    owner_uid: str
    resource: str
    view: PodView


REFUSAL_LENGTH: Final = 500
"""Characters of a kubelet's refusal that are shown. It contains the device plugin's error."""


@dataclass(frozen=True)
class SharePod:
    """A pod that requests devices. `demands`: one view per resource, with the resource's prefix.
    `running_at`: when the last of its containers began to run for the first time; None until all of
    them run, and when one of them has been restarted."""

    demands: tuple[tuple[str, ShareView], ...]
    running_at: datetime | None = None


def pod_view(obj: Object) -> HolderPod | SharePod | None:
    """The view of a shadow pod's pod, or of a share pod; None for all other pods."""
    return holder_view(obj) or share_view(obj)


def holder_view(obj: Object) -> HolderPod | None:
    """The view of a shadow pod's pod; None for all other pods."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    if (meta.get("labels") or {}).get(LABEL_SHADOW_POD) != "true":
        return None
    notes, scheduled = meta.get("annotations") or {}, condition_of(status, "PodScheduled")
    return HolderPod(
        key=(sys.intern(meta["namespace"]), meta["name"]),
        pool=(meta.get("labels") or {}).get(LABEL_POOL, ""),
        owner_uid=next(
            (one["uid"] for one in meta.get("ownerReferences") or () if one["kind"] == "ShadowPod"),
            "",
        ),
        resource=_carved_resource(notes.get(ANNOTATION_CARVE, "")),
        view=PodView(
            uid=meta.get("uid", ""),
            phase=status.get("phase", "Pending"),
            node=interned(spec.get("nodeName")),
            bound_at=_bound_at(meta, scheduled) if spec.get("nodeName") else None,
            refusal=_refusal(status),
            deleting="deletionTimestamp" in meta,
            drain_asked=time_or_none(notes.get(ANNOTATION_DRAIN)),
            in_use=(meta.get("labels") or {}).get(LABEL_IN_USE) == "true",
            unschedulable=_gated(spec) or unschedulable_message(scheduled),
            needs=needs_of(obj),
            # Many pods have the same text: it is interned, and compared by identity.
            carve=sys.intern(notes.get(ANNOTATION_CARVE, "")),
            priority=int(spec.get("priority") or 0),
            overdue_at=_overdue_at(meta),
        ),
    )


def _bound_at(meta: Json, scheduled: Json) -> datetime | None:
    """When the pod got its node. The status that a kubelet gives to a pod that it refuses has no
    conditions; then it is when the pod was created, not startTime, since a node's clock may be
    wrong. `scheduled`: the condition PodScheduled, empty if it is missing."""
    return time_or_none(scheduled.get("lastTransitionTime") or meta.get("creationTimestamp"))


def _refusal(status: Json) -> str:
    """Why the pod failed as a whole, which is so if its kubelet has refused it; else empty."""
    if status.get("phase") != "Failed" or not status.get("reason"):
        return ""
    why = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    return why[:REFUSAL_LENGTH]


def _gated(spec: Json) -> str | None:
    """Why the scheduler does not look for a node yet: the pod's scheduling gates; None without
    any."""
    gates = ", ".join(str(one["name"]) for one in spec.get("schedulingGates") or ())
    if not gates:
        return None
    return (
        f"the scheduling gate {gates} holds it back: exempt pods with the label {LABEL_SHADOW_POD} "
        "from the webhook that adds it"
    )


def _overdue_at(meta: Json) -> datetime | None:
    """When ResourceQuotas stop counting a pod that is being deleted: one grace period after its
    deletion time, which already includes one."""
    ends_at, grace_s = meta.get("deletionTimestamp"), meta.get("deletionGracePeriodSeconds")
    if not ends_at or grace_s is None:
        return None
    return parse_time(ends_at) + timedelta(seconds=grace_s)


def share_view(obj: Object) -> SharePod | None:
    """The view of a pod that requests devices and waits for the scheduler or has a node; None for
    all other pods."""
    asked = devices_requested(obj["spec"])
    if not asked or not _is_for_planner(obj):
        return None
    whole = _share_pod_view(obj)
    kept = _kept_after_init(obj)
    views = (
        replace(
            whole,
            resource=sys.intern(resource),
            count=count,
            after_init=kept.get(resource, 0) if kept is not None else None,
            lacks_devices=lacks_alone(whole.unschedulable, resource),
            beside=tuple(one for one in asked if one != resource),
        )
        for resource, count in asked.items()
    )
    status = obj.get("status") or {}
    return SharePod(tuple((_prefix(one.resource), one) for one in views), _running_at(status))


def _is_for_planner(obj: Object) -> bool:
    """Whether the pod has not ended, and has a node, or waits for the scheduler or behind the gate
    that the operator opens."""
    spec = obj["spec"]
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return False
    gates = [one.get("name") for one in spec.get("schedulingGates") or ()]
    waits = "deletionTimestamp" not in obj["metadata"] and gates in ([], [PREEMPTION_GATE])
    return bool(spec.get("nodeName")) or waits


def _share_pod_view(obj: Object) -> ShareView:
    """What the views of all of a share pod's resources have in common, with no resource."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    node = interned(spec.get("nodeName"))
    scheduled = condition_of(status, "PodScheduled") if node is None else {}
    unschedulable = unschedulable_message(scheduled)
    kind, owner = _controller(meta)
    refusals = tuple(_refusals(status))
    given_twice = any(_names(EventReason.DEVICE_GIVEN_TWICE, one) for one in refusals)
    own_words = gives_way(meta["namespace"], meta["name"])
    told_to_go = next((one for one in refusals if given_twice and own_words in one), "")
    return ShareView(
        namespace=sys.intern(meta["namespace"]),
        name=meta["name"],
        uid=meta.get("uid", ""),
        resource="",
        count=0,
        created=time_or_none(meta.get("creationTimestamp")) or EPOCH,
        node=node,
        needs=needs_of(obj),
        owner=owner,
        of_daemon_set=kind == "DaemonSet",  # by the same field, `kubectl drain` leaves it alone
        of_job=kind == "Job",
        unschedulable=unschedulable,
        unschedulable_since=time_or_none(scheduled.get("lastTransitionTime"))
        if unschedulable
        else None,
        deleting="deletionTimestamp" in meta,
        outages=outage_tolerations(spec),
        priority=int(spec.get("priority") or 0),
        # Constraints on the node do not matter once the pod has a node.
        claims=tuple(_claims(meta["name"], spec)) if node is None else (),
        refused_by=refusal_topology(spec, unschedulable),
        gated=node is None and bool(spec.get("schedulingGates")),
        several_cards=any(_names(EventReason.SEVERAL_CARDS, one) for one in refusals),
        given_twice=given_twice,
        gives_way=bool(told_to_go),
        gives_way_to=who_starts_after(told_to_go) if told_to_go else None,
        overdue_at=_overdue_at(meta),
    )


def _kept_after_init(obj: Object) -> dict[str, int] | None:
    """The devices that the pod needs from now on, by resource, if that is known to be fewer than it
    requests: its init containers have ended, or it is a static pod, to which no plan gives any."""
    if MIRROR in (obj["metadata"].get("annotations") or {}):
        return {}
    initialized = condition_of(obj.get("status") or {}, "Initialized").get("status") == "True"
    if not initialized or not obj["spec"].get("initContainers"):
        return None
    return devices_after_init(obj["spec"])


def _claims(pod: str, spec: Json) -> Iterator[str]:
    """The names of the claims of the pod's volumes."""
    for volume in spec.get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield str(claim["claimName"])
        elif "ephemeral" in volume:
            yield f"{pod}-{volume['name']}"


def _refusals(status: Json) -> Iterator[str]:
    """The messages of containers that the kubelet cannot create. It passes on the words by which a
    node agent refuses to start one, which begin with the reason of the agent's event."""
    containers = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    waiting = ((one.get("state") or {}).get("waiting") or {} for one in containers)
    return (one.get("message") or "" for one in waiting if one.get("reason") == NOT_CREATED)


def _names(reason: EventReason, message: str) -> bool:
    return f"{reason}: " in message


def _running_at(status: Json) -> datetime | None:
    containers = status.get("containerStatuses") or ()
    if any(one.get("restartCount") for one in containers):
        return None
    found = [((one.get("state") or {}).get("running") or {}).get("startedAt") for one in containers]
    times = [time for one in found if (time := time_or_none(one)) is not None]
    return max(times) if times and len(times) == len(found) else None


def pending_view(obj: Object) -> PendingView | None:
    """The view of a pod that the scheduler refuses for want of whole cards, or without saying for
    want of what; None for all other pods."""
    meta, spec = obj["metadata"], obj["spec"]
    scheduled = condition_of(obj.get("status") or {}, "PodScheduled")
    message = unschedulable_message(scheduled)
    cards = cards_requested(spec) if message and not spec.get("nodeName") else {}
    # A pod that waits to borrow a card has no use for a card that a shadow pod holds.
    cards.pop(SPOT_RESOURCE, None)
    reason_unknown = _has_other_scheduler(spec) and not gives_reasons(message)
    lacking = {one for one in cards if reason_unknown or lacks(message, one)}
    of_nvidia = set(filter(may_be_of_dra_driver, cards))
    if not lacking and of_nvidia and lacks_claimed_devices(message):
        # What the pod's own claims ask for may be lacking instead, or another resource of a DRA
        # driver.
        reason_unknown = bool(spec.get("resourceClaims")) or len(cards) > 1
        lacking = of_nvidia
    if not lacking or "deletionTimestamp" in meta:
        return None
    labels = meta.get("labels") or {}
    return PendingView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta.get("uid", ""),
        created=time_or_none(meta.get("creationTimestamp")) or EPOCH,
        cards=tuple(one for one in cards.items() if one[0] in lacking),
        needs=needs_of(obj),
        pool=labels.get(LABEL_POOL, "") if labels.get(LABEL_SHADOW_POD) == "true" else "",
        reason_unknown=reason_unknown,
    )


def _has_other_scheduler(spec: Json) -> bool:
    return spec.get("schedulerName") not in (None, DEFAULT_SCHEDULER)


def _controller(meta: Json) -> tuple[str, str]:
    """The kind and the UID of the pod's controller; no kind and the pod's own UID if it has none. A
    static pod has none: its node, which its reference names, would run the same pod again."""
    owners = meta.get("ownerReferences") or ()
    found = ((str(one["kind"]), str(one["uid"])) for one in owners if one.get("controller"))
    kind, uid = next(found, ("Node", ""))
    return ("", meta.get("uid", "")) if kind == "Node" else (kind, uid)


def _prefix(resource: str) -> str:
    parsed = parse_resource(resource)
    return parsed.prefix if parsed else ""


def _carved_resource(text: str) -> str:
    try:
        return sys.intern(Carve.from_json(text).resource)
    except CarveRefused:
        return ""


def unschedulable_message(scheduled: Json) -> str | None:
    """Why the scheduler finds no node, by the condition PodScheduled; None if it does not say."""
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "the scheduler finds no node")
    return None


def time_or_none(text: str | None) -> datetime | None:
    """The time in an RFC 3339 text; None without a text, and EPOCH if it cannot be parsed."""
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        # The annotation was edited by hand: the drain was requested, but the time is unknown.
        return EPOCH
