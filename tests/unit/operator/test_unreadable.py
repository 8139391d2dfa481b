"""Objects that cannot be read do not count as gone: what depends on them is left as it is, and the
others are served."""

from __future__ import annotations

import pytest

from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, NODE, POD
from stateful.harness import KINDS, Harness
from stateful.model import Model
from stateful.two_tenants import (
    all_of_a_is_there,
    cluster,
    ends,
    first,
    operator_in,
    resource,
    shadows,
    spoil,
)


@pytest.fixture
def model() -> Model:
    return cluster()


@pytest.fixture
def operator(model: Model) -> Harness:
    return operator_in(model)


def _spoil_pool(model: Model) -> None:
    pool = model.api.find(GPU_POOL, "pool")
    spoil(model, pool, lambda one: one["spec"].update(tenancy="PerPlanet"))


def _spoil_quota(model: Model) -> None:
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    spoil(model, quota, lambda one: one["spec"].update(profiles="all"))


def _spoil_shadow(model: Model) -> None:
    (shadow,) = shadows(model, "team-a")
    spoil(model, shadow, lambda one: one["spec"].update(cards="some"))


def _spoil_holder(model: Model) -> None:
    (shadow,) = shadows(model, "team-a")
    pod = model.api.find(POD, shadow["metadata"]["name"], "team-a")
    spoil(model, pod, lambda one: one["metadata"].update(ownerReferences=[{}]))


def _spoil_node(model: Model) -> None:
    node = model.api.find(NODE, "n0")
    spoil(model, node, lambda one: one["spec"].update(taints=[{}]))


def _spoil_share(model: Model) -> None:
    pod = model.api.find(POD, "first", "team-a")
    spoil(model, pod, lambda one: one["status"].update(conditions=[{}], containerStatuses=[0]))


SPOILED = {
    "GPUPool": _spoil_pool,
    "GPUQuota": _spoil_quota,
    "ShadowPod": _spoil_shadow,
    "holder": _spoil_holder,
    "Node": _spoil_node,
    "share": _spoil_share,
}
LASTING = [kind for kind in SPOILED if kind != "share"]
"""The kinds of objects that are there without a share pod."""


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("kind", "idle"), [*((kind, False) for kind in SPOILED), *((kind, True) for kind in LASTING)]
)
def test_what_depends_on_an_object_that_cannot_be_read_is_left_as_it_is(
    kind: str, restarted: bool, idle: bool, model: Model, operator: Harness
) -> None:
    if idle:
        ends(model, operator, "team-a")
    SPOILED[kind](model)
    if restarted:
        operator.restart()
    for seconds in (0.5, 0.5, *range(1, 15)):
        operator.sync(KINDS)
        for key in sorted(operator.caches.keys()):
            operator.reconcile(key)
        model.tick(seconds)
    all_of_a_is_there(model)
    shown = {"holder": "Pod", "share": "Pod"}.get(kind, kind)
    assert operator.metrics.unreadable.labels(shown)._value.get() == 1


@pytest.mark.parametrize("kind", ["GPUQuota", "ShadowPod", "holder", "share"])
def test_others_go_on_beside_what_cannot_be_read(
    kind: str, model: Model, operator: Harness
) -> None:
    SPOILED[kind](model)
    model.api.start_delete(first(model, "team-b"))
    for _ in range(20):
        for node in model.nodes:
            model.kubelet(node)
            model.agent(node)
        operator.sync(KINDS)
        operator.reconcile()
        model.tick(10)
    assert shadows(model, "team-b") == []
    all_of_a_is_there(model)


def test_a_shadow_pod_that_cannot_be_read_counts_in_its_quota(
    model: Model, operator: Harness
) -> None:
    _spoil_shadow(model)
    model.add_share("team-a", "second", resource("team-a"), 2)
    operator.sync(KINDS)
    operator.reconcile()
    assert len(shadows(model, "team-a")) == 1


def test_a_pool_that_cannot_be_read_is_not_said_to_be_gone(model: Model, operator: Harness) -> None:
    """An event that says so asks the tenant to create the pod again."""
    _spoil_pool(model)
    model.add_share("team-a", "second", resource("team-a"), 1)
    model.tick(10)
    operator.sync(KINDS)
    for key in sorted(operator.caches.keys()):
        operator.reconcile(key)
    assert ("Pod/second", "NoPool") not in [one[:2] for one in operator.events.told]
