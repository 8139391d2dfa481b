"""Idle shadow pods that a waiting pod of their quota cannot use are replaced by one that it can
use."""

from dataclasses import replace
from typing import Any

from mizar_core.condition import Condition
from mizar_core.names import ANNOTATION_SEQUENCE, EventReason, ReapReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CancelDrain, CreateShadow, DeleteShadow, Drain, EmitEvent
from mizar_core.planning.node_fit import HOSTNAME, Needs
from mizar_core.planning.snapshot import CardsOnNode, NodeView, PodView, ShadowView
from mizar_kube.kinds import POD, SHADOW_POD
from property.plan.snapshots import NOW, at, quota, ready, shadow, waiting
from stateful.harness import Harness
from stateful.model import Model
from support.planned import actions, satisfied, small, status
from support.projection import apply_plan

GPU = "team-a.mizar.share/gpu.2"

CARDS = "nvidia.com/gpu"
FOUR = "team-a.mizar.share/gpu.4"
ON_N1 = Needs(selector=frozenset({(HOSTNAME, "n1")}))


def _node(name: str, cards: int = 2) -> NodeView:
    return NodeView(name, frozenset({(HOSTNAME, name)}), True, {CARDS: CardsOnNode(cards, cards)})


def _elsewhere(least: int = 0, most: int = 1, **parts: Any) -> Snapshot:
    """The only shadow pod that the quota allows is idle on n2, and a pod wants one on n1."""
    given: dict[str, Any] = {
        "quotas": (quota("team-a", profiles=[{"devices": 2, "min": least, "max": most}]),),
        "nodes": (_node("n1"), _node("n2")),
        "shadows": (ready("shadow-2-there", "n2"),),
        "shares": (waiting("p", needs=ON_N1),),
    }
    return small(**{**given, **parts})


def _drained(snapshot: Snapshot) -> list[str]:
    return [one.shadow[1] for one in actions(Drain, snapshot)]


def _now_drained(snapshot: Snapshot) -> Snapshot:
    """The snapshot after the plan is applied and the node agent has drained what was to be
    drained."""
    after = apply_plan(snapshot, plan(snapshot, NOW))

    def drained(one: ShadowView) -> ShadowView:
        asked = one.pod is not None and one.pod.drain_asked is not None
        return replace(one, draining=True, drained=True) if asked else one

    return replace(after, shadows=tuple(drained(one) for one in after.shadows))


def test_one_on_another_node_gives_way_and_its_user_is_told() -> None:
    snapshot = _elsewhere()
    assert _drained(snapshot) == ["shadow-2-there"]
    told = {one.kind: one for one in actions(EmitEvent, snapshot)}
    assert "a share pod waits for" in told["ShadowPod"].message
    assert told["Pod"].reason is EventReason.WAITING_FOR_SHADOW
    assert told["Pod"].type == "Normal"
    assert "is being replaced" in told["Pod"].message
    assert satisfied(snapshot).status == "False"


def test_what_replaces_it_goes_where_the_pod_can_go_though_it_was_the_minimum() -> None:
    draining = _now_drained(_elsewhere(least=1))
    assert not actions(CancelDrain, draining)
    assert [one.shadow[1] for one in actions(DeleteShadow, draining)] == ["shadow-2-there"]
    gone = replace(draining, shadows=())
    (made,) = actions(CreateShadow, gone)
    assert ON_N1.selector <= made.needs.selector


def test_while_it_goes_nothing_else_does() -> None:
    going = apply_plan(_elsewhere(most=1), plan(_elsewhere(), NOW))
    again = replace(
        going, shadows=(*going.shadows, ready("shadow-2-other", "n2")), attempted=frozenset()
    )
    assert _drained(replace(again, quotas=_elsewhere(most=2).quotas)) == []


def test_one_of_another_profile_gives_way_to_the_ceiling_of_cards() -> None:
    profiles = [{"devices": 2, "max": 2}, {"devices": 4, "min": 0, "max": 2}]
    snapshot = _elsewhere(
        quotas=(quota("team-a", profiles=profiles, maxCards=2),),
        shadows=(ready("shadow-4-there", "n2", devices=4),),
    )
    assert _drained(snapshot) == ["shadow-4-there"]
    profiles[1]["min"] = 1
    kept = quota("team-a", profiles=profiles, maxCards=2)
    assert _drained(replace(snapshot, quotas=(kept,))) == []


def test_as_many_as_the_cards_take() -> None:
    profiles = [{"devices": 2, "max": 4}, {"devices": 4, "max": 1}]
    ours = quota("team-a", profiles=profiles, maxCards=4)
    idle = tuple(ready(f"shadow-2-{i}", "n2", idle_since=at(10 + i)) for i in range(3))
    snapshot = _elsewhere(
        quotas=(ours,), shadows=idle, shares=(waiting("p", 4, FOUR, needs=ON_N1),)
    )
    assert _drained(snapshot) == ["shadow-2-2"]
    two = quota("team-a", profiles=profiles, maxCards=2)
    assert len(_drained(replace(snapshot, quotas=(two,), shadows=idle[:2]))) == 2


def test_only_for_cards_that_are_there() -> None:
    assert _drained(_elsewhere(nodes=(_node("n1", 0), _node("n2")))) == []
    assert _drained(_elsewhere(taken={(CARDS, "n1"): 2})) == []
    held = tuple(
        ready(f"shadow-2-{i}", "n1", quota="other", quota_uid="", idle_since=None, in_use=True)
        for i in range(2)
    )
    theirs = quota("team-a", "other", profiles=[{"devices": 2, "max": 2}])
    start = _elsewhere()
    full = replace(start, shadows=(*start.shadows, *held), quotas=(*start.quotas, theirs))
    assert _drained(full) == []


def test_cards_of_those_who_give_way_too_count() -> None:
    """The only card of n1 is that of another tenant's shadow pod: idle, or being drained."""
    idle = ready("shadow-2-idle", "n1", namespace="team-b")
    pod = PodView(phase="Running", node="n1", bound_at=at(60), drain_asked=at(1))
    start = _elsewhere(nodes=(_node("n1", 1), _node("n2")))
    for beside in (idle, replace(idle, pod=pod)):
        shadows, quotas = (*start.shadows, beside), (*start.quotas, quota("team-b"))
        assert "shadow-2-there" in _drained(replace(start, shadows=shadows, quotas=quotas))


def test_only_what_helps() -> None:
    """The profile's own limit is reached as well as the ceiling of cards."""
    profiles = [{"devices": 2, "max": 1}, {"devices": 4, "max": 1}]
    snapshot = _elsewhere(
        quotas=(quota("team-a", profiles=profiles, maxCards=3),),
        shadows=(
            ready("shadow-2-there", "n2"),
            ready("shadow-4-there", "n2", devices=4, idle_since=at(50)),
        ),
    )
    assert _drained(snapshot) == ["shadow-2-there"]


def test_what_is_left_serves_who_waits_for_it() -> None:
    two = tuple(ready(f"shadow-2-{i}", "n2") for i in range(2))
    pinned = tuple(waiting(f"p{i}", 2, needs=ON_N1) for i in range(2))
    snapshot = _elsewhere(most=2, shadows=two, shares=(*pinned, waiting("anywhere")))
    assert len(_drained(snapshot)) == 1


def test_what_is_held_or_waited_for_stays() -> None:
    held = ready("shadow-2-there", "n2", holders=(("team-a", "q"),), idle_since=None)
    assert _drained(_elsewhere(shadows=(held,))) == []
    both = (waiting("p", needs=ON_N1), waiting("q"))
    assert _drained(_elsewhere(shares=both)) == []
    assert _drained(_elsewhere(shares=())) == []


def test_one_for_two_who_fit_into_what_replaces_it() -> None:
    two = tuple(ready(f"shadow-2-{i}", "n2") for i in range(2))
    pods = (waiting("p", needs=ON_N1), waiting("q", needs=ON_N1))
    snapshot = _elsewhere(most=2, shadows=two, shares=pods)
    assert len(_drained(snapshot)) == 1
    assert len(_drained(replace(snapshot, shares=(*pods, waiting("r", needs=ON_N1))))) == 2


def test_once_for_each_who_waits() -> None:
    assert [one.about for one in plan(_elsewhere(), NOW).attempts] == ["uid-team-a-p"]
    attempted = _elsewhere(attempted=frozenset({"replace/uid-team-a-p"}))
    assert _drained(attempted) == []
    assert "QuotaExceeded" in {str(one.reason) for one in actions(EmitEvent, attempted)}


REFUSED = waiting(
    "p",
    unschedulable="0/2 nodes are available: 1 Insufficient cpu.",
    unschedulable_since=at(60),
)


def _refused(idle: int = 60, **parts: Any) -> Snapshot:
    """There is no cpu left beside the only shadow pod that the quota allows."""
    given: dict[str, Any] = {
        "shadows": (ready("shadow-2-there", "n2", idle_since=at(idle)),),
        "shares": (REFUSED,),
        "free_since": {(GPU, "n2"): (at(60), at(60))},
    }
    return _elsewhere(**{**given, **parts})


def test_one_on_a_node_that_the_scheduler_refuses_the_pod() -> None:
    assert _drained(_refused()) == ["shadow-2-there"]
    web = tuple(replace(REFUSED, name=f"p{i}", uid=f"uid-p{i}", owner="web") for i in range(4))
    two = tuple(ready(f"shadow-2-{i}", "n2", idle_since=at(60)) for i in range(2))
    times = {(GPU, "n2"): (at(60),) * 4}
    more = _refused(most=2, shadows=two, shares=web, free_since=times)
    assert len(_drained(more)) == 1, "nobody knows whether the next node will do"
    assert _drained(_refused(nodes=(_node("n2"),))) == [], "there is no other node"


def _without_shadows(*refused: str) -> list[Needs]:
    """The needs of what is created for the pod when these nodes were refused it before."""
    nodes = {("uid-team-a-p", GPU): frozenset(refused)}
    none = _refused(shadows=(), free_since={}, refused_nodes=nodes)
    return [one.needs for one in actions(CreateShadow, none)]


def test_what_replaces_it_does_not_go_there_again() -> None:
    """On that node no device is left by which the scheduler's refusal could be seen again."""
    after = apply_plan(_refused(), plan(_refused(), NOW))
    assert after.refused_nodes == {("uid-team-a-p", GPU): frozenset({"n2"})}
    (needs,) = _without_shadows("n2")
    assert needs.excluded_nodes == {"n2"}


def test_where_all_nodes_were_refused_any_may_do_now() -> None:
    (needs,) = _without_shadows("n1", "n2")
    assert needs.excluded_nodes == frozenset()


def test_it_stays_where_all_other_nodes_were_refused_too() -> None:
    """Each node was tried once: more moves would only cost others their cards."""
    nodes = {("uid-team-a-p", GPU): frozenset({"n1"})}
    assert _drained(_refused(refused_nodes=nodes)) == []


def test_its_drain_is_not_called_off_for_the_pod_that_it_was_no_use_to() -> None:
    """While it drains, it has no free device that the scheduler could pass over."""
    draining = replace(apply_plan(_refused(), plan(_refused(), NOW)), free_since={})
    assert not actions(CancelDrain, draining)
    fresh = waiting("p", unschedulable="Insufficient cpu", unschedulable_since=at(10))
    other = replace(draining, shares=(fresh,), attempted=frozenset())
    assert len(actions(CancelDrain, other)) == 1, "nobody has refused this one the node for long"


def test_one_that_was_used_just_now_is_given_time() -> None:
    """Only one of its devices was free for long: so far it is not shown that the scheduler refuses
    all of them, and it cannot be once they are out of use."""
    fresh = _refused(idle=5, shares=(replace(REFUSED, count=1),))
    assert _drained(fresh) == []
    assert plan(fresh, NOW).due == at(-10)


def test_a_waiting_pod_comes_before_the_minimum() -> None:
    """The first shadow pod of a quota goes where the waiting pod can go; it is the minimum as
    well."""
    (made,) = actions(CreateShadow, _elsewhere(least=1, shadows=()))
    assert ON_N1.selector <= made.needs.selector


def test_the_minimum_of_a_profile_that_nobody_asks_for_is_kept_first() -> None:
    profiles = [{"devices": 2, "max": 2}, {"devices": 4, "min": 1, "max": 1}]
    ours = quota("team-a", profiles=profiles, maxCards=2)
    (made,) = actions(CreateShadow, _elsewhere(quotas=(ours,), shadows=()))
    assert made.devices == 4


def test_a_shadow_pod_that_waits_for_a_node_gives_way_to_nobody() -> None:
    stuck = replace(ready("shadow-2-there"), node=None, ready=False, phase="Pending", pod=PodView())
    assert _drained(_elsewhere(shadows=(stuck,))) == []


# Shadow pods that no present node fits.

NOWHERE = Needs(selector=frozenset({("zone", "eastt")}))
NO_NODE = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector"


def _lost(name: str = "shadow-2-typo", message: str = NO_NODE, **fields: Any) -> ShadowView:
    pod = PodView(unschedulable=message, needs=NOWHERE)
    return shadow(name, pod=pod, **fields)


def _typo(**parts: Any) -> Snapshot:
    """The only shadow pod that the quota allows is for a pod that fits no node."""
    shares = (waiting("typo", needs=NOWHERE), waiting("good"))
    return _elsewhere(**{"shadows": (_lost(),), "shares": shares, **parts})


def test_one_that_no_node_fits_gives_way_to_who_would_get_a_card() -> None:
    (ended,) = actions(DeleteShadow, _typo())
    assert (ended.shadow[1], ended.reason) == ("shadow-2-typo", ReapReason.REPLACED)
    told = {one.about[1]: one for one in actions(EmitEvent, _typo())}
    assert "is being replaced" in told["good"].message
    assert told["typo"].reason is EventReason.QUOTA_EXCEEDED
    assert "no present node fits the pod either" in told["typo"].message
    gone = replace(_typo(), shadows=())
    (made,) = actions(CreateShadow, gone)
    assert not made.needs.selector, "who fits a node comes first"


def test_it_stays_where_nobody_would_get_a_card() -> None:
    full = _typo(nodes=(_node("n1", 0), _node("n2", 0)))
    alone = _typo(shares=(waiting("typo", needs=NOWHERE), waiting("other", needs=NOWHERE, count=2)))
    waits_for_cards = _typo(shadows=(_lost(message=f"{NO_NODE}, 1 Insufficient {CARDS}"),))
    new = _typo(shadows=(shadow("shadow-2-typo", pod=PodView(needs=NOWHERE)),))
    contested = _typo(shadows=(_lost(contested=True),))
    attempted = _typo(attempted=frozenset({"replace/uid-team-a-good"}))
    for snapshot in (full, alone, waits_for_cards, new, contested, attempted):
        assert not actions(DeleteShadow, snapshot)
    assert not actions(DeleteShadow, _typo(quotas=_elsewhere(most=2).quotas)), "there is room"


def test_a_waiting_pod_is_not_told_that_a_shadow_pod_in_use_is_replaced() -> None:
    """Its pod seems to have no node, since the watch of pods is behind. Nothing is attempted, so
    that another one can be replaced at once."""
    holders = (("team-a", "user"),) * 2
    held = _lost(node="n2", ready=True, healthy=2, holders=holders, in_use=True)
    snapshot = _typo(shadows=(held,))
    user = waiting("user", count=2, node="n2")
    snapshot = replace(snapshot, shares=(*snapshot.shares, user))
    assert plan(snapshot, NOW).attempts == ()
    told = {one.about[1]: one for one in actions(EmitEvent, snapshot)}
    assert told["good"].reason is EventReason.QUOTA_EXCEEDED


def test_the_youngest_that_no_node_fits_goes_first() -> None:
    several = tuple(_lost(f"shadow-2-{n}", sequence=n) for n in range(3))
    pods = tuple(waiting(f"typo-{n}", 2, needs=NOWHERE) for n in range(3))
    snapshot = _typo(
        quotas=_elsewhere(most=3).quotas, shadows=several, shares=(*pods, waiting("good"))
    )
    assert [one.shadow[1] for one in actions(DeleteShadow, snapshot)] == ["shadow-2-2"]


def test_a_pod_that_fits_a_node_comes_first_whatever_the_pods_ask_for() -> None:
    """Else the freed place would go to the same pod again."""
    profiles = [{"devices": 2, "max": 2}, {"devices": 4, "max": 2}]
    ours = quota("team-a", profiles=profiles, maxCards=2)
    pods = (waiting("typo", needs=NOWHERE), waiting("good", 4, FOUR))
    (made,) = actions(CreateShadow, _typo(quotas=(ours,), shadows=(), shares=pods))
    assert made.devices == 4
    (ended,) = actions(DeleteShadow, _typo(quotas=(ours,), shares=pods))
    assert ended.shadow[1] == "shadow-2-typo"


def test_a_pod_that_waits_for_other_pods_to_end_is_told_so() -> None:
    """The quota was made anew while two shadow pods of the earlier one were in use."""
    used = tuple(
        ready(
            f"shadow-2-{name}",
            "n2",
            quota_uid="of an earlier quota",
            holders=(("team-a", name),),
            idle_since=None,
        )
        for name in ("one", "two")
    )
    users = tuple(waiting(name, node="n2") for name in ("one", "two"))
    start = _elsewhere(most=1)
    snapshot = replace(start, shadows=used, shares=(*start.shares, *users))
    told = {one.about[1]: one for one in actions(EmitEvent, snapshot)}
    assert told["p"].reason is EventReason.QUOTA_EXCEEDED and told["p"].type == "Warning"
    assert "2 shadow pods of quota quota, closed to new pods, must stay" in told["p"].message
    assert "closed to new pods" in _exhausted(snapshot).message
    alone = replace(snapshot, shares=users)
    assert _exhausted(alone).reason == "Overdrawn"
    assert "2 shadow pods of profile 2, 1 allowed" in _exhausted(alone).message
    assert _exhausted(replace(alone, shadows=used[:1], shares=users[:1])).reason != "Overdrawn"
    idle = tuple(replace(one, holders=(), idle_since=at(60)) for one in used)
    assert _exhausted(replace(alone, shadows=idle, shares=())).reason != "Overdrawn"


def _exhausted(snapshot: Snapshot) -> Condition:
    (found,) = (one for one in status(snapshot).conditions if one.type == "Exhausted")
    return found


def test_what_goes_nowhere_is_not_made_again_beside_who_runs() -> None:
    """With the operator, whose attempts are repeated after a while."""
    model = Model()
    model.add_node("n1")
    model.add_pool()
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}])
    model.add_share("team-a", "typo", GPU, 1, nodeSelector={"zone": "eastt"})
    operator = Harness(model)
    for _ in range(5):
        operator.round()
    model.add_share("team-a", "good", GPU, 1)
    for _ in range(20):
        operator.round(30)
    (shadow,) = model.api.all(SHADOW_POD)
    good = model.api.find(POD, "good", "team-a")
    assert good is not None and good["spec"]["nodeName"] == "n1"
    assert shadow["metadata"]["annotations"][ANNOTATION_SEQUENCE] == "1", "the second of its quota"


def test_room_that_is_made_for_one_profile_is_not_kept_from_another() -> None:
    """A pod that fits no present node, but may let the autoscaler add one, takes nothing from it;
    unless the cards of both are limited together."""
    ending = PodView("uid", "Running", "n1", deleting=True)
    wide = {"resource": FOUR, "devices": 4, "cards": 2, "deleting": True, "pod": ending}
    shares = (
        waiting("here", 4, FOUR),
        waiting("nowhere", needs=Needs(selector=frozenset({("zone", "none")}))),
    )
    for most, cards, made in ((1, None, {2}), (1, 8, {2}), (1, 3, {2}), (2, 3, {2})):
        profiles = [{"devices": 2, "max": 4}, {"devices": 4, "max": most}]
        limits = {} if cards is None else {"maxCards": cards}
        snapshot = small(
            quotas=(quota("team-a", profiles=profiles, **limits),),
            shadows=(ready("shadow-4-a", **wide),),
            shares=shares,
        )
        assert {one.devices for one in actions(CreateShadow, snapshot)} == made, (most, cards)
