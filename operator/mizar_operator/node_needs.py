"""Reads the constraints of a pod on its node from its spec, and writes them into a shadow pod's
spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from mizar_core.names import LABEL_ANTI_AFFINITY, LABEL_SHADOW_POD
from mizar_core.planning.node_fit import (
    NAME_FIELD,
    AntiAffinity,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
)
from mizar_kube.kinds import Object

Json = Mapping[str, Any]
"""An object, or a part of one, as the API server sends it."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""Kubernetes' name of the part of an affinity that a node must satisfy."""

KUBERNETES_OWN = "node.kubernetes.io/"
"""Prefix of the taints by which Kubernetes marks nodes as unhealthy or unschedulable. Every pod
gets tolerations of some of them."""

AUTOSCALERS_OWN = frozenset(
    {
        "karpenter.sh/disrupted",
        "karpenter.sh/unregistered",
        "ToBeDeletedByClusterAutoscaler",
    }
)
"""Keys of the taints of nodes that an autoscaler drains, or has not set up yet."""

OUTAGES = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints, of effect NoExecute, of a node whose kubelet does not answer."""
NO_TOLERATIONS = frozenset[Toleration]()
"""The empty set that all pods share that tolerate an outage no longer than pods do by default. Most
pods are such ones, and an empty set takes as much memory as one of four."""
OUTAGE_TOLERATED_S = 300
"""Seconds for which a pod tolerates the taints of OUTAGES by default."""


CONSTRAINTS_MAX = 256
"""The most constraints that are read from a user's pod. A plan, which all tenants of a pool wait
for, may compare each of them with each node, and a pod can have 50,000."""

NOWHERE = Needs(terms=(Term(),))
"""Constraints that no node satisfies."""


def marks_unavailable(key: str) -> bool:
    """Whether a taint with this key says that the node takes no pods for now, and not which pods it
    is for."""
    return key.startswith(KUBERNETES_OWN) or key in AUTOSCALERS_OWN


def needs_of(obj: Json) -> Needs:
    """The constraints in the pod's spec on its node; NOWHERE for a user's pod with too many of
    them. Pods with the same constraints share one object, up to a limit: it is large, and plans use
    it as a key."""
    spec, labels = obj["spec"], obj["metadata"].get("labels") or {}
    found = Needs(
        selector=frozenset((spec.get("nodeSelector") or {}).items()),
        terms=_terms((spec.get("affinity") or {}).get("nodeAffinity") or {}),
        tolerations=frozenset(_tolerations(spec)),
        anti_affinity=frozenset(_anti_affinity(spec, labels)),
    )
    is_ours = labels.get(LABEL_SHADOW_POD) == "true"
    return _same(found) if is_ours or _count(found) <= CONSTRAINTS_MAX else NOWHERE


def _count(needs: Needs) -> int:
    lines = sum(1 + len(one.labels) + len(one.fields) for one in needs.terms)
    return len(needs.selector) + lines + len(needs.tolerations) + len(needs.anti_affinity)


@lru_cache(maxsize=1024)
def _same(needs: Needs) -> Needs:
    return needs


def node_constraints(needs: Needs) -> Object:
    """The part of a shadow pod's spec with its constraints on the node."""
    spec: dict[str, Any] = {}
    if needs.selector:
        spec["nodeSelector"] = dict(sorted(needs.selector))
    if needs.tolerations:
        spec["tolerations"] = [
            _toleration(one) for one in sorted(needs.tolerations, key=lambda one: one[:4])
        ]
    affinity: dict[str, Any] = {}
    if terms := _with_names(needs):
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
    if needs.anti_affinity:
        affinity["podAntiAffinity"] = {
            REQUIRED: [_anti_affinity_term(one) for one in sorted(needs.anti_affinity)]
        }
    return {**spec, "affinity": affinity} if affinity else spec


def anti_affinity_labels(needs: Needs) -> dict[str, str]:
    """The labels by which shadow pods for share pods with anti-affinity avoid each other's nodes.

    They are not the share pods' own labels: these would make shadow pods endpoints of Services, and
    a shadow pod with anti-affinity to the share pods would keep them off its own node.
    """
    return {_anti_affinity_label(one): "true" for one in sorted(needs.anti_affinity)}


def _anti_affinity_term(one: AntiAffinity) -> Object:
    own = {"matchExpressions": [{"key": _anti_affinity_label(one), "operator": "Exists"}]}
    return {"labelSelector": own, "topologyKey": one.topology}


def _anti_affinity_label(one: AntiAffinity) -> str:
    return f"{LABEL_ANTI_AFFINITY}-{one.digest}"


def _anti_affinity(spec: Json, labels: Mapping[str, str]) -> Iterable[AntiAffinity]:
    """The pod's required anti-affinity to other pods of the same kind in its namespace."""
    found = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED) or ()
    for term in found:
        selector = term.get("labelSelector")
        elsewhere = term.get("namespaces") or term.get("namespaceSelector")
        if not elsewhere and _selects(selector, labels):
            yield AntiAffinity(_written(selector) or _digest(selector), term["topologyKey"])


def _written(selector: Json) -> str:
    """The digest that `_anti_affinity_term` put into a shadow pod's term; empty for other terms."""
    keys = [one["key"] for one in selector.get("matchExpressions") or ()]
    own = [
        one.removeprefix(f"{LABEL_ANTI_AFFINITY}-")
        for one in keys
        if one.startswith(LABEL_ANTI_AFFINITY)
    ]
    return own[0] if own else ""


def _digest(selector: Json) -> str:
    return hashlib.sha256(json.dumps(selector, sort_keys=True).encode()).hexdigest()[:10]


def _selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    wanted = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _meets(one, labels.get(one["key"])) for one in expressions
    )


def _meets(expression: Json, value: str | None) -> bool:
    values = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


def _terms(affinity: Json) -> tuple[Term, ...]:
    return selector_terms(affinity.get(REQUIRED) or {})


def selector_terms(selector: Json) -> tuple[Term, ...]:
    """The terms of a NodeSelector, as in a pod's affinity or a volume's."""
    found = selector.get("nodeSelectorTerms") or ()
    return tuple(
        Term(
            tuple(_requirement(line) for line in one.get("matchExpressions") or ()),
            tuple(_requirement(line) for line in one.get("matchFields") or ()),
        )
        for one in found
    )


def _requirement(line: Json) -> Requirement:
    return Requirement(line["key"], line["operator"], tuple(line.get("values") or ()))


def _with_names(needs: Needs) -> list[Object]:
    """The terms of the node affinity, with the excluded nodes."""
    names = tuple(Requirement(NAME_FIELD, "NotIn", (one,)) for one in sorted(needs.excluded_nodes))
    terms = needs.terms or ((Term(),) if names else ())
    return [_term(Term(one.labels, one.fields + names)) for one in terms]


def _term(term: Term) -> Object:
    lines = {"matchExpressions": term.labels, "matchFields": term.fields}
    return {key: [_line(one) for one in found] for key, found in lines.items() if found}


def _line(one: Requirement) -> Object:
    values = {"values": list(one.values)} if one.values else {}
    return {"key": one.key, "operator": one.operator, **values}


def _tolerations(spec: Json) -> Iterable[Toleration]:
    found = _all_tolerations(spec)
    return (one for one in found if not marks_unavailable(one.key))


def _all_tolerations(spec: Json) -> Iterable[Toleration]:
    for one in spec.get("tolerations") or ():
        key, operator, value, effect = (
            str(one.get(field) or "") for field in ("key", "operator", "value", "effect")
        )
        yield Toleration(key, operator, value, effect, one.get("tolerationSeconds"))


def outage_tolerations(spec: Json) -> frozenset[Toleration]:
    """The tolerations with which another pod stays on a node whose kubelet does not answer for as
    long as the pod of this spec does; none where that is no longer than pods do by default."""
    found = {_of_outage(spec, Taint(key, "", "NoExecute")) for key in OUTAGES}
    return frozenset(one for one in found if one is not None) or NO_TOLERATIONS


def _of_outage(spec: Json, taint: Taint) -> Toleration | None:
    # Kubernetes uses the first toleration that matches the taint.
    first = next((one for one in _all_tolerations(spec) if one.covers(taint)), None)
    if first is None or (first.seconds is not None and first.seconds <= OUTAGE_TOLERATED_S):
        return None
    return Toleration(taint.key, "Exists", "", taint.effect, first.seconds)


def _toleration(one: Toleration) -> Object:
    fields = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
    found: dict[str, Any] = {key: value for key, value in fields.items() if value}
    return found if one.seconds is None else {**found, "tolerationSeconds": one.seconds}
