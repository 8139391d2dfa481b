"""By which of a pod's constraints the scheduler refuses nodes, as its message says."""

import pytest

from mizar_operator.refusal_topology import refusal_topology

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"
SPEC = {
    "topologySpreadConstraints": [
        {"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1},
        {"topologyKey": RACK, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1},
        {"topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1},
    ],
    "affinity": {
        "podAffinity": {REQUIRED: [{"topologyKey": RACK}]},
        "podAntiAffinity": {REQUIRED: [{"topologyKey": "region"}, {"topologyKey": "arch"}]},
    },
}


@pytest.mark.parametrize(
    ("said", "labels"),
    [
        ("didn't match pod topology spread constraints", (ZONE,)),
        ("didn't match pod topology spread constraints (missing required label)", (ZONE,)),
        ("didn't match pod affinity rules", (RACK,)),
        ("didn't match pod anti-affinity rules", ("arch", "region")),
        ("didn't satisfy existing pods anti-affinity rules", ()),
    ],
)
def test_what_the_message_names_counts(said: str, labels: tuple[str, ...]) -> None:
    message = f"0/5 nodes are available: 1 Insufficient cpu, 2 node(s) {said}. preemption: 0/5"
    assert refusal_topology(SPEC, message) == labels
    assert refusal_topology({}, message) == ()


@pytest.mark.parametrize("message", [None, "", "0/2 nodes are available: 2 Insufficient cpu."])
def test_other_refusals_are_of_single_nodes(message: str | None) -> None:
    assert refusal_topology(SPEC, message) == ()


def test_preferences_refuse_nothing() -> None:
    spec = {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
    assert refusal_topology(spec, "1 node(s) didn't match pod affinity rules") == ()
