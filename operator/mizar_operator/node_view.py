"""Reduces a node to the planner's view: its labels and taints, whether it takes pods, and how many
cards and devices device plugins offer there. offered_dra_cards.py adds the cards that NVIDIA's DRA
driver offers."""

from __future__ import annotations

import sys
from functools import lru_cache

from mizar_core.names import parse_resource
from mizar_core.planning.node_fit import Taint
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from mizar_core.pod_requests import is_card, whole_count
from mizar_kube.kinds import Object
from mizar_operator.node_needs import marks_unavailable
from mizar_operator.object_views import Json, condition_of


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
