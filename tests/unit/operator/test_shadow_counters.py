"""Shadow pods are counted as created, reaped and lost when it is done, with the reason."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mizar_kube.errors import Conflict
from mizar_kube.kinds import POD, SHADOW_POD
from mizar_operator.caches import NO_POOL
from mizar_operator.reconcile_state import NODE_GONE_AFTER_S
from stateful.harness import Harness
from stateful.model import Model

PROFILE = {"devices": 2, "min": 0, "max": 2}


@pytest.fixture
def operator() -> Harness:
    return made(idle_timeout=10)


def made(idle_timeout: int) -> Harness:
    model = Model()
    model.add_node("n1")
    model.add_pool(idleTimeoutSeconds=idle_timeout)
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


def in_use(operator: Harness) -> None:
    """A share pod uses a device of its shadow pod."""
    operator.model.add_share("team-a", "one", "team-a.mizar.share/gpu.2", 1)
    for _ in range(6):
        operator.round()


def served(operator: Harness) -> None:
    """A share pod has come and gone; its shadow pod is idle."""
    in_use(operator)
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
    in_use(operator)
    operator.model.lose_node("n1")
    for _ in range(65):
        operator.round()
        operator.model.control()
    assert count(operator, "lost") == {"NodeGone": 1}
    assert count(operator, "reaped") == {}


def test_one_that_nobody_uses_is_no_loss() -> None:
    """It is lost whenever its node is drained."""
    operator = made(idle_timeout=3600)
    served(operator)
    operator.round()
    operator.model.lose_node("n1")
    for _ in range(65):
        operator.round()
        operator.model.control()
    assert count(operator, "lost") == {}
    assert count(operator, "reaped") == {"Other": 1}


def test_when_shadow_pods_were_lost(operator: Harness) -> None:
    """A new operator finds the loss in its first plan: its counter begins with 1."""
    in_use(operator)
    operator.model.lose_node("n1")
    operator.restart()
    began = time.time()
    operator.round(NODE_GONE_AFTER_S)
    operator.round()
    labels = {"pool": "pool", "reason": "NodeGone"}
    read = operator.metrics.registry.get_sample_value
    assert read("mizar_shadow_pods_lost_total", labels) == 1
    at = read("mizar_shadow_pods_last_lost_timestamp_seconds", labels)
    assert at is not None and began <= at <= time.time()
    assert (
        read("mizar_shadow_pods_last_lost_timestamp_seconds", labels | {"reason": "CardLost"}) == 0
    )


def series_of(operator: Harness, pool: str) -> set[str]:
    """The counters that have series of the pool."""
    names = {f"mizar_shadow_pods_{name}_total" for name in ("created", "reaped", "lost")}
    samples = (one for family in operator.metrics.registry.collect() for one in family.samples)
    return {one.name for one in samples if one.name in names and one.labels["pool"] == pool}


def test_the_series_of_a_pool_go_with_its_last_shadow_pod(operator: Harness) -> None:
    served(operator)
    assert len(series_of(operator, "pool")) == 3
    operator.model.api.remove(operator.model.pools()[0])
    seen = []
    for _ in range(20):
        operator.round()
        operator.reconcile(NO_POOL)
        left = any(operator.model.api.all(SHADOW_POD))
        seen.append((left, count(operator, "reaped"), len(series_of(operator, "pool"))))
    assert (True, {}, 3) in seen
    assert seen[-1] == (False, {}, 0)


def test_the_series_of_a_pool_that_another_key_plans_now_stay(operator: Harness) -> None:
    operator.round()
    snapshot = operator.snapshot()
    operator.metrics.shadow_counters.planned("other.share", snapshot)
    operator.metrics.shadow_counters.planned("mizar.share", replace(snapshot, pools=()))
    assert len(series_of(operator, "pool")) == 3
    operator.metrics.shadow_counters.planned("other.share", replace(snapshot, pools=()))
    assert not series_of(operator, "pool")
