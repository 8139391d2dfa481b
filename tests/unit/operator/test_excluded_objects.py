"""An object that planning fails for is excluded: it does not stop the others, and no harm is done
to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from mizar_core.planning import Plan, Snapshot, plan
from mizar_core.planning.actions import CreateShadow
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, Object
from mizar_operator import manifests
from stateful.harness import KINDS, Harness
from stateful.model import Model
from stateful.two_tenants import (
    TENANTS,
    all_of_a_is_there,
    all_of_b_works,
    cluster,
    condition,
    ends,
    operator_in,
    resource,
    shadows,
    spoil,
    work,
)

Poisoned = Callable[[Snapshot], Any]


@pytest.fixture
def model() -> Model:
    return cluster()


@pytest.fixture
def operator(model: Model) -> Harness:
    return operator_in(model)


def _fails_for(operator: Harness, poisoned: Poisoned) -> None:
    """From now on planning fails for snapshots for which `poisoned` finds something."""

    def decide(snapshot: Snapshot, now: datetime) -> Plan:
        if poisoned(snapshot):
            raise ZeroDivisionError("by chance")
        return plan(snapshot, now)

    operator.reconciler._planner = decide


POISONED: dict[str, Poisoned] = {
    "Pod": lambda snapshot: [one for one in snapshot.shares if one.key == ("team-a", "first")],
    "ShadowPod": lambda snapshot: [
        one for one in snapshot.shadows if one.namespace == "team-a" and one.healthy
    ],
    "GPUQuota": lambda snapshot: [
        one for one in snapshot.quotas if one.metadata.namespace == "team-a"
    ],
    "Node": lambda snapshot: [one for one in snapshot.nodes if one.name == "n0" and one.cards],
}
LASTING = [kind for kind in POISONED if kind != "Pod"]
"""The kinds of objects that are there without a share pod."""


@pytest.mark.parametrize(
    ("kind", "idle"), [*((kind, False) for kind in POISONED), *((kind, True) for kind in LASTING)]
)
def test_what_planning_fails_for_is_left_out(
    kind: str, idle: bool, model: Model, operator: Harness
) -> None:
    if idle:
        ends(model, operator, "team-a")
    _fails_for(operator, POISONED[kind])
    work(model, operator)
    for name in TENANTS:
        assert len(shadows(model, name)) == 1
    if kind == "Node":
        spoil(model, model.api.find(NODE, "n0"), lambda one: one["spec"].update(unschedulable=True))
    all_of_b_works(model, operator)
    all_of_a_is_there(model)
    count = operator.metrics.planning_errors.labels(kind)._value.get()
    assert 1 <= count <= 3, "it is remembered for a while"


def test_several_at_once(model: Model, operator: Harness) -> None:
    _fails_for(operator, lambda snapshot: any(one(snapshot) for one in POISONED.values()))
    work(model, operator)
    all_of_a_is_there(model)
    all_of_b_works(model, operator)
    all_of_a_is_there(model)


def test_a_second_pool_goes_on(model: Model, operator: Harness) -> None:
    model._put("GPUPool", {"name": "other"}, {"profiles": [{"devices": 2, "cards": 1}]})
    model.add_quota("team-b", [{"devices": 2, "min": 0, "max": 2}], pool="other")
    model.add_share("team-b", "for-other", resource("team-b"), 2)

    def poisoned(snapshot: Snapshot) -> bool:
        return any(one.metadata.name == "pool" for one in snapshot.pools)

    _fails_for(operator, poisoned)
    work(model, operator)
    all_of_a_is_there(model)
    pools = [one["spec"]["pool"] for one in shadows(model, "team-b")]
    assert pools == ["pool", "other"]
    ready = condition(model.api.find(GPU_POOL, "pool"), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PlanningFailed")
    satisfied = condition(model.api.find(GPU_QUOTA, "quota", "team-b"), "Satisfied")
    assert satisfied["reason"] != "PlanningFailed"


def test_it_says_so(model: Model, operator: Harness) -> None:
    _fails_for(operator, POISONED["GPUQuota"])
    work(model, operator)
    told = condition(model.api.find(GPU_QUOTA, "quota", "team-a"), "Satisfied")
    assert (told["status"], told["reason"]) == ("False", "PlanningFailed")
    assert "ZeroDivisionError('by chance')" in told["message"]
    _fails_for(operator, POISONED["Pod"])
    model.tick(301)
    work(model, operator)
    events = [one for one in operator.events.told if one[1] == "PlanningFailed"]
    assert [one[0] for one in events] == ["Pod/first"]
    satisfied = condition(model.api.find(GPU_QUOTA, "quota", "team-a"), "Satisfied")
    assert satisfied["reason"] != "PlanningFailed"


def test_shadow_pods_about_which_a_plan_disagrees_are_counted(
    operator: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    unsettled = frozenset({("team-a", "x"), ("team-a", "y")})
    operator.reconciler._planner = lambda snapshot, now: replace(
        plan(snapshot, now), unsettled=unsettled
    )
    for _ in range(2):
        operator.reconcile()
    assert operator.metrics.planning_errors.labels("ShadowPod")._value.get() >= 4
    told = [one for one in caplog.messages if "the steps of the plan disagree" in one]
    assert len(told) == 1 and "team-a/x, team-a/y" in told[0], "plans may follow each other at once"


def test_where_leaving_out_does_not_help_it_fails(model: Model, operator: Harness) -> None:
    _fails_for(operator, lambda snapshot: True)
    with pytest.raises(ZeroDivisionError):
        operator.reconcile()


def test_an_action_that_fails_for_whatever_reason_holds_up_its_tenant_alone(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = manifests.shadow_pod

    def shadow_pod(action: CreateShadow) -> Object:
        if action.shadow[0] == "team-a":
            raise ZeroDivisionError("by chance")
        return real(action)

    monkeypatch.setattr(manifests, "shadow_pod", shadow_pod)
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 2}])
    for tenant in TENANTS:
        model.add_share(tenant, "second", resource(tenant), 2)
    operator.sync(KINDS)
    with pytest.raises(ZeroDivisionError):
        operator.reconcile()
    assert [len(shadows(model, tenant)) for tenant in TENANTS] == [1, 2]
    quota = model.api.find(GPU_QUOTA, "quota", "team-b")
    assert quota is not None
    assert quota["status"]["profiles"][0]["shadowPods"] == 2, "what comes later is done as well"
