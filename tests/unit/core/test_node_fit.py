"""Whether a pod may go to a node, as the scheduler judges."""

import pytest

from mizar_core.planning.node_fit import (
    NO_NEEDS,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
    combined_terms,
    fits,
)
from mizar_core.planning.snapshot import NodeView

TEAM_A = Taint("team", "a", "NoSchedule")
NODE = NodeView(
    "n1", labels=frozenset({("zone", "east"), ("gpus", "8")}), taints=frozenset({TEAM_A})
)
BARE = NodeView("n2")


def _by(key: str, operator: str, *values: str) -> Needs:
    term = Term((Requirement(key, operator, values),))
    return Needs(terms=(term,), tolerations=frozenset({Toleration("", "Exists")}))


@pytest.mark.parametrize(
    ("needs", "on_node", "on_bare"),
    [
        (_by("zone", "In", "west", "east"), True, False),
        (_by("zone", "In", "west"), False, False),
        (_by("zone", "NotIn", "east"), False, True),
        (_by("zone", "Exists"), True, False),
        (_by("zone", "DoesNotExist"), False, True),
        (_by("gpus", "Gt", "7"), True, False),
        (_by("gpus", "Gt", "8"), False, False),
        (_by("gpus", "Lt", "9"), True, False),
        (_by("zone", "Gt", "7"), False, False),
        (_by("zone", "Near", "east"), False, False),
    ],
)
def test_operators(needs: Needs, on_node: bool, on_bare: bool) -> None:
    assert (fits(needs, NODE), fits(needs, BARE)) == (on_node, on_bare)


def test_one_term_is_enough_and_all_of_its_lines_are_needed() -> None:
    east, many = Requirement("zone", "In", ("east",)), Requirement("gpus", "In", ("64",))
    anyone = frozenset({Toleration("", "Exists")})
    assert fits(Needs(terms=(Term((many,)), Term((east,))), tolerations=anyone), NODE)
    assert not fits(Needs(terms=(Term((many, east)),), tolerations=anyone), NODE)


def test_a_node_by_its_name() -> None:
    named = Needs(terms=(Term((), (Requirement("metadata.name", "In", ("n2",)),)),))
    assert fits(named, BARE)
    assert not fits(named, NodeView("n3"))
    assert not fits(Needs(excluded_nodes=frozenset({"n2"})), BARE)


def test_a_term_of_nothing_matches_nothing() -> None:
    anything = Term((Requirement("a", "DoesNotExist"),))
    assert not fits(Needs(terms=(Term(),)), BARE)
    assert not fits(Needs(terms=combined_terms((Term(),), (anything,))), BARE)


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("team", "Equal", "a", "NoSchedule"), True),
        (Toleration("team", "", "a"), True),
        (Toleration("team", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("team", "Equal", "b"), False),
        (Toleration("team", "Exists", effect="NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("", "", "a"), False),
    ],
)
def test_taints_and_tolerations(toleration: Toleration, covers: bool) -> None:
    assert fits(Needs(tolerations=frozenset({toleration})), NODE) == covers


def test_both_and_implied() -> None:
    east = Needs(terms=(Term((Requirement("zone", "In", ("east",)),)),))
    large = Needs(selector=frozenset({("size", "xl")}), excluded_nodes=frozenset({"n9"}))
    merged = east.merged_with(large)
    assert merged.implies(east) and merged.implies(large) and merged.implies(NO_NEEDS)
    assert not east.implies(merged)
    assert not NO_NEEDS.implies(east)


def test_labels_do_not_imply_fields_nor_the_other_way_round() -> None:
    east = Requirement("zone", "In", ("east",))
    named = Requirement("metadata.name", "In", ("n1",))
    combined_terms, label, field = (
        Needs(terms=(term,))
        for term in (Term((east,), (named,)), Term((east,)), Term((), (named,)))
    )
    assert combined_terms.implies(label) and combined_terms.implies(field)
    assert not label.implies(combined_terms) and not field.implies(combined_terms)
    assert not label.implies(field) and not field.implies(label)


def test_needs_are_told_apart_by_their_text_also_with_and_without_seconds() -> None:
    """None and a number have no order of their own."""
    ever = Toleration("team", "Exists", effect="NoExecute")
    found = {
        Needs(tolerations=frozenset(some)).text
        for some in ((ever,), (ever._replace(seconds=5),), (ever, ever._replace(seconds=5)))
    }
    assert len(found) == 3


def test_a_term_of_nothing_counts_for_nothing() -> None:
    """No node meets it."""
    zone = Term((Requirement("zone", "In", ("east",)),))
    nowhere = Needs(terms=(Term(),))
    assert not nowhere.implies(nowhere)
    assert not nowhere.implies(Needs(terms=(zone,)))
    assert Needs(terms=(Term(), zone)).implies(Needs(terms=(Term(), zone)))
    assert not Needs(terms=(Term(), zone)).implies(nowhere)
