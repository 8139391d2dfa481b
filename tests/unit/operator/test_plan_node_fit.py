"""The nodes that pods really fit: node affinity, taints, anti-affinity, and the scheduler's
refusals."""

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.names import LABEL_NODE, EventReason
from mizar_core.planning import Snapshot, demand, plan
from mizar_core.planning.actions import (
    CancelDrain,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
)
from mizar_core.planning.node_fit import (
    HOSTNAME,
    NO_NEEDS,
    AntiAffinity,
    Needs,
    Requirement,
    Taint,
    Term,
    Toleration,
    fits,
)
from mizar_core.planning.snapshot import NodeView, PodView, ShadowView
from mizar_kube.kinds import POD
from mizar_operator.node_needs import needs_of, node_constraints
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from stateful.harness import Harness
from stateful.model import Model
from support.planned import actions, satisfied, small
from support.projection import apply_plan

WEST = frozenset({("zone", "west")})
TEAM_A = Taint("team", "a", "NoSchedule")
FOR_A = Toleration("team", "Equal", "a", "NoSchedule")
GPU = "team-a.mizar.share/gpu.2"
UNREACHABLE = Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute")
QUOTA_WARM = quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}])
APART = frozenset({AntiAffinity("web", HOSTNAME)})
A100 = Requirement("nvidia.com/gpu.product", "In", ("A100",))


def _named(*nodes: str) -> Needs:
    return Needs(terms=(Term((), (Requirement("metadata.name", "In", nodes),)),))


def _tainted(name: str, *taints: Taint, **fields: Any) -> NodeView:
    return replace(node(name, **fields), taints=frozenset(taints))


def test_node_affinity_goes_onto_the_shadow_pod() -> None:
    shares = (waiting("p", needs=_named("n2")),)
    snapshot = small(nodes=(node("n1"), node("n2")), shadows=(ready(),), shares=shares)
    (made,) = actions(CreateShadow, snapshot)
    assert made.needs.terms == _named("n2").terms


def test_node_affinity_is_added_to_the_card_models_of_the_pool() -> None:
    labels = frozenset({("nvidia.com/gpu.product", "A100")})
    nodes = tuple(replace(node(name), labels=labels) for name in ("n1", "n2"))
    shares = (waiting("p", needs=_named("n2")),)
    snapshot = small(pools=(pool(cardModels=["A100"]),), nodes=nodes, shares=shares)
    (made,) = actions(CreateShadow, snapshot)
    assert made.needs.terms == (Term((A100,), _named("n2").terms[0].fields),)


def test_free_devices_on_a_node_that_affinity_excludes_are_not_kept_for_the_pod() -> None:
    snapshot = small(
        quotas=(quota("team-a", idleTimeoutSeconds=5),),
        nodes=(node("n1"), node("n2")),
        shadows=(ready(),),
        shares=(waiting("p", needs=_named("n2")),),
    )
    assert actions(Drain, snapshot)


def test_a_shadow_pod_on_its_way_to_any_node_does_not_serve_a_pod_that_wants_one_node() -> None:
    nodes, shares = (node("n1"), node("n2")), (waiting("p", needs=_named("n2")),)
    assert actions(CreateShadow, small(nodes=nodes, shadows=(shadow(),), shares=shares))
    aimed = shadow(pod=PodView(needs=_named("n2")))
    assert not actions(CreateShadow, small(nodes=nodes, shadows=(aimed,), shares=shares))


def test_a_toleration_goes_onto_the_shadow_pod() -> None:
    needs = Needs(WEST, tolerations=frozenset({FOR_A}))
    nodes = (node("n1"), _tainted("n2", TEAM_A, zone="west"))
    (made,) = actions(CreateShadow, small(nodes=nodes, shares=(waiting("p", needs=needs),)))
    assert FOR_A in made.needs.tolerations


def test_tolerating_everything_is_no_invitation_to_cordoned_nodes() -> None:
    needs = Needs(tolerations=frozenset({Toleration("", "Exists")}))
    nodes, shares = (_tainted("n1", TEAM_A),), (waiting("p", needs=needs),)
    (made,) = actions(CreateShadow, small(nodes=nodes, shares=shares))
    assert FOR_A in made.needs.tolerations
    assert all(one.key for one in made.needs.tolerations)


def test_a_shadow_pod_stays_on_a_silent_node_as_long_as_who_it_is_made_for() -> None:
    model = Model()
    model.add_node("n1")
    model.add_pool()
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}])
    model.add_share("team-a", "one", GPU, 1)
    share = model.api.find(POD, "one", "team-a")
    assert share is not None
    share["spec"]["tolerations"] = [
        {"key": UNREACHABLE.key, "operator": "Exists", "tolerationSeconds": 900},
        {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"},
    ]
    operator = Harness(model)
    operator.round()
    (made,) = (one for one in model.api.all(POD) if one["metadata"]["name"] != "one")
    added = {"key": UNREACHABLE.key, "operator": "Exists", "effect": "NoExecute"}
    assert {**added, "tolerationSeconds": 900} in made["spec"]["tolerations"]
    assert len(made["spec"]["tolerations"]) == 2


def test_pods_that_stay_for_different_times_on_silent_nodes_share_a_shadow_pod() -> None:
    shares = (waiting("a", outages=frozenset({UNREACHABLE})), waiting("b"))
    for order in (shares, shares[::-1]):
        named = tuple(replace(one, name=f"p{n}") for n, one in enumerate(order))
        assert len(actions(CreateShadow, small(shares=named))) == 1
    assert not actions(CreateShadow, small(shadows=(ready(),), shares=shares))
    assert not actions(CreateShadow, small(shadows=(shadow(),), shares=shares))


def test_a_pool_may_say_how_long_its_shadow_pods_stay_on_a_silent_node() -> None:
    own = {"key": UNREACHABLE.key, "operator": "Exists", "tolerationSeconds": 20}
    shares = (waiting("a", outages=frozenset({UNREACHABLE})),)
    snapshot = small(pools=(pool(tolerations=[{**own, "effect": "NoExecute"}]),), shares=shares)
    (made,) = actions(CreateShadow, snapshot)
    assert [t.seconds for t in made.needs.tolerations if t.key == UNREACHABLE.key] == [20]


def test_devices_behind_a_taint_are_not_free_to_all() -> None:
    nodes = (_tainted("n1", TEAM_A), node("n2"))
    pools = (pool(tolerations=[{"key": "team", "operator": "Exists"}]),)
    snapshot = small(pools=pools, nodes=nodes, shadows=(ready(),), shares=(waiting("p"),))
    (made,) = actions(CreateShadow, snapshot)
    assert not made.needs.tolerates(TEAM_A), "or it might go where the pod cannot follow"


def test_a_pod_that_tolerates_no_present_node_is_told_the_taint() -> None:
    """The pool's shadow pods tolerate the taint of the cards without being told to."""
    cards = Taint("nvidia.com/gpu", "present", "NoSchedule")
    words = "0/1 nodes are available: 1 node(s) had untolerated taint"
    refused = shadow(pod=PodView(unschedulable=words, needs=Needs()))
    snapshot = small(nodes=(_tainted("n1", cards),), shadows=(refused,), shares=(waiting("p"),))
    assert not actions(CreateShadow, snapshot)
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert event.reason is EventReason.NO_NODE_FITS
    assert f"{words}; it does not tolerate the taint nvidia.com/gpu=present" in event.message
    assert satisfied(snapshot).reason == "NoNodeFits"
    assert "taint nvidia.com/gpu=present:NoSchedule of node n1" in satisfied(snapshot).message


GROUP = Taint("ToBeDeletedByClusterAutoscaler", "1700000000", "NoSchedule")


def test_a_pod_that_fits_no_present_node_has_one_for_the_autoscaler_to_see() -> None:
    """As a pod for whole cards would wait, and a node group would be scaled up from zero for it."""
    for needs in (NO_NEEDS, Needs(WEST), _named("n9")):
        snapshot = small(nodes=(_tainted("n1", GROUP),), shares=(waiting("p", needs=needs),))
        (made,) = actions(CreateShadow, snapshot)
        assert not made.needs.tolerates(GROUP)
        assert made.needs.selector == needs.selector and made.needs.terms == needs.terms
        assert not plan(apply_plan(snapshot, plan(snapshot, NOW)), NOW).actions


def test_it_is_made_once_for_all_who_can_go_where_it_would() -> None:
    words = "0/1 nodes are available: 1 node(s) had untolerated taint"
    refused = shadow(pod=PodView(unschedulable=words, needs=Needs()))
    shares = (waiting("p"), waiting("q"))
    snapshot = small(nodes=(_tainted("n1", GROUP),), shadows=(refused,), shares=shares)
    assert not actions(CreateShadow, snapshot)
    assert len(actions(CreateShadow, replace(snapshot, shares=(*shares, waiting("r"))))) == 1


# Shadow pods that get no node.

EVERYWHERE = (node("n1", zone="west"), node("n2", zone="east"))
FULL = "1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector"


def _stuck(needs: Needs) -> ShadowView:
    return shadow(pod=PodView(unschedulable=FULL, needs=needs))


def test_a_pod_that_may_go_elsewhere_does_not_wait_for_a_shadow_pod_that_may_not() -> None:
    """A pod that must go to a full zone has a shadow pod that waits for a card there."""
    pinned, free = waiting("pinned", needs=Needs(WEST)), waiting("free")
    snapshot = small(nodes=EVERYWHERE, shadows=(_stuck(Needs(WEST)),), shares=(pinned, free))
    (made,) = actions(CreateShadow, snapshot)
    assert not made.needs.selector
    assert not actions(DeleteShadow, snapshot)


def test_a_pod_that_may_go_nowhere_else_waits_for_the_same_shadow_pod() -> None:
    """A second shadow pod would wait for the same cards."""
    shares = tuple(waiting(name, needs=Needs(WEST)) for name in ("first", "second"))
    parts = {"shadows": (_stuck(Needs(WEST)),), "shares": shares}
    assert not actions(CreateShadow, small(nodes=EVERYWHERE, **parts))
    only_west = small(nodes=(node("n1", zone="west"),), **(parts | {"shares": (waiting("p"),)}))
    assert not actions(CreateShadow, only_west)


def test_what_admission_adds_to_every_shadow_pod_is_no_reason_for_another() -> None:
    """A namespace may have a node selector of its own, which the next shadow pod would get too."""
    stuck = shadow(pod=PodView(unschedulable=FULL, needs=Needs(WEST), asked=NO_NEEDS))
    waits = small(nodes=EVERYWHERE, shadows=(stuck,), shares=(waiting("p"),))
    kept = small(nodes=EVERYWHERE, shadows=(stuck,), quotas=(QUOTA_WARM,))
    for snapshot in (waits, kept):
        assert not actions(CreateShadow, snapshot)
        assert not actions(DeleteShadow, snapshot)
    (event,) = (one for one in actions(EmitEvent, waits) if one.kind == "Pod")
    assert FULL in event.message


def test_models_that_admission_takes_out_are_no_reason_for_another() -> None:
    terms = (Term((Requirement("nvidia.com/gpu.product", "In", ("A100",)),)),)
    pod = PodView(unschedulable=FULL, needs=NO_NEEDS, asked=Needs(terms=terms))
    models = pool(cardModels=["A100"])
    parts = {"pools": (models,), "nodes": (), "shares": (waiting("p"),)}
    assert not actions(DeleteShadow, small(**parts, shadows=(shadow(pod=pod),)))
    forgotten = shadow(pod=replace(pod, asked=None))
    assert actions(DeleteShadow, small(**parts, shadows=(forgotten,)))


def test_a_corrected_node_selector_reaches_who_waits() -> None:
    """A pod cannot be changed, so another one comes."""
    parts = {
        "pools": (pool(nodeSelector={"zone": "east"}),),
        "nodes": EVERYWHERE,
        "shadows": (_stuck(Needs(frozenset({("zone", "aest")}))),),
        "shares": (waiting("p"),),
    }
    (made,) = actions(CreateShadow, small(**parts))
    assert made.needs.selector == {("zone", "east")}
    assert actions(DeleteShadow, small(**parts))


def test_a_correction_needs_no_second_shadow_pod_in_the_quota() -> None:
    snapshot = small(
        quotas=(quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 1}]),),
        nodes=EVERYWHERE,
        shadows=(_stuck(Needs(frozenset({("zone", "aest")}))),),
        shares=(waiting("p"),),
    )
    assert actions(DeleteShadow, snapshot)
    assert not actions(CreateShadow, snapshot), "before the other one is gone"
    assert actions(CreateShadow, replace(snapshot, shadows=()))


WARM = (quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 4}]),)


def test_a_corrected_toleration_reaches_what_is_kept_warm() -> None:
    nodes, shadows = (_tainted("n1", TEAM_A),), (_stuck(Needs()),)
    assert not actions(DeleteShadow, small(quotas=WARM, nodes=nodes, shadows=shadows))
    pools = (pool(tolerations=[{"key": "team", "operator": "Exists"}]),)
    corrected = small(pools=pools, quotas=WARM, nodes=nodes, shadows=shadows)
    assert actions(DeleteShadow, corrected)
    (made,) = actions(CreateShadow, corrected)
    assert made.needs.tolerates(TEAM_A)


def test_what_is_kept_warm_is_not_bound_by_a_pod_that_is_gone() -> None:
    parts = {"quotas": WARM, "nodes": EVERYWHERE, "shadows": (_stuck(Needs(WEST)),)}
    (made,) = actions(CreateShadow, small(**parts))
    assert not made.needs.selector
    needed = small(shares=(waiting("p", needs=Needs(WEST)),), **parts)
    assert not actions(DeleteShadow, needed)


def test_what_is_kept_warm_leaves_a_node_that_has_left_the_pool() -> None:
    parts = {
        "pools": (pool(nodeSelector={"zone": "east"}),),
        "quotas": (
            quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 1}], idleTimeoutSeconds=50),
        ),
    }
    left = small(nodes=EVERYWHERE, shadows=(ready(idle_since=at(60)),), **parts)
    assert actions(Drain, left)
    assert not actions(Drain, replace(left, shadows=(ready(idle_since=at(40)),)))
    used = ready(idle_since=None, holders=(("team-a", "p"),))
    user = waiting("p", node="n1")
    assert not actions(Drain, replace(left, shadows=(used,), shares=(user,)))
    unknown = replace(node("n1"), available=False, labels=frozenset(), cards={})
    assert not actions(Drain, replace(left, nodes=(unknown, EVERYWHERE[1])))
    inside = replace(left, nodes=(node("n1", zone="east"),))
    assert not actions(Drain, inside)


def test_min_does_not_call_back_what_leaves_a_node_outside_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise drain and cancellation would follow each other for ever."""
    shadows = (ready(idle_since=at(60)),)
    left = small(
        pools=(pool(nodeSelector={"zone": "east"}, idleTimeoutSeconds=50),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]),),
        nodes=EVERYWHERE,
        shadows=shadows,
    )
    assert len(actions(Drain, left)) == 1
    assert not actions(CancelDrain, left)
    assert not plan(left, NOW).unsettled
    with monkeypatch.context() as patch:
        patch.setattr(demand, "is_misplaced", lambda *_: False)
        assert plan(left, NOW).unsettled == {shadows[0].key}, "such a plan says so"
    draining = replace(
        left, shadows=(ready(pod=PodView(node="n1", drain_asked=at(1)), draining=True),)
    )
    assert not actions(CancelDrain, draining)
    wanted = replace(draining, shares=(waiting("p"),))
    assert actions(CancelDrain, wanted), "a share pod may still use it"


# Replicas that must be apart.


def _web(name: str, **fields: Any) -> Any:
    return waiting(name, needs=Needs(anti_affinity=APART), **fields)


def test_each_of_two_replicas_that_must_be_apart_gets_a_shadow_pod() -> None:
    nodes = (node("n1"), node("n2"))
    made = actions(CreateShadow, small(nodes=nodes, shares=(_web("web-1"), _web("web-2"))))
    assert [one.needs.anti_affinity for one in made] == [APART, APART]


def test_the_second_replica_does_not_count_on_the_node_of_the_first() -> None:
    snapshot = small(
        nodes=(node("n1"), node("n2")),
        shadows=(ready(holders=(("team-a", "web-1"),), idle_since=None),),
        shares=(_web("web-1", node="n1"), _web("web-2")),
    )
    (made,) = actions(CreateShadow, snapshot)
    assert made.needs.excluded_nodes == {"n1"}
    others = replace(snapshot, shares=(snapshot.shares[0], waiting("other")))
    assert not actions(CreateShadow, others), "others may"


@pytest.mark.parametrize("bound", [True, False])
def test_no_drain_is_cancelled_for_a_replica_beside_another(bound: bool) -> None:
    """The other one may be about to get a device that is free there."""
    asked = PodView(phase="Running", node="n1", drain_asked=at(5))
    drained = ready("shadow-2-drained", ready=False, pod=asked, phase="Draining")
    user = waiting("user", node="n1")
    used = ready("shadow-2-used", holders=(user.key,), in_use=True, idle_since=None)
    first = _web("web-1", node="n1" if bound else None)
    snapshot = small(
        nodes=(node("n1"), node("n2")),
        shadows=(drained, used),
        shares=(user, first, _web("web-2", count=2)),
    )
    assert not actions(CancelDrain, snapshot) and actions(CreateShadow, snapshot)
    other = replace(snapshot, shares=(user, first, waiting("p", 2)))
    assert actions(CancelDrain, other) and not actions(CreateShadow, other)


def test_a_replica_does_not_count_on_a_shadow_pod_that_may_land_beside_another() -> None:
    nodes, shares = (node("n1"), node("n2")), (_web("web-1"),)
    assert actions(CreateShadow, small(nodes=nodes, shadows=(shadow(),), shares=shares))
    apart = shadow(pod=PodView(needs=Needs(anti_affinity=APART)))
    assert not actions(CreateShadow, small(nodes=nodes, shadows=(apart,), shares=shares))


def test_a_shadow_pod_on_its_way_keeps_off_the_first_replicas_and_serves_the_second() -> None:
    there = PodView(phase="Running", node="n1", bound_at=at(60), needs=Needs(anti_affinity=APART))
    first = ready("shadow-2-first", pod=there, holders=(("team-a", "web-1"),), idle_since=None)
    coming = shadow("shadow-2-coming", pod=PodView(needs=Needs(anti_affinity=APART)))
    snapshot = small(
        nodes=(node("n1"), node("n2")),
        shadows=(first, coming),
        shares=(_web("web-1", node="n1"), _web("web-2")),
    )
    assert not actions(CreateShadow, snapshot)
    other = replace(there, needs=Needs(anti_affinity=frozenset({AntiAffinity("db", HOSTNAME)})))
    beside = ready("shadow-2-other", pod=other, holders=(("team-a", "db"),), idle_since=None)
    for shadows in ((first, beside, coming), (beside, first, coming)):
        assert not actions(CreateShadow, replace(snapshot, shadows=shadows))


# Pods that the scheduler refuses although devices are free.


def _passed(**parts: Any) -> Snapshot:
    """A node with two free devices, and a share pod that has been refused for a minute."""
    words = "0/2 nodes are available: 1 Insufficient cpu."
    refused = waiting("p", unschedulable=words, unschedulable_since=at(60), owner="web")
    given = {
        "nodes": (node("n1"), node("n2")),
        "shadows": (ready(),),
        "shares": (refused,),
        "free_since": {(GPU, "n1"): (at(20), at(20))},
    }
    return small(**{**given, **parts})


IN_VAIN = frozenset({f"carry/web/{GPU}"})


def test_a_shadow_pod_is_carried_to_a_node_that_the_scheduler_has_not_refused() -> None:
    (made,) = actions(CreateShadow, _passed())
    assert made.needs.excluded_nodes == {"n1"}
    assert [one.about for one in plan(_passed(), NOW).attempts] == ["uid-team-a-p"]


NO_CLAIM = '0/2 nodes are available: persistentvolumeclaim "missing" not found. not found'


def _without_claim(**parts: Any) -> Snapshot:
    """The scheduler refuses the pod itself, whatever the node."""
    (one,) = _passed().shares
    return _passed(shares=(replace(one, unschedulable=NO_CLAIM),), **parts)


def test_a_pod_that_is_refused_on_every_node_moves_no_card() -> None:
    """Another tenant may need the card that another shadow pod would take, or each new one would
    be released again and the next one created."""
    one = quota("team-a", profiles=[{"devices": 2, "max": 1}], idleTimeoutSeconds=5)
    for snapshot in (_without_claim(), _without_claim(quotas=(one,))):
        assert not actions(CreateShadow, snapshot)
        assert not actions(Drain, snapshot)
        (event,) = actions(EmitEvent, snapshot)
        assert (event.type, event.reason) == ("Warning", EventReason.NO_NODE_FITS)
        assert NO_CLAIM in event.message
        assert (satisfied(snapshot).status, satisfied(snapshot).reason) == ("False", "NoNodeFits")
        assert not plan(snapshot, NOW).refused_nodes


REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."


def _gang(*members: tuple[str, str], **parts: Any) -> Snapshot:
    """Two free devices on node n1, and members of a gang, by name, with what the scheduler says."""
    (one,) = _passed().shares
    shares = tuple(
        replace(
            one,
            name=name,
            uid=f"uid-{name}",
            unschedulable=said,
            lacks_devices=said != REJECTED,
            owner="job",
        )
        for name, said in members
    )
    nodes = (replace(node("n1"), devices={GPU: 2}), node("n2"))
    return _passed(**{"nodes": nodes, "shares": shares, **parts})


LACKS = f"0/2 nodes are available: 2 Insufficient {GPU}."
HALF_A_GANG = [("a", REJECTED), ("b", REJECTED), ("c", LACKS), ("d", LACKS)]


def test_a_gang_that_is_not_complete_gets_no_more_shadow_pods_than_it_needs() -> None:
    """A gang scheduler gives some members nodes, and takes these back when others find none: no
    other node would help, and the next attempt needs the same devices."""
    no_card = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    stuck = shadow("shadow-2-stuck", pod=PodView(unschedulable=no_card))
    large = quota("team-a", profiles=[{"devices": 2, "max": 3}])
    snapshot = _gang(*HALF_A_GANG, shadows=(ready(), stuck), quotas=(large,))
    assert not actions(CreateShadow, snapshot)
    assert not actions(Drain, snapshot)


def test_a_gang_that_its_quota_keeps_incomplete_moves_no_card() -> None:
    """The next attempt needs the devices where they are."""
    one = quota("team-a", profiles=[{"devices": 2, "max": 1}], idleTimeoutSeconds=5)
    for members in (HALF_A_GANG, [("a", REJECTED), ("b", REJECTED), ("c", REJECTED)]):
        snapshot = _gang(*members, quotas=(one,), shadows=(ready(idle_since=at(60)),))
        assert not actions(Drain, snapshot)
        assert not actions(CreateShadow, snapshot)
        told = [event.reason for event in actions(EmitEvent, snapshot)]
        assert EventReason.QUOTA_EXCEEDED in told


def test_what_is_said_about_preemption_is_not_about_every_node() -> None:
    """An extension of the scheduler may refuse nodes without a reason."""
    said = "0/2 nodes are available: preemption: 0/2 nodes are available: 2 No victims found."
    (share,) = _without_claim().shares
    refused = _passed(shares=(replace(share, unschedulable=said),))
    assert plan(refused, NOW).refused_nodes


def test_a_claim_that_is_being_bound_is_no_reason_to_warn() -> None:
    (share,) = _without_claim().shares
    fresh = _without_claim()
    fresh = replace(fresh, shares=(replace(share, unschedulable_since=at(5)),))
    assert not actions(EmitEvent, fresh)
    due = plan(fresh, NOW).due
    assert due is not None and due <= at(-10)
    assert [one for one in plan(fresh, at(-10)).actions if isinstance(one, EmitEvent)]


SPREAD = "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints."
ZONES = (node("n1", "east"), node("n2", "east"), node("n3", "west"))


def _refused_by(label: str | None, **parts: Any) -> Snapshot:
    """The pod is refused the free device in zone east by a constraint on this label."""
    (one,) = _passed().shares
    refused = replace(one, unschedulable=SPREAD, refused_by=label)
    return _passed(**{"nodes": ZONES, "shares": (refused,), **parts})


def _carried_to(snapshot: Snapshot) -> list[str]:
    """The nodes to which the one shadow pod may go that is made, as an attempt."""
    (made,) = actions(CreateShadow, snapshot)
    assert [one.about for one in plan(snapshot, NOW).attempts] == ["uid-team-a-p"]
    return [one.name for one in snapshot.nodes if fits(made.needs, one)]


def test_a_pod_that_is_refused_by_its_spread_is_carried_to_another_zone() -> None:
    assert _carried_to(_refused_by("zone")) == ["n3"]
    assert _carried_to(_refused_by(None)) == ["n2", "n3"]
    assert not actions(CreateShadow, _refused_by("zone", attempted=IN_VAIN))
    known = {("uid-team-a-p", GPU): frozenset({"n1", "n2"})}
    assert plan(_refused_by("zone"), NOW).refused_nodes == known, "also when its devices are gone"


def test_the_refused_device_is_kept_meanwhile() -> None:
    """Otherwise it would be given back and made again for ever."""
    idle = ready(idle_since=at(1000))
    for label in ("zone", None):
        snapshot = _refused_by(label, shadows=(idle,), attempted=IN_VAIN)
        assert not actions(Drain, snapshot)
        (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
        assert SPREAD in event.message


def test_one_at_a_time_is_carried_to_another_zone_for_an_owner() -> None:
    (one,) = _refused_by("zone").shares
    snapshot = _refused_by(
        "zone",
        shares=tuple(replace(one, name=f"p{i}", uid=f"uid-p{i}") for i in range(4)),
        shadows=tuple(ready(f"shadow-2-{i}") for i in range(2)),
        free_since={(GPU, "n1"): (at(20),) * 4},
    )
    assert len(actions(CreateShadow, snapshot)) == 1


def test_a_node_in_which_it_was_refused_before_is_not_tried_again() -> None:
    nodes = (*ZONES, node("n4", "north"))
    before = {("uid-team-a-p", GPU): frozenset({"n3"})}
    assert _carried_to(_refused_by("zone", nodes=nodes, refused_nodes=before)) == ["n4"]


def test_nodes_without_the_label_are_refused_one_by_one() -> None:
    unlabelled = tuple(replace(one, labels=frozenset()) for one in ZONES)
    assert _carried_to(_refused_by("zone", nodes=unlabelled)) == ["n2", "n3"]


def test_where_no_other_zone_has_cards_another_node_is_tried() -> None:
    for last in (node("n3", "west", available=False), replace(ZONES[2], cards={})):
        (made,) = actions(CreateShadow, _refused_by("zone", nodes=(*ZONES[:2], last)))
        assert made.needs.excluded_nodes == {"n1"}


def test_a_zone_of_very_many_nodes_is_not_excluded() -> None:
    """Each takes a line in the shadow pod's spec."""
    many = [node(f"e{number}", "east") for number in range(256)]
    for nodes, carried in ((many[:254], False), (many, True)):
        snapshot = _refused_by("zone", nodes=(*ZONES[:1], ZONES[2], *nodes))
        assert ("e0" in _carried_to(snapshot)) == carried


def test_the_scheduler_is_given_time() -> None:
    fresh = _passed(free_since={(GPU, "n1"): (at(5), at(5))})
    assert not actions(CreateShadow, fresh)
    assert plan(fresh, NOW).due == at(-10)
    unseen = _passed(free_since={})
    assert not actions(CreateShadow, unseen)
    assert plan(unseen, NOW).due == at(-15)
    assert plan(unseen, NOW).free == {(GPU, "n1"): 2}


def test_what_was_in_vain_is_not_repeated_and_the_pod_is_told_in_the_schedulers_words() -> None:
    snapshot = _passed(attempted=IN_VAIN)
    assert not actions(CreateShadow, snapshot)
    (event,) = actions(EmitEvent, snapshot)
    assert (event.type, event.reason) == ("Warning", EventReason.NO_NODE_FITS)
    assert "1 Insufficient cpu" in event.message
    assert event.message.startswith("devices are free, but")
    assert (satisfied(snapshot).status, satisfied(snapshot).reason) == ("False", "NoNodeFits")


def test_whom_very_many_nodes_are_refused_is_told_where_to_read_why() -> None:
    nodes = frozenset(f"n{number}" for number in range(3, 260))
    snapshot = _passed(refused_nodes={("uid-team-a-p", GPU): nodes})
    assert not actions(CreateShadow, snapshot)
    (event,) = actions(EmitEvent, snapshot)
    assert (
        "it cannot run on 258 nodes, too many to exclude: the scheduler refuses them (the pod's "
        "condition PodScheduled says why), or a pod there excludes it by anti-affinity"
    ) in event.message


def test_one_shadow_pod_at_a_time_is_carried_for_an_owner() -> None:
    """It is not known whether the next node will do."""
    (one,) = _passed().shares
    snapshot = _passed(
        shares=tuple(replace(one, name=f"p{i}", uid=f"uid-p{i}") for i in range(4)),
        shadows=tuple(ready(f"shadow-2-{i}") for i in range(2)),
        free_since={(GPU, "n1"): (at(20),) * 4},
    )
    assert len(actions(CreateShadow, snapshot)) == 1


def test_what_the_scheduler_refuses_is_kept_all_the_same() -> None:
    """Otherwise it would be released and created again, for ever."""
    quotas = (quota("team-a", idleTimeoutSeconds=5),)
    assert not actions(Drain, _passed(attempted=IN_VAIN, quotas=quotas))


def test_carrying_stays_within_the_quota() -> None:
    start = _passed(quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),))
    used = ready(holders=(("team-a", "q"),), idle_since=None)
    snapshot = replace(start, shadows=(used,), shares=(*start.shares, waiting("q", node="n1")))
    assert not actions(CreateShadow, snapshot)
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert "1 Insufficient cpu" in event.message
    assert "allows 1 shadow pod" in event.message


def _apart(bound: int, spare: int = 2, shadows: tuple[ShadowView, ...] = ()) -> Snapshot:
    """Replicas that are to be apart: that many are bound, one waits."""
    needs = Needs(anti_affinity=APART)
    names = [f"n{number:04}" for number in range(bound + spare)]
    nodes = (node(one) for one in names)
    shares = [waiting(f"web-{n}", needs=needs, node=names[n]) for n in range(bound)]
    return small(
        nodes=tuple(replace(one, labels=one.labels | {(HOSTNAME, one.name)}) for one in nodes),
        shares=(*shares, waiting("web-new", needs=needs)),
        shadows=shadows,
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1000}]),),
    )


def test_very_many_nodes_are_excluded_by_one_line() -> None:
    (made,) = actions(CreateShadow, _apart(bound=300))
    (line,) = made.needs.terms[0].labels
    assert (line.key, line.operator, len(line.values)) == (HOSTNAME, "NotIn", 300)
    assert not made.needs.excluded_nodes
    assert [one.name for one in _apart(bound=300).nodes if fits(made.needs, one)] == [
        "n0300",
        "n0301",
    ]


def _labelled(snapshot: Snapshot) -> Snapshot:
    """The snapshot, with the label that node agents write on their nodes."""
    nodes = snapshot.nodes
    own = tuple(replace(one, labels=one.labels | {(LABEL_NODE, one.name)}) for one in nodes)
    return replace(snapshot, nodes=own)


@pytest.mark.parametrize("bound", [2, 300])
def test_nodes_with_mizars_label_are_excluded_by_it(bound: int) -> None:
    """Karpenter ignores a pod whose affinity has matchFields or a hostname in it."""
    (made,) = actions(CreateShadow, _labelled(_apart(bound=bound)))
    (line,) = made.needs.terms[0].labels
    assert (line.key, line.operator, len(line.values)) == (LABEL_NODE, "NotIn", bound)
    assert not made.needs.excluded_nodes
    assert "matchFields" not in str(node_constraints(made.needs))
    fitting = [one.name for one in _labelled(_apart(bound=bound)).nodes if fits(made.needs, one)]
    assert fitting == [f"n{bound:04}", f"n{bound + 1:04}"]


def test_a_shadow_pod_that_excludes_all_nodes_by_label_is_waited_for() -> None:
    """It waits for a node that an autoscaler adds; no second one is created beside it."""
    before = _labelled(_apart(bound=2, spare=0))
    (made,) = actions(CreateShadow, before)
    after = apply_plan(before, plan(before, NOW))
    assert not actions(CreateShadow, after)
    assert (LABEL_NODE, "NotIn") in {(one.key, one.operator) for one in made.needs.terms[0].labels}


@pytest.mark.parametrize(("seconds", "created"), [(0, 0), (9, 0), (11, 1)])
def test_a_node_that_is_seen_later_than_the_binding_to_it_is_no_reason_for_another_shadow_pod(
    seconds: float, created: int
) -> None:
    """Pods are bound to a node that an autoscaler has added as soon as it is ready. An autoscaler
    would add a further node for the second shadow pod."""
    bound = shadow(pod=PodView(node="n1", bound_at=at(seconds)))
    new = node("n1", available=False)
    found = small(nodes=(new,), shadows=(bound,), shares=(waiting("p"),))
    assert len(actions(CreateShadow, found)) == created
    assert created or plan(found, NOW).due == at(seconds - 10)


def test_very_many_terms_exclude_nodes_by_name() -> None:
    """Each term would repeat the line with the labels."""
    few, many = (
        Needs(terms=tuple(Term((Requirement("zone", "In", (f"z{n}",)),)) for n in range(count)))
        for count in (2, 30)
    )
    for needs, by_name in ((few, 0), (many, 200)):
        snapshot = _labelled(_apart(bound=200))
        shares = tuple(
            replace(one, needs=replace(one.needs, terms=needs.terms)) if one.node is None else one
            for one in snapshot.shares
        )
        nodes = tuple(replace(one, labels=one.labels | {("zone", "z0")}) for one in snapshot.nodes)
        (made,) = actions(CreateShadow, replace(snapshot, shares=shares, nodes=nodes))
        assert len(made.needs.excluded_nodes) == by_name


def test_a_pod_that_may_go_anywhere_does_not_wait_for_a_shadow_pod_that_may_not() -> None:
    """A DaemonSet's pod names its node. An autoscaler adds none for its shadow pod."""
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    blocked = shadow(pod=PodView(needs=_named("n1"), unschedulable=said))
    shares = (waiting("of-n1", needs=_named("n1")), waiting("p"))
    found = small(nodes=(node("n1", cards=0),), shadows=(blocked,), shares=shares)
    (made,) = actions(CreateShadow, found)
    assert not made.needs.pins


def test_a_pod_waits_for_a_shadow_pod_that_its_pool_pins_to_a_node() -> None:
    """The pool's selector names a node that is not there: another shadow pod would wait as well."""
    selector = {HOSTNAME: "a-typo"}
    own = Needs(selector=frozenset(selector.items()))
    said = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    blocked = shadow(pod=PodView(needs=own, unschedulable=said))
    found = small(
        pools=(pool(nodeSelector=selector),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),),
        nodes=(node("n1"),),
        shadows=(blocked,),
        shares=(waiting("p"),),
    )
    assert not actions(CreateShadow, found)
    assert [one.reason for one in actions(EmitEvent, found) if one.about[1] == "p"] == [
        EventReason.NO_NODE_FITS
    ]


def test_a_node_with_another_ones_label_is_excluded_by_its_name() -> None:
    snapshot = _apart(bound=1)
    nodes = (replace(one, labels=one.labels | {(LABEL_NODE, "other")}) for one in snapshot.nodes)
    (made,) = actions(CreateShadow, replace(snapshot, nodes=tuple(nodes)))
    assert made.needs.excluded_nodes == {"n0000"}


@pytest.mark.parametrize("binding_known", [True, False])
def test_nodes_that_anti_affinity_excludes_need_no_line(binding_known: bool) -> None:
    """Also where only the node agent's report is known, since the watch of pods is behind."""
    names = [f"n{n:04}" for n in range(299)]
    needs = Needs(anti_affinity=APART)
    pods = (PodView(node=one if binding_known else None, needs=needs) for one in names)
    shadows = tuple(
        ready(f"shadow-2-{n}", names[n], sequence=n, pod=pod) for n, pod in enumerate(pods)
    )
    (made,) = actions(CreateShadow, _apart(bound=300, shadows=shadows))
    (line,) = made.needs.terms[0].labels
    assert line.values == ("n0299",)


def test_nodes_without_a_hostname_of_their_own_are_excluded_up_to_a_bound() -> None:
    snapshot = _apart(bound=300)
    alike = (replace(one, labels=frozenset({(HOSTNAME, "same")})) for one in snapshot.nodes)
    assert not actions(CreateShadow, replace(snapshot, nodes=tuple(alike)))


def test_a_pod_that_fits_no_node_gets_one_shadow_pod_and_no_more() -> None:
    snapshot = _apart(bound=2, spare=0)
    (made,) = actions(CreateShadow, snapshot)
    written = {"metadata": {}, "spec": node_constraints(made.needs)}
    needs = replace(needs_of(written), anti_affinity=made.needs.anti_affinity)
    there = (shadow(pod=PodView(needs=needs)),)
    assert not actions(CreateShadow, replace(snapshot, shadows=there))


def test_a_pod_without_constraints_does_not_wait_for_one_that_is_apart_from_all() -> None:
    snapshot = _apart(bound=300, spare=0)
    needs = Needs(anti_affinity=APART)
    there = tuple(
        ready(f"shadow-2-{n}", f"n{n:04}", sequence=n, pod=PodView(node=f"n{n:04}", needs=needs))
        for n in range(300)
    )
    (made,) = actions(CreateShadow, replace(snapshot, shadows=there))
    written = {"metadata": {}, "spec": node_constraints(made.needs)}
    needs = replace(needs_of(written), anti_affinity=made.needs.anti_affinity)
    assert not needs.terms
    refused = PodView(needs=needs, unschedulable="didn't match pod anti-affinity rules")
    apart = (*there, shadow("shadow-2-apart", pod=refused, sequence=300))
    plain = (*snapshot.shares, waiting("plain", count=2))
    (other,) = actions(CreateShadow, replace(snapshot, shadows=apart, shares=plain))
    assert not other.needs.anti_affinity


def test_no_drain_is_cancelled_for_a_pod_that_another_keeps_off_its_node() -> None:
    """The other one waits too, and will get the device of the shadow pod that stays."""
    snapshot = small(
        nodes=(node("n1"),),
        shadows=(ready("shadow-2-a", idle_since=at(1000)), ready("shadow-2-b", idle_since=at(10))),
        shares=(_web("web-1"), _web("web-2")),
    )
    assert len(actions(Drain, snapshot)) == 1
    assert not actions(CancelDrain, snapshot)
    again = apply_plan(snapshot, plan(snapshot, NOW))
    assert not actions(Drain, again) and not actions(CancelDrain, again)


@pytest.mark.parametrize("terms", [(Term(),), (Term(), Term((Requirement("zone", "In", ("x",)),)))])
def test_an_empty_term_of_node_affinity_costs_one_shadow_pod_at_most(
    terms: tuple[Term, ...],
) -> None:
    """`nodeSelectorTerms: [{}]` matches no node: a shadow pod for it must not be created again and
    again until the quota is used up."""
    snapshot = small(shares=(waiting("p", needs=Needs(terms=terms)),))
    first = plan(snapshot, NOW)
    made = [one for one in first.actions if isinstance(one, CreateShadow)]
    assert len(made) <= 1
    refused = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    pods = (PodView(uid="u", needs=one.needs, unschedulable=refused) for one in made)
    shadows = tuple(shadow(one.shadow[1], pod=pod) for one, pod in zip(made, pods, strict=True))
    then = plan(replace(snapshot, shadows=shadows), NOW).actions
    assert not [one for one in then if isinstance(one, CreateShadow | DeleteShadow)]


def test_a_pod_that_no_node_can_ever_run_gets_no_shadow_pod() -> None:
    """As one with more than 256 constraints."""
    many = [{"key": str(key), "operator": "Exists"} for key in range(257)]
    needs = needs_of({"metadata": {}, "spec": {"tolerations": many}})
    snapshot = small(shares=(waiting("p", needs=needs),))
    assert actions(CreateShadow, snapshot) == []
    assert satisfied(snapshot).reason == EventReason.NO_NODE_FITS
