"""Needs that name nodes are judged on few nodes and bins, with the same result as on all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.planning.feasible_nodes import FeasibleNodes, on_node
from mizar_core.planning.node_fit import (
    HOSTNAME,
    NAME_FIELD,
    AntiAffinity,
    Needs,
    Requirement,
    Term,
    fits,
)
from mizar_core.planning.snapshot import NodeView, PodView, ShadowView
from property.plan.snapshots import APART, node, pool, shadow
from support.effort import effort

NAMES = ("n1", "n2", "n3")
HOSTS = ("h1", "h2")

_some = st.lists(st.sampled_from([*NAMES, "gone"]), max_size=2, unique=True).map(tuple)
_hosts = st.lists(st.sampled_from([*HOSTS, "gone"]), max_size=2, unique=True).map(tuple)
_operators = st.sampled_from(["In", "In", "NotIn"])
_fields = st.lists(st.builds(Requirement, st.just(NAME_FIELD), _operators, _some), max_size=1)
_lines = st.lists(
    st.builds(Requirement, st.just(HOSTNAME), _operators, _hosts)
    | st.builds(Requirement, st.just("zone"), st.just("In"), st.just(("east",))),
    max_size=2,
)
_terms = st.lists(st.builds(Term, _lines.map(tuple), _fields.map(tuple)), max_size=2).map(tuple)
_selectors = st.frozensets(st.sampled_from([(HOSTNAME, one) for one in HOSTS]), max_size=1)
_apart = st.sampled_from([frozenset[AntiAffinity](), frozenset({APART})])
needs = st.builds(Needs, _selectors, _terms, anti_affinity=_apart)


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeView]:
    """Nodes with and without cards, some with the hostname of another."""
    found = []
    for name in NAMES:
        made, host = node(name), draw(st.sampled_from([None, *HOSTS]))
        labels = made.labels | {(HOSTNAME, host)} if host else made.labels
        cards = made.cards if draw(st.integers(0, 3)) else {}
        found.append(replace(made, labels=labels, cards=cards))
    return found


@effort()
@given(nodes(), needs)
def test_every_node_that_fits_is_a_candidate(some: list[NodeView], asked: Needs) -> None:
    found = FeasibleNodes({"pool": pool()}, some, ()).candidates(asked)
    assert {one.name for one in some if fits(asked, one)} <= {one.name for one in found}
    for one in some:
        assert not asked.pins or not on_node(one)(asked) or _meet(on_node(one).pins, asked)


@effort()
@given(nodes(), needs, needs, st.booleans())
def test_what_serves_needs_that_name_nodes_has_one_of_their_pins(
    some: list[NodeView], placed: Needs, asked: Needs, occupied: bool
) -> None:
    there = shadow(pod=PodView(node="n1", needs=Needs(anti_affinity=frozenset({APART}))))
    shadows: tuple[ShadowView, ...] = (there,) if occupied else ()
    feasible = FeasibleNodes({"pool": pool()}, some, shadows)
    for one in (placed, feasible.needs_for("pool", placed), feasible.needs_for("pool", asked)):
        for accepts in (feasible.accepts("pool", one), feasible.accepts_blocked("pool", one, one)):
            if asked.pins and accepts(asked):
                assert _meet(accepts.pins, asked)


def _meet(pins: frozenset[tuple[str, str]] | None, asked: Needs) -> bool:
    return pins is None or not pins.isdisjoint(asked.pins)
