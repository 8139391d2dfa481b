"""Idle shadow pods are preempted, before their idle timeout, by pods that wait for cards."""

from dataclasses import replace
from typing import Any

from mizar_core.names import EventReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import Drain, EmitEvent
from mizar_core.planning.node_fit import Needs, Taint
from mizar_core.planning.preempt_idle import JUDGED_MOST
from mizar_core.planning.snapshot import CardsOnNode, PendingView, PodView
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from support.planned import actions, small, status

CARDS = "nvidia.com/gpu"
NO_CARDS = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
WEST = Needs(selector=frozenset({("zone", "west")}))


def _pending(name: str = "whole", cards: int = 1, **fields: Any) -> PendingView:
    made = PendingView("team-z", name, f"uid-{name}", at(3), ((CARDS, cards),))
    return replace(made, **fields)


def _idle(count: int = 2, **parts: Any) -> Snapshot:
    """This many idle shadow pods on a node; the last one has been idle for the longest."""
    shadows = tuple(ready(f"shadow-2-{i}", sequence=i, idle_since=at(10 + i)) for i in range(count))
    return small(**{"shadows": shadows, "pending": (_pending(),), **parts})


def _drained(snapshot: Snapshot) -> list[str]:
    return [one.shadow[1] for one in actions(Drain, snapshot)]


def test_nothing_gives_way_to_nobody() -> None:
    assert _drained(_idle(pending=())) == []


def test_the_longest_idle_gives_way_to_a_pod_that_asks_for_a_whole_card() -> None:
    snapshot = _idle()
    assert _drained(snapshot) == ["shadow-2-1"]
    (event,) = [one for one in actions(EmitEvent, snapshot) if one.kind == "ShadowPod"]
    assert event.reason is EventReason.SHADOW_DRAINING
    assert "waits for them" in event.message
    assert [one.about for one in plan(snapshot, NOW).attempts] == ["uid-whole"]


def test_once_for_each_who_waits() -> None:
    """Until the card is free the pod still waits; a second shadow pod would be given up for
    nothing."""
    assert _drained(_idle(attempted=frozenset({"room/uid-whole"}))) == []
    two = (_pending(), _pending("other"))
    assert len(_drained(_idle(3, pending=two))) == 2
    assert len(_drained(_idle(3, pending=two, attempted=frozenset({"room/uid-whole"})))) == 1


def test_what_is_held_or_waited_for_stays() -> None:
    held = (ready(holders=(("team-a", "p"),), idle_since=None),)
    assert _drained(_idle(shadows=held)) == []
    assert _drained(_idle(shares=(waiting("p", 2), waiting("q", 2)))) == []
    two = (_pending(), _pending("other"))
    assert len(_drained(_idle(shares=(waiting("p", 2),), pending=two))) == 1


def test_the_minimum_stays_warm() -> None:
    quotas = (quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 4}]),)
    assert len(_drained(_idle(quotas=quotas, pending=(_pending(), _pending("other"))))) == 1


def test_only_where_it_helps() -> None:
    assert _drained(_idle(pending=(_pending(needs=WEST),))) == []
    assert _drained(_idle(nodes=(node("n1", available=False),))) == []
    tainted = replace(node("n1"), taints=frozenset({Taint("team", "a", "NoSchedule")}))
    assert _drained(_idle(nodes=(tainted,))) == []
    assert _drained(_idle(pending=(replace(_pending(), cards=(("amd.com/gpu", 1),)),))) == []


def test_several_cards_come_from_one_node_or_not_at_all() -> None:
    shadows = (ready("shadow-2-a"), ready("shadow-2-b", "n2"), ready("shadow-2-c", "n2"))
    nodes = (node("n1"), node("n2"))
    wide = (_pending(cards=2),)
    assert set(_drained(_idle(shadows=shadows, nodes=nodes, pending=wide))) == {
        "shadow-2-b",
        "shadow-2-c",
    }
    assert _drained(_idle(shadows=shadows[:2], nodes=nodes, pending=wide)) == []


def test_cards_that_are_free_beside_it_count_where_somebody_looked() -> None:
    """Four cards: one idle shadow pod's, two of others, one free."""
    wide = (_pending(cards=2),)
    assert _drained(_idle(1, pending=wide, taken={(CARDS, "n1"): 2})) == ["shadow-2-0"]
    assert _drained(_idle(1, pending=wide, taken={(CARDS, "n1"): 3})) == []
    three = (_pending(cards=3),)
    assert len(_drained(_idle(2, pending=three, taken={(CARDS, "n1"): 0}))) == 1


def test_it_gives_way_to_another_tenants_shadow_pod_that_somebody_waits_for() -> None:
    stuck = shadow(
        "shadow-2-z", namespace="team-b", pod=PodView(unschedulable=NO_CARDS), uid="uid-stuck"
    )
    asks = waiting("b", resource="team-b.mizar.share/gpu.2", namespace="team-b")
    snapshot = _idle(
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 4}]), quota("team-b")),
        pending=(),
        shadows=(ready(), stuck),
        shares=(asks,),
    )
    assert _drained(snapshot) == ["shadow-2-aaaaa"]
    full = replace(stuck, pod=PodView(unschedulable="0/2 nodes: 2 Insufficient memory."))
    assert _drained(replace(snapshot, shadows=(ready(), full))) == [], "cards would not help"
    assert _drained(replace(snapshot, shares=())) == [], "nobody needs it"
    held = replace(stuck, node="n2", holders=(("team-b", "user"),), in_use=True)
    assert _drained(replace(snapshot, shadows=(ready(), held))) == [], "it has its cards"


def test_a_shadow_pod_of_a_pool_that_is_planned_elsewhere_is_a_pod_like_others() -> None:
    assert _drained(_idle(pending=(_pending(pool="elsewhere"),)))
    assert not _drained(_idle(pending=(_pending(pool="pool"),))), "its own plan speaks for it"


def test_another_resource_for_whole_cards() -> None:
    pools = (pool(physicalResource="amd.com/gpu"),)
    assert _drained(_idle(pools=pools)) == []


UNKNOWN = _pending(reason_unknown=True)
"""A pod whose scheduler does not say what it lacks."""
FULL = {(CARDS, "n1"): 2}
"""Of the node's four cards, other pods have those that the two idle shadow pods do not hold."""


def test_a_pod_that_waits_for_an_unknown_reason_is_taken_to_lack_a_card_if_none_is_free() -> None:
    snapshot = _idle(pending=(UNKNOWN,), taken=FULL)
    assert _drained(snapshot) == ["shadow-2-1"]
    assert [one.about for one in plan(snapshot, NOW).attempts] == ["uid-whole"]


def test_a_pod_that_could_have_a_free_card_preempts_no_shadow_pod() -> None:
    assert _drained(_idle(pending=(UNKNOWN,), taken={(CARDS, "n1"): 1})) == []
    nodes, needs = (node("n1"), node("n2")), Needs(excluded_nodes=frozenset({"n2"}))
    taken = {**FULL, (CARDS, "n2"): 3}
    assert _drained(_idle(pending=(UNKNOWN,), nodes=nodes, taken=taken)) == []
    elsewhere = replace(UNKNOWN, needs=needs)
    assert _drained(_idle(pending=(elsewhere,), nodes=nodes, taken=taken)) == ["shadow-2-1"]


def test_shadow_pods_of_other_cards_do_not_hold_a_free_card() -> None:
    """A node may offer whole cards and MIG devices."""
    small_ones = "nvidia.com/mig-1g.10gb"
    cards = {CARDS: CardsOnNode(4, 4), small_ones: CardsOnNode(7, 7)}
    pools = (pool(), pool("mig", physicalResource=small_ones, tenancy="Shared"))
    others = tuple(
        replace(ready(f"shadow-7-{i}", sequence=i), pool="mig", idle_since=None) for i in range(3)
    )
    idle = ready("shadow-2-0", idle_since=at(10))
    snapshot = small(
        pools=pools,
        nodes=(replace(node("n1"), cards=cards),),
        shadows=(idle, *others),
        pending=(UNKNOWN,),
        taken={(CARDS, "n1"): 2},
    )
    assert _drained(snapshot) == []


def test_a_shadow_pod_of_a_pool_that_is_gone_may_hold_any_card() -> None:
    others = tuple(
        replace(ready(f"shadow-2-other-{i}", holders=(("team-a", f"p{i}"),)), pool="gone")
        for i in range(3)
    )
    idle = ready("shadow-2-0", idle_since=at(10))
    snapshot = small(shadows=(idle, *others), pending=(UNKNOWN,), taken={(CARDS, "n1"): 0})
    assert _drained(snapshot) == ["shadow-2-0"]
    assert _drained(replace(snapshot, shadows=(idle, *others[:2]))) == []


def test_only_so_many_kinds_of_pods_are_judged() -> None:
    """Judging one may look at each node."""
    kinds = [Needs(selector=frozenset({("zone", str(i))})) for i in range(JUDGED_MOST)]
    before = tuple(
        replace(UNKNOWN, name=f"p{i}", uid=f"uid-{i}", created=at(100), needs=one)
        for i, one in enumerate(kinds)
    )
    snapshot = _idle(pending=(*before[1:], UNKNOWN), taken=FULL)
    assert _drained(snapshot) == ["shadow-2-1"]
    assert _drained(replace(snapshot, pending=(*before, UNKNOWN))) == []


def test_nothing_gives_way_where_nobody_looked() -> None:
    assert _drained(_idle(pending=(UNKNOWN,))) == []
    nodes = (node("n1"), node("n2"))
    assert _drained(_idle(pending=(UNKNOWN,), nodes=nodes, taken=FULL)) == []
    cordoned = (node("n1"), node("n2", available=False))
    assert _drained(_idle(pending=(UNKNOWN,), nodes=cordoned, taken=FULL)) == ["shadow-2-1"]


def test_those_who_do_not_say_what_they_lack_get_one_card_after_the_other() -> None:
    """All of them may wait for something else."""
    many = tuple(replace(UNKNOWN, name=f"p{i}", uid=f"uid-{i}") for i in range(3))
    assert len(_drained(_idle(pending=many, taken=FULL))) == 1
    pod = PodView(phase="Running", node="n1", bound_at=at(60), drain_asked=at(5))
    going = ready("shadow-2-9", pod=pod, ready=False, draining=True)
    here = (ready("shadow-2-0"), going)
    assert _drained(_idle(shadows=here, pending=many, taken=FULL)) == []
    assert _drained(_idle(shadows=here, pending=(_pending(),), taken=FULL)) == ["shadow-2-0"]


def test_it_is_looked_again_while_they_wait_and_shadow_pods_are_idle() -> None:
    assert plan(_idle(pending=(UNKNOWN,)), NOW).due == at(-30)
    due = plan(_idle(pending=(_pending(cards=9),)), NOW).due
    assert due is not None and due > at(-30)


BY_DRA = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable"


def test_a_shadow_pod_lacks_cards_where_the_dra_driver_has_none_left() -> None:
    """The message does not name the resource. A shadow pod has no other claim."""
    stuck = shadow("shadow-2-z", namespace="team-b", pod=PodView(unschedulable=BY_DRA))
    snapshot = _idle(
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 4}]), quota("team-b")),
        pending=(),
        shadows=(ready(), stuck),
        shares=(waiting("b", resource="team-b.mizar.share/gpu.2", namespace="team-b"),),
    )
    assert _drained(snapshot) == ["shadow-2-aaaaa"]
    found = status(snapshot, "team-b").conditions
    assert [one.reason for one in found if one.type == "Satisfied"] == ["NoCardFree"]
    fresh = replace(stuck, pod=PodView(unschedulable=BY_DRA.replace("allocate all", "see the")))
    assert _drained(replace(snapshot, shadows=(ready(), fresh))) == []
