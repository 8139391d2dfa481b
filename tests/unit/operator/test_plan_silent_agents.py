"""Node agents that do not answer: other nodes serve the share pods, and what was never offered
gives back its cards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from mizar_core.names import EventReason, ReapReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CancelDrain, CreateShadow, DeleteShadow, Drain, EmitEvent
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import PodView, ShadowView
from mizar_kube.kinds import POD, SHADOW_POD
from property.plan.snapshots import NOW, at, node, quota, ready, shadow, waiting
from stateful.harness import KINDS, Harness
from stateful.model import Model
from support.planned import actions, satisfied, small, status
from support.projection import apply_plan

TWO = (node("n1"), node("n2"))
EAST, WEST = (Needs(selector=frozenset({("zone", zone)})) for zone in ("east", "west"))
ON_N2 = PodView("uid-other", "Running", "n2", at(60))


def _silent(bound: float = 60, asked: float | None = None, **fields: Any) -> ShadowView:
    """Bound to n1 that many seconds ago, and no node agent has reported on it."""
    drain_asked = None if asked is None else at(asked)
    pod = PodView("uid-pod", "Running", "n1", at(bound), drain_asked=drain_asked)
    return shadow(**{"pod": pod, **fields})


def _given(**parts: Any) -> Snapshot:
    return small(**{"nodes": TWO, "shadows": (_silent(),), "shares": (waiting("p"),), **parts})


def test_another_is_made_on_another_node() -> None:
    (made,) = actions(CreateShadow, _given())
    assert made.needs.excluded_nodes == {"n1"}
    (drained,) = actions(Drain, _given())
    assert drained.reason is ReapReason.AGENT_SILENT
    assert satisfied(_given()).reason == "NodeAgentSilent"
    assert status(_given()).pipelining == made.devices


def test_it_is_given_a_minute() -> None:
    early = _given(shadows=(_silent(59),))
    assert not actions(CreateShadow, early) and not actions(Drain, early)
    assert plan(early, NOW).due == NOW + timedelta(seconds=1)


def test_it_stays_where_there_is_no_other_node() -> None:
    """To make it anew on the same node would help nobody."""
    alone = _given(nodes=TWO[:1])
    cordoned = _given(nodes=(TWO[0], node("n2", available=False)))
    for_east = PodView("uid-pod", "Running", "n1", at(60), needs=EAST)
    wrong_zone = _given(nodes=(TWO[0], node("n2", "west")), shadows=(_silent(pod=for_east),))
    both_silent = _given(shadows=(_silent(), _silent(name="shadow-2-other", pod=ON_N2)))
    for snapshot in (alone, cordoned, wrong_zone, both_silent):
        assert not actions(Drain, snapshot) and not actions(CreateShadow, snapshot)
        assert satisfied(snapshot).reason == "NodeAgentSilent"


def test_it_stays_where_no_other_node_has_a_free_card() -> None:
    """An autoscaler would add one node after another, each with an agent that takes as long."""
    users = (waiting("p"), waiting("q", 2, node="n2"))
    full = {"holders": (("team-a", "q"),) * 2, "idle_since": None, "in_use": True}
    one_card = (node("n1", cards=1), node("n2", cards=1))
    held = _given(
        nodes=one_card,
        shadows=(_silent(), ready("shadow-2-other", pod=ON_N2, **full)),
        shares=users,
    )
    whole = _given(nodes=one_card, taken={("nvidia.com/gpu", "n2"): 1})
    for snapshot in (held, whole):
        assert not actions(Drain, snapshot) and not actions(CreateShadow, snapshot)
    assert actions(CreateShadow, _given(nodes=one_card))


def test_what_is_kept_warm_is_made_elsewhere_too() -> None:
    warm = quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}])
    (made,) = actions(CreateShadow, _given(quotas=(warm,), shares=()))
    assert made.needs.excluded_nodes == {"n1"}


def test_no_other_tenants_shadow_pod_goes_there() -> None:
    theirs = _silent(namespace="team-b", quota_uid="uid-team-b-quota")
    (made,) = actions(
        CreateShadow, _given(shadows=(theirs,), quotas=(quota("team-a"), quota("team-b")))
    )
    assert made.shadow[0] == "team-a" and made.needs.excluded_nodes == {"n1"}


def test_a_node_is_avoided_for_a_while_where_there_are_others() -> None:
    recently = {"n1": at(30)}
    (made,) = actions(CreateShadow, _given(shadows=(), silent_nodes=recently))
    assert made.needs.excluded_nodes == {"n1"}
    only = _given(shadows=(), silent_nodes=recently, nodes=TWO[:1])
    assert not actions(CreateShadow, only)[0].needs.excluded_nodes
    full = {"holders": (("team-a", "q"),) * 2, "idle_since": None, "in_use": True}
    users = (waiting("p"), waiting("q", 2, node="n1"))
    for heard, avoided in ((10, set[str]()), (40, {"n1"})):
        beside = ready("shadow-2-other", heard_at=at(heard), **full)
        (made,) = actions(
            CreateShadow, _given(shadows=(beside,), silent_nodes=recently, shares=users)
        )
        assert made.needs.excluded_nodes == avoided


def test_it_goes_once_its_drain_is_not_answered() -> None:
    fresh, old = _given(shadows=(_silent(90, 59),)), _given(shadows=(_silent(90, 60),))
    assert not actions(DeleteShadow, fresh)
    assert plan(fresh, NOW).due == NOW + timedelta(seconds=1)
    assert [one.shadow for one in actions(DeleteShadow, old)] == [_silent().key]
    assert not actions(CancelDrain, fresh) and not actions(CancelDrain, old)


def test_what_an_agent_has_reported_on_stays() -> None:
    """A container may hold its devices."""
    for known in ({"node": "n1"}, {"heard_at": at(90)}, {"node": "n1", "idle_since": at(80)}):
        reported = _given(shadows=(_silent(100, 70, **known),))
        assert not actions(DeleteShadow, reported)
    carved = _given(shadows=(_silent(100, node="n1", idle_since=at(80), heard_at=at(80)),))
    assert not actions(Drain, carved), "its agent will offer the devices when it is back"
    assert actions(CreateShadow, carved)
    full = replace(carved, quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),))
    (event,) = (one for one in actions(EmitEvent, full) if one.kind == "Pod")
    assert (
        "allows 1 shadow pod of profile 2; shadow pod shadow-2-aaaaa is on node n1" in event.message
    )


def test_what_an_agent_cannot_offer_goes_once_it_is_drained() -> None:
    """As where NVIDIA's plugin gives a card to several pods: it would be silent again."""
    answered = _silent(100, 30, node="n1", heard_at=at(20), draining=True, drained=True)
    one = quota("team-a", profiles=[{"devices": 2, "max": 1}])
    snapshot = _given(quotas=(one,), shadows=(answered,))
    assert not actions(CancelDrain, snapshot) and actions(DeleteShadow, snapshot)
    carved = replace(answered, idle_since=at(25))
    assert actions(CancelDrain, replace(snapshot, shadows=(carved,)))


def test_a_drain_that_no_agent_answers_is_told() -> None:
    pod = PodView("uid-pod", "Running", "n1", at(900), drain_asked=at(60))
    for silent in (ready(pod=pod), ready(pod=pod, ready=False, draining=True, heard_at=at(700))):
        asked = 60 if silent.ready else 600
        one = replace(silent, pod=replace(pod, drain_asked=at(asked)))
        snapshot = _given(
            quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),),
            nodes=(node("n1"), node("n2", "west")),
            shadows=(one,),
            shares=(waiting("p", needs=WEST),),
        )
        told = {event.kind: event for event in actions(EmitEvent, snapshot)}
        for kind in ("ShadowPod", "Pod"):
            assert told[kind].reason is EventReason.NODE_AGENT_SILENT
            assert "does not confirm" in told[kind].message
        assert satisfied(snapshot).reason == "NodeAgentSilent"
        early = replace(one, pod=replace(pod, drain_asked=at(asked - 1)))
        reasons = {
            event.reason for event in actions(EmitEvent, replace(snapshot, shadows=(early,)))
        }
        assert EventReason.NODE_AGENT_SILENT not in reasons


def test_a_drain_that_waits_for_a_pod_to_start_is_not_silence() -> None:
    pod = PodView("uid-pod", "Running", "n1", at(900), drain_asked=at(700))
    slow = ready(pod=pod, ready=False, draining=True, heard_at=at(700))
    snapshot = _given(shadows=(slow,), shares=(waiting("p", node="n1"),))
    assert EventReason.NODE_AGENT_SILENT not in {one.reason for one in actions(EmitEvent, snapshot)}


def test_planning_it_again_plans_nothing() -> None:
    for one in (_silent(), _silent(90, 30), _silent(90, 60)):
        first = plan(_given(shadows=(one,)), NOW)
        assert not plan(apply_plan(_given(shadows=(one,)), first), NOW).actions


# The whole of it, with the operator.


def _somebody_waits() -> Harness:
    model = Model()
    for name in ("n1", "n2"):
        model.add_node(name)
    model.add_pool()
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}])
    model.add_share("team-a", "p", "team-a.mizar.share/gpu.2", 1)
    return Harness(model)


def _let_work(operator: Harness, agents: tuple[str, ...], seconds: int) -> None:
    """The node agents of these nodes work, and all others."""
    model = operator.model
    for _ in range(seconds // 5):
        model.control()
        model.schedule()
        for name in ("n1", "n2"):
            model.kubelet(name)
        for name in agents:
            model.agent(name)
        operator.sync(KINDS)
        operator.reconcile()
        model.tick(5)


def _node_of(operator: Harness, pod: str) -> str | None:
    found = operator.model.api.find(POD, pod, "team-a")
    return found and found["spec"].get("nodeName")


def test_a_pod_runs_on_another_node_though_its_quota_allows_one_shadow_pod() -> None:
    operator = _somebody_waits()
    _let_work(operator, ("n2",), 180)
    assert _node_of(operator, "p") == "n2"
    assert len(list(operator.model.api.all(SHADOW_POD))) == 1


def test_an_agent_that_comes_late_serves_who_still_waits() -> None:
    """Its devices were asked back, and had not been given back yet."""
    operator = _somebody_waits()
    _let_work(operator, (), 75)
    _let_work(operator, ("n1", "n2"), 60)
    assert _node_of(operator, "p") is not None
    assert len(list(operator.model.api.all(SHADOW_POD))) == 1


def test_a_node_that_was_heard_is_not_avoided_once_the_shadow_pod_there_is_gone() -> None:
    operator = _somebody_waits()
    api = operator.model.api
    _let_work(operator, (), 75)
    _let_work(operator, ("n1", "n2"), 60)
    heard = _node_of(operator, "p")
    api.remove(api.find(POD, "p", "team-a"))
    for kind in (POD, SHADOW_POD):
        for one in list(api.all(kind)):
            api.remove(one)
    _let_work(operator, ("n1", "n2"), 5)
    operator.model.add_share("team-a", "q", "team-a.mizar.share/gpu.2", 1)
    operator.model.schedule()
    for _ in range(5):
        operator.sync(KINDS)
        operator.reconcile()
    (made,) = [one for one in api.all(POD) if one["metadata"]["name"] != "q"]
    assert heard is not None and heard not in str(made["spec"].get("affinity"))


def test_devices_that_their_node_no_longer_offers_are_named() -> None:
    """An agent that ended, for example because the DaemonSet leaves its node out since an upgrade,
    no longer says that its shadow pod is not ready. To the scheduler, the node has none of them."""
    resource = "team-a.mizar.share/gpu.2"
    lacks = {"unschedulable": f"2 Insufficient {resource}", "unschedulable_since": at(60)}
    share = waiting("p", lacks_devices=True, **lacks)
    free = {(resource, "n1"): (at(20), at(20))}
    full = quota("team-a", profiles=[{"devices": 2, "max": 1}])
    held = ready(holders=(("team-a", "ended"),), idle_since=None, in_use=True, heard_at=at(300))
    one = _given(quotas=(full,), shadows=(held,), shares=(share,), free_since=free)
    said = satisfied(one)
    assert said.reason == "NodeAgentSilent"
    assert (
        "shadow pod shadow-2-aaaaa is ready, but node n1 does not offer its devices: check that"
        " mizar-nodeagent runs there (on other nodes: " in said.message
    )
    (event,) = actions(EmitEvent, one)
    assert event.reason is EventReason.NODE_AGENT_SILENT
    for other in (replace(share, lacks_devices=False), share):
        offers = {resource: 2} if other is share else {}
        offered = replace(one, nodes=(replace(TWO[0], devices=offers), TWO[1]), shares=(other,))
        assert satisfied(offered).reason != "NodeAgentSilent"
