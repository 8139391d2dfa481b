"""Decides whether a pod fits a node, as the scheduler does by node selector, required node affinity
and taints. Constraints that involve more than the pod and the node are left to the scheduler. Nodes
that are cordoned or not ready: see `NodeView.available` in snapshot.py.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

HOSTNAME = "kubernetes.io/hostname"
NAME_FIELD = "metadata.name"

Pairs = frozenset[tuple[str, str]]
"""Labels of a node, or a node selector."""

Pin = tuple[str, str]
"""A key by which one node is found: NAME_FIELD with its name, or HOSTNAME with the value of that
label."""

PINS_MAX = 8
"""The most nodes that needs may name to be looked up by them. Needs that name more are compared
with all nodes."""


class Requirement(NamedTuple):
    """One requirement of a node affinity: a label (or the field metadata.name), an operator and
    values."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Term(NamedTuple):
    """Requirements on labels and on fields that must all be met."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has no requirements; then it matches no node."""
        return not self.labels and not self.fields


class Taint(NamedTuple):
    """A taint that keeps pods away. `effect`: NoSchedule or NoExecute."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self[0]}:{self[2]}"


class Toleration(NamedTuple):
    """As in a pod's spec; an empty text stands for a field that is left out."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    seconds: int | None = None

    def covers(self, taint: Taint) -> bool:
        """Whether a pod with this toleration tolerates the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class AntiAffinity(NamedTuple):
    """A pod's required anti-affinity to pods like itself. `digest`: of the label selector that
    selects them; `topology`: the key of the node label whose value must differ between them."""

    digest: str
    topology: str


@dataclass(frozen=True)
class Needs:
    """The constraints in a pod's spec on its node.

    `selector`: labels that the node must have. `terms`: node affinity, of which one term must be
    met; no term means no constraint. `excluded_nodes`: by name.
    """

    selector: Pairs = frozenset()
    terms: tuple[Term, ...] = ()
    tolerations: frozenset[Toleration] = frozenset()
    excluded_nodes: frozenset[str] = frozenset()
    anti_affinity: frozenset[AntiAffinity] = frozenset()

    @cached_property
    def order(self) -> tuple[int, str]:
        """A key for sorting by which the needs with the most constraints come first."""
        weight = len(self.selector) + len(self.excluded_nodes) + len(self.anti_affinity)
        weight += sum(len(one.labels) + len(one.fields) for one in self.terms)
        parts = (sorted(self.selector), self.terms, sorted(self.tolerations, key=str))
        return -weight, repr(
            (parts, sorted(self.excluded_nodes), sorted(self.anti_affinity))
        ) if weight else ""

    @cached_property
    def text(self) -> str:
        """A text that is the same for equal needs, and for no others."""
        tolerations = sorted(self.tolerations, key=repr)
        return repr(
            (
                sorted(self.selector),
                self.terms,
                tolerations,
                sorted(self.excluded_nodes),
                sorted(self.anti_affinity),
            )
        )

    @cached_property
    def judged_terms(self) -> tuple[Term, ...]:
        """The terms, with long lists of values as sets, since each is searched once per node."""
        return tuple(
            Term(tuple(_judged(one) for one in term.labels), term.fields) for term in self.terms
        )

    @cached_property
    def pins(self) -> frozenset[Pin]:
        """Pins of which every node that meets these needs has one; empty if the needs do not name
        nodes, or more than PINS_MAX."""
        own = _hostnames(self.selector)
        found = [own] if own else [_first_pins(one) for one in self.terms]
        pins = frozenset[Pin]().union(*found) if all(found) else frozenset[Pin]()
        return pins if len(pins) <= PINS_MAX else frozenset()

    @cached_property
    def all_pins(self) -> frozenset[Pin]:
        """Every pin that occurs in these needs. If they imply other needs that have pins, one of
        those is among them."""
        found = (_pins(line) for term in self.terms for line in (*term.fields, *term.labels))
        return _hostnames(self.selector).union(*found)

    def tolerates(self, taint: Taint) -> bool:
        """Whether one of the tolerations covers the taint."""
        return any(one.covers(taint) for one in self.tolerations)

    def merged_with(self, other: Needs) -> Needs:
        """The needs that meet both, with the tolerations of this one."""
        return replace(
            self,
            selector=self.selector | other.selector,
            terms=combined_terms(self.terms, other.terms),
            excluded_nodes=self.excluded_nodes | other.excluded_nodes,
            anti_affinity=self.anti_affinity | other.anti_affinity,
        )

    def outlasting(self, tolerations: Iterable[Toleration]) -> Needs:
        """These needs with those of the tolerations whose taints are not tolerated yet."""
        more = {t for t in tolerations if not self.tolerates(Taint(t.key, t.value, t.effect))}
        return replace(self, tolerations=self.tolerations | more) if more else self

    def implies(self, other: Needs) -> bool:
        """Whether every node that meets these needs meets the others too, taints aside."""
        return (
            other.selector <= self.selector
            and other.excluded_nodes <= self.excluded_nodes
            and (not other.terms or _implies(self.terms, other.terms))
        )


NO_NEEDS = Needs()


class Node(Protocol):
    """The parts of a node that needs refer to."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Pairs: ...
    @property
    def taints(self) -> Iterable[Taint]: ...
    def label(self, key: str) -> str | None: ...


def fits(needs: Needs, node: Node) -> bool:
    """Whether the node's labels, name and taints admit a pod with these needs."""
    return fits_without_taints(needs, node) and all(needs.tolerates(one) for one in node.taints)


def fits_without_taints(needs: Needs, node: Node) -> bool:
    """Whether the node's labels and name admit a pod with these needs, taints aside."""
    if not needs.selector <= node.labels or node.name in needs.excluded_nodes:
        return False
    return not needs.terms or _one_is_met(needs.judged_terms, node)


def pins_of(node: Node) -> frozenset[Pin]:
    """The pins by which a node is found."""
    name, hostname = (NAME_FIELD, node.name), node.label(HOSTNAME)
    return frozenset({name} if hostname is None else {name, (HOSTNAME, hostname)})


def _hostnames(labels: Pairs) -> frozenset[Pin]:
    return frozenset(one for one in labels if one[0] == HOSTNAME)


def _first_pins(term: Term) -> frozenset[Pin]:
    """The pins of the first of the term's lines that has any."""
    found = (_pins(line) for line in (*term.fields, *term.labels))
    return next((one for one in found if one), frozenset())


def _pins(line: Requirement) -> frozenset[Pin]:
    if line.operator != "In" or line.key not in (HOSTNAME, NAME_FIELD):
        return frozenset()
    return frozenset((line.key, value) for value in line.values)


def _one_is_met(terms: Iterable[Term], node: Node) -> bool:
    return any(
        not term.is_empty
        and all(_is_met(one, node.label(one.key)) for one in term.labels)
        and all(_is_met(one, _field(node, one.key)) for one in term.fields)
        for term in terms
    )


def _field(node: Node, key: str) -> str | None:
    return node.name if key == NAME_FIELD else None


def _is_met(one: Requirement, value: str | None) -> bool:
    match one.operator:
        case "In":
            return value in one.values
        case "NotIn":
            return value not in one.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(one, value)
        case _:
            return False


def _judged(one: Requirement) -> Requirement:
    if one.operator not in ("In", "NotIn") or len(one.values) <= PINS_MAX:
        return one
    return one._replace(values=frozenset(one.values))  # type: ignore[arg-type]


def _compares(one: Requirement, value: str | None) -> bool:
    try:
        found, bound = int(value or ""), int(one.values[0])
    except (ValueError, IndexError):
        return False
    return found > bound if one.operator == "Gt" else found < bound


def combined_terms(some: tuple[Term, ...], others: tuple[Term, ...]) -> tuple[Term, ...]:
    """Terms of which one is met exactly where one of `some` and one of `others` is met."""
    if not some or not others:
        return some or others
    return tuple(
        Term(_merged(a.labels, b.labels), _merged(a.fields, b.fields))
        for a, b in product(some, others)
        # An empty term matches no node, also when it is combined with another.
        if not a.is_empty and not b.is_empty
    ) or (Term(),)


def _merged(
    some: tuple[Requirement, ...], others: tuple[Requirement, ...]
) -> tuple[Requirement, ...]:
    return some + tuple(one for one in others if one not in some)


def _implies(some: tuple[Term, ...], others: tuple[Term, ...]) -> bool:
    # Needs of empty terms alone imply nothing: a shadow pod with them would be kept for pods
    # that it can never serve.
    met = [one for one in some if not one.is_empty]
    return bool(met) and all(
        any(
            {*other.labels} <= {*one.labels} and {*other.fields} <= {*one.fields}
            for other in others
            if not other.is_empty
        )
        for one in met
    )
