"""What a pod asks of its node, between the API's words and the planner's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from mizar_core.names import LABEL_APART
from mizar_core.planning.fit import Needs, Requirement, Term, Toleration
from mizar_kube.kinds import Object

Json = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
NAME_FIELD = "metadata.name"

KUBERNETES_OWN = "node.kubernetes.io/"
"""Taints of nodes that are not well or not wanted. Every pod gets tolerations of some of them."""


def needs_of(spec: Json) -> Needs:
    """What the pod with this spec asks of its node, as far as pod and node alone decide it."""
    terms = _terms((spec.get("affinity") or {}).get("nodeAffinity") or {})
    return Needs(
        selector=frozenset((spec.get("nodeSelector") or {}).items()),
        terms=terms,
        tolerations=frozenset(_tolerations(spec)),
        apart=frozenset(_canonical(one) for one in _apart(spec) if _is_foreign(one)),
    )


def groups_of(obj: Json) -> frozenset[str]:
    """The sets of pods, the pod among them, of which no two may be on one node: those that its
    required anti-affinity by hostname names, in its own namespace."""
    meta, labels = obj["metadata"], obj["metadata"].get("labels") or {}
    return frozenset(
        f"{meta['namespace']}/{_canonical(one)}"
        for one in _apart(obj["spec"])
        if one.get("topologyKey") == HOSTNAME and _selects(one.get("labelSelector"), labels)
    )


def placing(needs: Needs) -> Object:
    """The part of a shadow pod's spec that says what it asks of its node."""
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
    if needs.apart:
        affinity["podAntiAffinity"] = {REQUIRED: list(_apart_terms(needs.apart))}
    return {**spec, "affinity": affinity} if affinity else spec


def apart_labels(needs: Needs) -> dict[str, str]:
    """Labels by which shadow pods for share pods that must be apart keep apart themselves. The
    share pods' own labels would make shadow pods endpoints of their Services."""
    return {_apart_label(one): "true" for one in sorted(needs.apart)}


def _apart_terms(apart: Iterable[str]) -> Iterable[Object]:
    for text in sorted(apart):
        term = json.loads(text)
        yield term
        own = {"matchExpressions": [{"key": _apart_label(text), "operator": "Exists"}]}
        yield {"labelSelector": own, "topologyKey": term["topologyKey"]}


def _apart_label(term: str) -> str:
    return f"{LABEL_APART}-{hashlib.sha256(term.encode()).hexdigest()[:10]}"


def _apart(spec: Json) -> list[Json]:
    """The pod's required anti-affinity, as far as it is about pods of its own namespace."""
    found = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(REQUIRED) or ()
    return [one for one in found if not one.get("namespaces") and not one.get("namespaceSelector")]


def _is_foreign(term: Json) -> bool:
    """Whether the term is somebody else's, not that of shadow pods among themselves."""
    found = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    return not any(one["key"].startswith(LABEL_APART) for one in found)


def _canonical(term: Json) -> str:
    # The API server has merged the label keys into the selector.
    kept = {key: value for key, value in term.items() if key in ("labelSelector", "topologyKey")}
    return json.dumps(kept, sort_keys=True)


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
    found = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ()
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
    """The node affinity, without the nodes that won't do."""
    names = tuple(Requirement(NAME_FIELD, "NotIn", (one,)) for one in sorted(needs.not_on))
    terms = needs.terms or ((Term(),) if names else ())
    return [_term(Term(one.labels, one.fields + names)) for one in terms]


def _term(term: Term) -> Object:
    lines = {"matchExpressions": term.labels, "matchFields": term.fields}
    return {key: [_line(one) for one in found] for key, found in lines.items() if found}


def _line(one: Requirement) -> Object:
    values = {"values": list(one.values)} if one.values else {}
    return {"key": one.key, "operator": one.operator, **values}


def _tolerations(spec: Json) -> Iterable[Toleration]:
    for one in spec.get("tolerations") or ():
        if not (one.get("key") or "").startswith(KUBERNETES_OWN):
            key, operator, value, effect = (
                str(one.get(field) or "") for field in ("key", "operator", "value", "effect")
            )
            yield Toleration(key, operator, value, effect, one.get("tolerationSeconds"))


def _toleration(one: Toleration) -> Object:
    fields = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
    found: dict[str, Any] = {key: value for key, value in fields.items() if value}
    return found if one.seconds is None else {**found, "tolerationSeconds": one.seconds}
