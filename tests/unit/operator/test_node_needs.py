"""Pods' constraints on their nodes, read from specs and written back."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.planning.node_fit import HOSTNAME, Needs, Requirement, Term, Toleration, fits
from mizar_core.planning.snapshot import NodeView
from mizar_operator.node_needs import (
    OUTAGES,
    REQUIRED,
    anti_affinity_labels,
    needs_of,
    node_constraints,
    outage_tolerations,
)
from support.effort import effort

words = st.sampled_from(["a", "b", "c"])
lines = st.builds(Requirement, words, st.sampled_from(["In", "NotIn"]), st.tuples(words))
lines |= st.builds(Requirement, words, st.sampled_from(["Exists", "DoesNotExist"]))
terms = st.builds(Term, st.lists(lines, min_size=1, max_size=2).map(tuple))
needs = st.builds(
    Needs,
    selector=st.dictionaries(words, words).map(lambda labels: frozenset(labels.items())),
    terms=st.lists(terms, max_size=2).map(tuple),
    tolerations=st.frozensets(
        st.builds(Toleration, words, st.just("Exists"), effect=words), max_size=2
    ),
)


@effort(3)
@given(needs)
def test_what_is_written_is_read(wanted: Needs) -> None:
    assert needs_of(_pod(wanted)) == wanted


def test_a_pod_with_more_constraints_than_anybody_has_runs_nowhere() -> None:
    line = Requirement("a", "Exists")
    for wanted in (
        Needs(terms=(Term((line,)),) * 128),
        Needs(terms=(Term((line,) * 255),)),
        Needs(tolerations=frozenset(Toleration(str(key), "Exists") for key in range(256))),
    ):
        assert needs_of(_pod(wanted)) == wanted
    for wanted in (
        Needs(terms=(Term((line,)),) * 129),
        Needs(terms=(Term((line,) * 256),)),
        Needs(tolerations=frozenset(Toleration(str(key), "Exists") for key in range(257))),
    ):
        found = needs_of(_pod(wanted))
        assert not fits(found, NodeView("n", labels=frozenset({("a", "1")})))
        # What a shadow pod avoids are the operator's own constraints.
        ours = _pod(wanted)
        ours["metadata"]["labels"]["mizar.share/shadow-pod"] = "true"
        assert needs_of(ours) == wanted


def _web(**changes: Any) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOSTNAME, **changes}
    return {
        "metadata": {"namespace": "team-a", "name": "web-1", "labels": {"app": "web"}},
        "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}},
    }


def _pod(wanted: Needs) -> dict[str, Any]:
    return {"metadata": {"labels": anti_affinity_labels(wanted)}, "spec": node_constraints(wanted)}


def test_replicas_that_must_be_apart() -> None:
    (one,) = needs_of(_web()).anti_affinity
    assert one.topology == HOSTNAME
    assert needs_of(_web(matchLabelKeys=["pod-template-hash"])).anti_affinity == {one}
    assert needs_of(_web(labelSelector={"matchLabels": {}})).anti_affinity != {one}


def test_anti_affinity_to_pods_other_than_replicas_is_left_out() -> None:
    assert not needs_of(_web(labelSelector={"matchLabels": {"app": "db"}})).anti_affinity
    assert not needs_of(_web(namespaces=["team-b"])).anti_affinity
    assert not needs_of(_web(labelSelector=None)).anti_affinity


def test_selectors() -> None:
    def selects(operator: str, key: str = "app", *values: str) -> bool:
        line = {"key": key, "operator": operator, "values": list(values)}
        return bool(needs_of(_web(labelSelector={"matchExpressions": [line]})).anti_affinity)

    assert selects("In", "app", "web", "db") and not selects("In", "app", "db")
    assert selects("NotIn", "app", "db") and not selects("NotIn", "app", "web")
    assert selects("Exists") and not selects("Exists", "tier")
    assert selects("DoesNotExist", "tier") and not selects("DoesNotExist")


def test_shadow_pods_for_replicas_that_must_be_apart_are_apart() -> None:
    """They have labels of their own for that. The replicas' labels would make shadow pods endpoints
    of Services; and anti-affinity to the replicas would keep the replicas off, since the scheduler
    applies it both ways."""
    asked = needs_of(_web())
    (label,) = anti_affinity_labels(asked)
    (term,) = node_constraints(asked)["affinity"]["podAntiAffinity"][REQUIRED]
    assert term["labelSelector"] == {"matchExpressions": [{"key": label, "operator": "Exists"}]}
    assert term["topologyKey"] == HOSTNAME
    assert needs_of(_pod(asked)) == asked


def test_nodes_that_will_not_do_are_named_in_every_term() -> None:
    wanted = Needs(
        terms=(Term((Requirement("zone", "Exists"),)), Term((Requirement("arch", "Exists"),))),
        excluded_nodes=frozenset({"n2", "n1"}),
    )
    found = node_constraints(wanted)["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    names = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in ("n1", "n2")]
    assert [one["matchFields"] for one in found] == [names, names]
    assert node_constraints(Needs(excluded_nodes=frozenset({"n1"})))["affinity"]


def test_tolerations_that_every_pod_gets_are_nobodys_wish() -> None:
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
    assert needs_of({"metadata": {}, "spec": {"tolerations": [own]}}) == Needs()


def _outage(key: str, **fields: Any) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", **fields}


def test_only_outage_tolerations_longer_than_the_default_are_kept() -> None:
    def seconds(*tolerations: dict[str, Any]) -> dict[str, int | None]:
        found = outage_tolerations({"tolerations": list(tolerations)})
        assert all(one[1:4] == ("Exists", "", "NoExecute") for one in found)
        return {one.key: one.seconds for one in found}

    not_ready, unreachable = OUTAGES
    by_default = [_outage(key, tolerationSeconds=300) for key in OUTAGES]
    assert seconds() == seconds(*by_default) == {}
    assert seconds(_outage(not_ready, tolerationSeconds=20)) == {}
    assert seconds(_outage(not_ready, tolerationSeconds=900)) == {not_ready: 900}
    assert seconds(_outage(unreachable), by_default[0]) == {unreachable: None}
    assert seconds({"operator": "Exists"}) == dict.fromkeys(OUTAGES)
    assert seconds({"operator": "Exists"}, by_default[0]) == dict.fromkeys(OUTAGES)
    assert seconds({"operator": "Exists", "effect": "NoSchedule"}) == {}
    assert seconds({"key": not_ready, "effect": "NoExecute"}) == {not_ready: None}
    assert seconds({"key": not_ready, "value": "other"}) == {}
