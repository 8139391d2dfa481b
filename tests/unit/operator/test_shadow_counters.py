"""Shadow pods are counted as created, reaped and lost when it is done, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from mizar_kube.errors import Conflict
from mizar_kube.kinds import POD, SHADOW_POD
from stateful.harness import Harness
from stateful.model import Model

PROFILE = {"devices": 2, "min": 0, "max": 2}


@pytest.fixture
def operator() -> Harness:
    model = Model()
    model.add_node("n1")
    model.add_pool(idleTimeoutSeconds=10)
    model.add_quota("team-a", [PROFILE])
    return Harness(model)


def count(operator: Harness, name: str) -> dict[str, float]:
    """The counter's series that are not 0, by reason."""
    families = operator.metrics.registry.collect()
    return {
        one.labels["reason"]: one.value
        for family in families
        for one in family.samples
        if one.name == f"mizar_shadow_pods_{name}_total" and one.value
    }


def test_created_for_demand_and_to_be_warm(operator: Harness) -> None:
    operator.model.add_quota("team-b", [{"devices": 2, "min": 1, "max": 2}])
    operator.model.add_share("team-a", "one", "team-a.mizar.share/gpu.2", 1)
    for _ in range(5):
        operator.round()
    assert count(operator, "created") == {"Demand": 1, "Warm": 1}


def test_a_creation_that_fails_is_not_counted(operator: Harness) -> None:
    def fail(write: Any) -> None:
        raise Conflict("changed")

    operator.model.api.before_write = fail
    operator.model.add_share("team-a", "one", "team-a.mizar.share/gpu.2", 1)
    operator.catch_up()
    assert operator.reconcile() is not None
    assert count(operator, "created") == {}
    read = operator.metrics.registry.get_sample_value
    labels = {"action": "CreateShadow", "result": "failed"}
    assert read("mizar_actions_total", labels) == 1


def served(operator: Harness) -> None:
    """A share pod has come and gone; its shadow pod is idle."""
    operator.model.add_share("team-a", "one", "team-a.mizar.share/gpu.2", 1)
    for _ in range(6):
        operator.round()
    share = operator.model.api.find(POD, "one", "team-a")
    assert share is not None
    operator.model.api.remove(share)


def test_reaped_when_it_is_gone_not_when_it_is_drained(operator: Harness) -> None:
    served(operator)
    counted = []
    for _ in range(40):
        there = any(operator.model.api.all(SHADOW_POD))
        counted.append((there, count(operator, "reaped")))
        operator.round()
    assert (True, {}) in counted
    assert counted[-1] == (False, {"Idle": 1})
    assert not [one for one in counted if one[0] and one[1]]
    assert count(operator, "lost") == {}


def test_a_lost_node_is_a_loss_and_no_reaping(operator: Harness) -> None:
    served(operator)
    operator.model.lose_node("n1")
    for _ in range(5):
        operator.round()
        operator.model.control()
    assert count(operator, "lost") == {"NodeGone": 1}
    assert count(operator, "reaped") == {}
