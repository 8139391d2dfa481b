"""Shadow pods that are being deleted on nodes that do not answer: after their time to end they do
not count against their quota."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mizar_core.condition import Condition, find_condition
from mizar_core.names import EventReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateShadow, EmitEvent
from mizar_core.planning.snapshot import PodView, ShadowView
from mizar_kube.kinds import NODE, POD, SHADOW_POD
from property.plan.snapshots import NOW, at, node, quota, ready, waiting
from stateful.harness import KINDS, Harness
from stateful.model import Model
from support.planned import actions, small, status

DEAD = node("n1", available=False)
ONE = (quota("team-a", profiles=[{"devices": 2, "max": 1}]),)
USER = ("team-a", "web-0")


def _stranded(overdue: float = 0, name: str = "shadow-2-aaaaa", **fields: Any) -> ShadowView:
    """A used one on n1, which should have ended at least that many seconds ago."""
    pod = PodView("uid-pod", "Running", "n1", at(900), deleting=True, overdue_at=at(overdue))
    made = ready(name, holders=(USER,), in_use=True, idle_since=None, phase="Lost", pod=pod)
    return replace(made, **fields)


def _given(**parts: Any) -> Snapshot:
    given: dict[str, Any] = {
        "quotas": ONE,
        "nodes": (DEAD, node("n2")),
        "shadows": (_stranded(),),
        "shares": (waiting("p"),),
    }
    return small(**{**given, **parts})


def _exhausted(snapshot: Snapshot) -> Condition:
    found = find_condition(status(snapshot).conditions, "Exhausted")
    assert found is not None
    return found


def test_it_does_not_keep_its_tenant_from_another() -> None:
    assert actions(CreateShadow, _given())
    ceiling = quota("team-a", profiles=[{"devices": 2, "max": 4}], maxCards=1)
    assert actions(CreateShadow, _given(quotas=(ceiling,)))
    assert status(_given(shares=())).cards == 0
    assert _exhausted(_given(shares=())).reason == "WithinLimits"


def test_it_counts_until_its_time_to_end_is_over_and_that_is_told() -> None:
    snapshot = _given(shadows=(_stranded(-1),))
    assert not actions(CreateShadow, snapshot)
    assert plan(snapshot, NOW).due == at(-1)
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.about[1] == "p")
    assert event.reason is EventReason.QUOTA_EXCEEDED
    assert "its grace period is over: its node n1 does not" in event.message


def test_it_counts_where_the_node_answers() -> None:
    snapshot = _given(nodes=(node("n1"), node("n2")))
    assert not actions(CreateShadow, snapshot)
    untold = _stranded(node=None)
    assert not actions(CreateShadow, replace(snapshot, shadows=(untold,))), "its agent is silent"
    unbound = _stranded(node=None, pod=PodView("uid-pod", deleting=True, overdue_at=at(0)))
    assert not actions(CreateShadow, replace(snapshot, shadows=(unbound,))), "it has no node"
    alive = PodView("uid-pod", "Running", "n1", at(900))
    assert not actions(CreateShadow, _given(shadows=(replace(_stranded(), pod=alive),)))


def test_when_the_node_is_back_the_tenant_is_over_its_quota() -> None:
    """As after a lowered quota: nothing more is made, and those in use stay."""
    user = waiting("other", node="n2")
    other = ready("shadow-2-other", "n2", holders=(user.key,), in_use=True, idle_since=None)
    snapshot = _given(nodes=(node("n1"), node("n2")), shadows=(_stranded(), other), shares=(user,))
    assert _exhausted(snapshot).reason == "Overdrawn"
    away = replace(snapshot, nodes=(DEAD, node("n2")))
    assert _exhausted(away).reason == "WithinLimits"


def test_a_replica_runs_elsewhere_though_the_node_is_still_there() -> None:
    model = Model()
    for name in ("n1", "n2"):
        model.add_node(name)
    model.add_pool()
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}])
    model.add_share("team-a", "web-0", "team-a.mizar.share/gpu.2", 1)
    operator = Harness(model)
    for _ in range(5):
        operator.round()
    _dies(model, "n1")
    model.add_share("team-a", "web-1", "team-a.mizar.share/gpu.2", 1)
    places = []
    for _ in range(20):
        model.schedule()
        model.kubelet("n2")
        model.agent("n2")
        operator.sync(KINDS)
        operator.reconcile()
        model.tick(6)
        found = model.api.find(POD, "web-1", "team-a")
        places.append(found and found["spec"].get("nodeName"))
    assert places[10] is None and places[-1] == "n2"


def _dies(model: Model, name: str) -> None:
    """Its kubelet does not answer any more, and Kubernetes evicts its pods."""
    obj = model.api.find(NODE, name)
    assert obj is not None
    obj["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    obj["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    model.api.touch(obj)
    for pod in list(model.pods_on(name)):
        model.api.start_delete(pod)
        pod["metadata"]["deletionGracePeriodSeconds"] = 60
    (shadow,) = model.api.all(SHADOW_POD)
    model.lost.add((shadow["metadata"]["namespace"], shadow["metadata"]["name"]))
