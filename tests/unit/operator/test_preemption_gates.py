"""The operator opens the gates of share pods that may preempt others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mizar_core.names import PREEMPTION_GATE
from mizar_kube.errors import Invalid, Unavailable
from mizar_kube.kinds import NODE, POD, SHADOW_POD, Object
from stateful.harness import KINDS, Harness
from stateful.memory_api import Write
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


@pytest.fixture
def operator() -> Harness:
    return Harness(small_model())


def _urgent(operator: Harness, name: str = "urgent", count: int = 2) -> Object:
    operator.model.add_share("team-a", name, GPU, count, priority=100)
    operator.sync([POD])
    return _pod(operator, name)


def _parts(operator: Harness) -> tuple[Callable[[], None], ...]:
    """What the other parts of the cluster do, one after the other."""
    model = operator.model
    return model.schedule, lambda: model.kubelet("n1"), lambda: model.agent("n1")


def _pod(operator: Harness, name: str, namespace: str = "team-a") -> Object:
    found = operator.model.api.find(POD, name, namespace)
    assert found is not None
    return found


def _is_gated(operator: Harness, name: str = "urgent") -> bool:
    return "schedulingGates" in _pod(operator, name)["spec"]


def _devices(operator: Harness) -> int:
    node = operator.model.api.find(NODE, "n1")
    assert node is not None
    return int(node["status"]["allocatable"].get(GPU, 0))


def test_the_gate_opens_when_the_devices_are_there(operator: Harness) -> None:
    """The scheduler would preempt at once if it saw the pod before the devices."""
    _urgent(operator)
    waits = 0
    for part in 2 * _parts(operator):
        operator.sync(KINDS)
        operator.reconcile()
        assert _is_gated(operator) == (_devices(operator) == 0)
        waits += _is_gated(operator)
        part()
    assert waits == 3, "until its shadow pod has a node, a card, and devices"
    operator.round()
    assert _pod(operator, "urgent")["spec"]["nodeName"] == "n1"


def test_the_gate_stays_closed_while_another_tenants_idle_card_is_freed(operator: Harness) -> None:
    """Until the scheduler has given the card to the pod's own shadow pod."""
    model, parts = operator.model, _parts(operator)
    model.add_quota("team-b", [{"devices": 2, "min": 0, "max": 2}])
    for name in ("one", "two"):
        model.add_share("team-b", name, GPU.replace("team-a", "team-b"), 2)
    for _ in range(6):
        operator.round()
    for name in ("one", "two"):
        model.api.start_delete(_pod(operator, name, "team-b"))
    for _ in range(3):
        operator.round()
    _urgent(operator)
    for number in range(40):
        operator.sync(KINDS)
        operator.reconcile()
        if not _is_gated(operator):
            break
        parts[number % len(parts)]()
        model.tick(1)
    assert _devices(operator) == 2
    operator.round()
    assert _pod(operator, "urgent")["spec"]["nodeName"] == "n1"


def test_a_gate_that_cannot_be_opened_is_tried_again_ever_later(operator: Harness) -> None:
    """Its minute does not begin anew."""
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    operator.sync(KINDS)
    _urgent(operator)
    tried: list[Write] = []

    def refuse(write: Write) -> None:
        if write[0] == "patch" and write[1].kind == POD:
            tried.append(write)
            raise Unavailable("not now")

    operator.model.api.before_write = refuse
    for _ in range(60):
        operator.reconcile()
        operator.model.tick(1)
    assert 4 <= len(tried) <= 8
    operator.model.api.before_write = lambda write: None
    operator.model.tick(31)
    operator.reconcile()
    assert not _is_gated(operator)


def test_where_the_quota_is_exhausted_it_opens_at_once(operator: Harness) -> None:
    for name in ("one", "two"):
        operator.model.add_share("team-a", name, GPU, 2)
    for _ in range(6):
        operator.round()
    _urgent(operator)
    operator.reconcile()
    assert not _is_gated(operator)
    assert len(list(operator.model.api.all(SHADOW_POD))) == 2


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda pod: pod["metadata"].update(uid="another"),
        lambda pod: pod["spec"]["schedulingGates"].append({"name": "example.com/mine"}),
        lambda pod: pod["spec"].pop("schedulingGates"),
    ],
    ids=["as it was", "another pod", "another gate", "no gate"],
)
def test_a_pod_that_has_changed_stays_as_it_is(operator: Harness, change: Any) -> None:
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    operator.sync(KINDS)
    pod = _urgent(operator)
    if change is not None:
        change(pod)
    gates = list(pod["spec"].get("schedulingGates") or ())
    assert operator.reconcile() is None
    left = _pod(operator, "urgent")["spec"].get("schedulingGates") or []
    assert left == ([] if change is None else gates)


def test_a_gate_is_opened_once(operator: Harness) -> None:
    """Also before the watch reports that it is open."""
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    operator.sync(KINDS)
    _urgent(operator)
    operator.reconcile()
    assert [one.gated for one in operator.snapshot().shares] == [False]


def test_a_refusal_of_another_webhook_is_an_error(
    operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code may be that of a pod that has changed."""
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    operator.sync(KINDS)
    _urgent(operator)

    async def refuse(*_: Any, **__: Any) -> None:
        raise Invalid("a webhook refuses it")

    monkeypatch.setattr(operator.model.api, "patch_json", refuse)
    assert isinstance(operator.reconcile(), Invalid)


def test_a_pod_that_is_gone_when_its_gate_is_to_be_opened_is_no_error(
    operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone only when the operator looks why it could not be changed."""
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    operator.sync(KINDS)
    pod = _urgent(operator)

    async def refuse(*_: Any, **__: Any) -> None:
        operator.model.api.remove(pod)
        raise Invalid("its gates have changed")

    monkeypatch.setattr(operator.model.api, "patch_json", refuse)
    assert operator.reconcile() is None


def test_the_minute_begins_when_the_operator_sees_the_gate_alone(operator: Harness) -> None:
    pod = _urgent(operator)
    pod["spec"]["schedulingGates"].append({"name": "example.com/mine"})
    operator.sync(KINDS)
    operator.reconcile()
    operator.model.tick(3600)
    pod["spec"]["schedulingGates"].pop()
    for seconds in (30, 29, 1):
        operator.sync(KINDS)
        operator.reconcile()
        assert _is_gated(operator), "its shadow pod has no node yet"
        operator.model.tick(seconds)
    operator.reconcile()
    assert not _is_gated(operator)


def test_a_gate_of_another_program_stays(operator: Harness) -> None:
    operator.model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    pod = _urgent(operator)
    pod["spec"]["schedulingGates"].append({"name": "example.com/mine"})
    operator.round()
    names = [one["name"] for one in _pod(operator, "urgent")["spec"]["schedulingGates"]]
    assert names == [PREEMPTION_GATE, "example.com/mine"]
