"""Reduces objects of Mizar's kinds to the planner's views; all other fields are dropped. Nodes are
reduced in node_view.py, pods in pod_views.py."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from mizar_core.condition import find_condition
from mizar_core.models import GPUPool, GPUQuota, ShadowPod, ShadowPodStatus
from mizar_core.models.meta import ObjectMeta
from mizar_core.names import (
    ANNOTATION_RESOURCE,
    ANNOTATION_SEQUENCE,
    FINALIZER_DRAIN,
    ConditionType,
    EventReason,
)
from mizar_core.planning.snapshot import Key, ShadowView
from mizar_kube.kinds import Object

Json = Mapping[str, Any]
"""An object, or a part of one, as the API server sends it."""


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
    lost = ready is not None and ready.reason == EventReason.CARD_LOST
    lost_cards = () if lost else tuple(sorted(one.uuid for one in status.cards if one.lost))
    return ShadowView(
        namespace=sys.intern(meta.namespace or ""),
        name=meta.name,
        uid=meta.uid or "",
        pool=sys.intern(spec.pool),
        quota=sys.intern(spec.quota),
        quota_uid=sys.intern(_quota_uid(meta)),
        resource=meta.annotations.get(ANNOTATION_RESOURCE, ""),
        devices=spec.devices,
        cards=spec.cards,
        sequence=_sequence(meta),
        deleting=meta.deletion_timestamp is not None,
        finalizer=FINALIZER_DRAIN in meta.finalizers,
        phase=status.phase,
        scheduled=find_condition(status.conditions, ConditionType.SCHEDULED),
        node=interned(status.node),
        ready=ready is not None and ready.status == "True",
        not_ready_because=ready.message if ready is not None and ready.status != "True" else "",
        broken=healthy is not None and healthy.status == "False",
        lost=lost,
        lost_cards=lost_cards,
        on_lost_cards=_holders_on(status, lost_cards) if lost_cards else (),
        # During a drain the condition is Unknown: the devices are neither offered nor drained.
        draining=draining is not None and draining.status != "False",
        drained=draining is not None and (draining.status, draining.reason) == ("True", "Drained"),
        healthy=sum(one.health == "Healthy" for one in status.devices),
        card_mib=max((one.memory_mib for one in status.cards), default=0),
        holders=tuple(sorted((one.namespace, one.name) for one in holders)),
        in_use=in_use is not None and in_use.status == "True",
        idle_since=status.idle_since,
        heard_at=max((o.last_transition_time for o in (ready, draining) if o), default=None),
    )


def _quota_uid(meta: ObjectMeta) -> str:
    """The UID of the quota that owns a ShadowPod; empty if none does."""
    return next((one.uid for one in meta.owner_references if one.kind == "GPUQuota"), "")


def _sequence(meta: ObjectMeta) -> int:
    """A ShadowPod's number among those of its quota; 0 if it has none."""
    sequence = meta.annotations.get(ANNOTATION_SEQUENCE, "")
    return int(sequence) if sequence.isdigit() else 0


def _holders_on(status: ShadowPodStatus, cards: tuple[str, ...]) -> tuple[Key, ...]:
    """The share pods that hold devices on these cards (UUIDs), by name."""
    found = (one.holder for one in status.devices if one.card in cards and one.holder)
    return tuple(sorted({(one.namespace, one.name) for one in found}))


def interned(name: str | None) -> str | None:
    """The name as an interned string, which lookups compare by identity, since many objects have
    the same one; None if it is empty."""
    return sys.intern(name) if name else None


def condition_of(status: Json, type: str) -> Json:
    """The condition of this type in an object's status; empty if there is none."""
    found: Iterable[Json] = status.get("conditions") or ()
    return next((one for one in found if one["type"] == type), {})
