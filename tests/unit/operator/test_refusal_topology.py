"""By which of a pod's constraints the scheduler refuses nodes, as its message says."""

from typing import Any

import pytest

from mizar_operator.refusal_topology import refusal_topology

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"
SPREAD, AFFINITY, APART = (
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
)


def spread(*keys: str, when: str = "DoNotSchedule") -> dict[str, Any]:
    constraints = [{"topologyKey": one, "whenUnsatisfiable": when, "maxSkew": 1} for one in keys]
    return {"topologySpreadConstraints": constraints}


def affinity(kind: str, *keys: str) -> dict[str, Any]:
    return {"affinity": {kind: {REQUIRED: [{"topologyKey": one} for one in keys]}}}


def said(*reasons: str) -> str:
    found = ", ".join(f"2 {one}" for one in reasons)
    return f"0/5 nodes are available: 1 Insufficient cpu, {found}. preemption: 0/5"


@pytest.mark.parametrize(
    ("spec", "message", "label"),
    [
        (spread(ZONE), said(SPREAD), ZONE),
        (spread(ZONE), said(f"{SPREAD} (missing required label)"), ZONE),
        (spread(ZONE), said("Insufficient memory"), None),
        (spread(ZONE), None, None),
        (spread(ZONE, when="ScheduleAnyway"), said(SPREAD), None),
        (spread(HOST), said(SPREAD), None),
        (affinity("podAffinity", RACK), said(AFFINITY), RACK),
        (affinity("podAffinity", RACK), said(APART), None),
        (affinity("podAntiAffinity", ZONE), said(APART), ZONE),
        (affinity("podAntiAffinity", ZONE), said("node(s) didn't satisfy existing pods"), None),
        ({}, said(SPREAD, AFFINITY, APART), None),
    ],
)
def test_the_constraint_that_the_message_names(
    spec: dict[str, Any], message: str | None, label: str | None
) -> None:
    assert refusal_topology(spec, message) == label


@pytest.mark.parametrize(
    "spec",
    [spread(ZONE, HOST), spread(ZONE, RACK), spread(ZONE) | affinity("podAffinity", RACK)],
)
def test_which_of_several_it_is_is_not_known(spec: dict[str, Any]) -> None:
    """The right zone would be excluded where another replica is on the refused node."""
    assert refusal_topology(spec, said(SPREAD, AFFINITY)) is None


def test_preferences_refuse_nothing() -> None:
    spec = {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
    assert refusal_topology(spec, said(AFFINITY)) is None
