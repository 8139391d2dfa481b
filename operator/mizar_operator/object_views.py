"""Reduces the API server's objects to the planner's views; all other fields are dropped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from mizar_core.condition import find_condition
from mizar_core.models import GPUPool, GPUQuota, ShadowPod, ShadowPodStatus
from mizar_core.names import (
    ANNOTATION_RESOURCE,
    ANNOTATION_SEQUENCE,
    FINALIZER_DRAIN,
    ConditionType,
    EventReason,
    parse_resource,
)
from mizar_core.planning.node_fit import Taint
from mizar_core.planning.snapshot import CardsOnNode, Key, NodeView, ShadowView
from mizar_core.pod_requests import is_card, whole_count
from mizar_kube.kinds import Object
from mizar_operator.node_needs import marks_unavailable

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
    sequence = meta.annotations.get(ANNOTATION_SEQUENCE, "")
    return ShadowView(
        namespace=sys.intern(meta.namespace or ""),
        name=meta.name,
        uid=meta.uid or "",
        pool=sys.intern(spec.pool),
        quota=sys.intern(spec.quota),
        quota_uid=sys.intern(
            next((o.uid for o in meta.owner_references if o.kind == "GPUQuota"), "")
        ),
        resource=meta.annotations.get(ANNOTATION_RESOURCE, ""),
        devices=spec.devices,
        cards=spec.cards,
        sequence=int(sequence) if sequence.isdigit() else 0,
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


def _holders_on(status: ShadowPodStatus, cards: tuple[str, ...]) -> tuple[Key, ...]:
    """The share pods that hold devices on these cards (UUIDs), by name."""
    found = (one.holder for one in status.devices if one.card in cards and one.holder)
    return tuple(sorted({(one.namespace, one.name) for one in found}))


def node_view(obj: Object) -> NodeView:
    """The view of a node, with the cards of all resources that a pool could name."""
    meta, status = obj["metadata"], obj.get("status") or {}
    ready = condition_of(status, "Ready").get("status") == "True"
    taints = [_taint(one) for one in obj.get("spec", {}).get("taints") or ()]
    taints = [one for one in taints if one.effect in ("NoSchedule", "NoExecute")]
    own = frozenset(one for one in taints if not marks_unavailable(one.key))
    return NodeView(
        name=sys.intern(meta["name"]),
        labels=frozenset(map(_same_label, (meta.get("labels") or {}).items())),
        available=ready
        and not obj.get("spec", {}).get("unschedulable", False)
        and len(own) == len(taints),
        cards=_cards(status),
        devices=_devices(status),
        taints=own,
    )


@lru_cache(maxsize=1024)
def _same_label(label: tuple[str, str]) -> tuple[str, str]:
    """A label. Nodes with the same label share one object, up to a limit: GPU feature discovery
    alone gives each node some thirty labels."""
    return label


def _taint(taint: Json) -> Taint:
    return Taint(taint["key"], taint.get("value") or "", taint["effect"])


def _cards(status: Json) -> dict[str, CardsOnNode]:
    """The node's extended resources that may be whole cards, by name: all but Mizar's own, and
    those of which there are none."""
    allocatable = status.get("allocatable") or {}
    return {
        name: CardsOnNode(total, whole_count(allocatable.get(name, 0)))
        for name, count in sorted((status.get("capacity") or {}).items())
        if is_card(name) and (total := whole_count(count)) > 0
    }


def _devices(status: Json) -> dict[str, int]:
    """The node's resources that may be Mizar's, by name, without those of which there are none."""
    return {
        sys.intern(name): count
        for name, amount in sorted((status.get("allocatable") or {}).items())
        if parse_resource(name) is not None and (count := whole_count(amount)) > 0
    }


def interned(name: str | None) -> str | None:
    """The name as an interned string, which lookups compare by identity, since many objects have
    the same one; None if it is empty."""
    return sys.intern(name) if name else None


def condition_of(status: Json, type: str) -> Json:
    """The condition of this type in an object's status; empty if there is none."""
    found: Iterable[Json] = status.get("conditions") or ()
    return next((one for one in found if one["type"] == type), {})
