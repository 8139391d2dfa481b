"""Single decisions of the planner, smaller than the golden plans and more of them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mizar_core.models import GPUPoolStatus, GPUQuota, SpotStatus
from mizar_core.names import EventReason, ReapReason, shadow_name
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import (
    CancelDrain,
    CreatePod,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    RemoveFinalizer,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.events import NO_QUOTA_AFTER
from mizar_core.planning.node_fit import Needs, Requirement, Term, fits
from mizar_core.planning.shadow_stage import FAILED_AGAIN_AFTER
from mizar_core.planning.snapshot import (
    CardsOnNode,
    NodeView,
    PodView,
    Refused,
    ShadowView,
    ShareView,
)
from mizar_operator.pod_views import SharePod, pod_view
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from support.planned import actions, satisfied, small, status

EAST = Needs(selector=frozenset({("zone", "east")}))
WEST = Needs(selector=frozenset({("zone", "west")}))
MODEL = "nvidia.com/gpu.product"


def _pool_status(snapshot: Snapshot) -> GPUPoolStatus:
    (found,) = actions(WritePoolStatus, snapshot)
    return found.status


def _draining(**fields: Any) -> ShadowView:
    pod = PodView(phase="Running", node="n1", drain_asked=at(5))
    return ready(ready=False, pod=pod, phase="Draining", **fields)


def _model_node(name: str, model: str) -> NodeView:
    made = node(name)
    return replace(made, labels=made.labels | {(MODEL, model)})


def _models(*models: str) -> tuple[Term, ...]:
    return (Term((Requirement(MODEL, "In", models),)),)


def _any_but(*models: str) -> tuple[Term, ...]:
    others = (Requirement(MODEL, "NotIn", models),) if models else ()
    return (Term((Requirement(MODEL, "Exists"), *others)),)


# Which quota pays, and for what.


def test_the_minimum_is_kept_warm_before_anybody_asks() -> None:
    quotas = (quota("team-a", profiles=[{"devices": 2, "min": 2, "max": 2}]),)
    assert len(actions(CreateShadow, small(quotas=quotas))) == 2


def test_what_is_warm_serves_who_waits() -> None:
    quotas = (quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]),)
    snapshot = small(quotas=quotas, shares=(waiting("a"), waiting("b")))
    assert len(actions(CreateShadow, snapshot)) == 1


def test_more_devices_may_be_waited_for_than_a_status_can_have() -> None:
    shares = (waiting("a", 600_000), waiting("b", 600_000), waiting("c"))
    (status,) = actions(WriteQuotaStatus, small(shares=shares))
    assert status.status.waiting == status.status.profiles[0].waiting == 1_000_000


def test_a_spec_may_be_changed_more_than_a_million_times() -> None:
    """Two controllers that undo each other's changes every few seconds do so within weeks."""
    often = 1_000_001
    changed = quota("team-a"), pool()
    own, of = (one.changed(metadata=one.metadata.changed(generation=often)) for one in changed)
    snapshot = small(quotas=(own,), pools=(of,), shares=(waiting("p"),))
    assert actions(CreateShadow, snapshot)
    assert status(snapshot).observed_generation == often
    assert _pool_status(snapshot).observed_generation == often


def test_all_profiles_may_be_replaced_by_others_while_pods_use_them() -> None:
    """Those in use remain until their pods end, and the new ones serve pods that wait."""
    new = range(20, 30)
    used = [
        ready(f"shadow-{n}-aaaaa", devices=n, healthy=n, holders=(("team-a", f"p{n}"),))
        for n in range(2, 12)
    ]
    snapshot = small(
        pools=(pool(profiles=[{"devices": n, "cards": 1} for n in new]),),
        quotas=(quota("team-a", profiles=[{"devices": n, "max": 1} for n in new]),),
        shadows=tuple(used),
        shares=(waiting("p", resource="team-a.mizar.share/gpu.20"),),
    )
    assert [one.devices for one in actions(CreateShadow, snapshot)] == [20]
    assert [one.devices for one in status(snapshot).profiles] == [*range(2, 12), *new]


def test_a_second_quota_pays_when_the_first_is_exhausted() -> None:
    quotas = (
        quota("team-a", "first", profiles=[{"devices": 2, "max": 1}]),
        quota("team-a", "second", profiles=[{"devices": 2, "max": 1}]),
    )
    shares = tuple(waiting(f"p{i}") for i in range(4))
    made = actions(CreateShadow, small(quotas=quotas, shares=shares))
    assert [one.quota for one in made] == ["first", "second"]


def test_profiles_share_the_ceiling_on_cards() -> None:
    profiles = [{"devices": 2, "max": 4}, {"devices": 4, "max": 4}]
    quotas = (quota("team-a", profiles=profiles, maxCards=3),)
    shares = (
        *(waiting(f"p{i}", 2) for i in range(4)),
        waiting("wide", 4, "team-a.mizar.share/gpu.4"),
    )
    made = actions(CreateShadow, small(quotas=quotas, shares=shares))
    assert sum(one.cards for one in made) == 3


def test_two_pools_of_one_prefix_create_once() -> None:
    """Their share pods ask for the same resource: a plan for one pool includes the other."""
    pools = (
        pool("east", nodeSelector={"zone": "east"}),
        pool("west", nodeSelector={"zone": "west"}),
    )
    quotas = (quota("team-a", "a", "east"), quota("team-a", "b", "west"))
    snapshot = small(pools=pools, quotas=quotas, shares=(waiting("p", needs=WEST),))
    (made,) = actions(CreateShadow, snapshot)
    assert (made.pool, made.needs.selector) == ("west", WEST.selector)


def test_in_a_shared_pool_the_waiting_pods_namespace_pays() -> None:
    snapshot = small(
        pools=(pool(tenancy="Shared"),),
        quotas=(quota("team-a"), quota("team-b")),
        shares=(waiting("p", 2, "mizar.share/gpu.2", "team-b"),),
    )
    (made,) = actions(CreateShadow, snapshot)
    assert made.shadow[0] == "team-b"


def test_no_number_is_used_twice() -> None:
    lost = ready("shadow-2-old", node="gone", sequence=7)
    (made,) = actions(CreateShadow, small(shadows=(lost,), shares=(waiting("p"),)))
    assert made.sequence == 8
    assert made.shadow[1] == shadow_name("uid-team-a-quota", 2, 8)


def test_a_name_that_is_taken_is_left_out() -> None:
    taken = shadow(shadow_name("uid-team-a-quota", 2, 0), quota="other", quota_uid="other")
    snapshot = small(shadows=(taken,), shares=(waiting("p", 2), waiting("q", 2)))
    assert all(one.sequence > 0 for one in actions(CreateShadow, snapshot))


def test_a_name_that_somebody_else_took_is_left_out() -> None:
    taken = ("team-a", shadow_name("uid-team-a-quota", 2, 0))
    snapshot = small(shares=(waiting("a"),), names_taken=frozenset({taken}))
    (made,) = actions(CreateShadow, snapshot)
    assert made.sequence == 1
    assert status(snapshot).next_sequence == 2


def test_a_shadow_pod_whose_pods_name_is_taken_makes_room_for_another() -> None:
    """Also where the quota allows one only."""
    quotas = (quota("team-a", profiles=[{"devices": 2, "max": 1}]),)
    without = replace(shadow(sequence=4, phase=None), pod=None)
    taken = frozenset({without.key})
    parts: dict[str, Any] = {"quotas": quotas, "shadows": (without,), "shares": (waiting("a"),)}
    assert actions(CreatePod, small(**parts))
    snapshot = small(**parts, names_taken=taken)
    assert [one.shadow for one in actions(DeleteShadow, snapshot)] == [without.key]
    (made,) = actions(CreateShadow, snapshot)
    assert made.sequence == 5
    assert not actions(CreatePod, snapshot)


def _going(of: GPUQuota) -> GPUQuota:
    meta = of.metadata.changed(deletion_timestamp=NOW)
    return of.model_copy(update={"metadata": meta})


def test_a_quota_that_is_being_deleted_pays_for_nothing() -> None:
    profiles = [{"devices": 2, "min": 1, "max": 2}]
    going = _going(quota("team-a", profiles=profiles))
    snapshot = small(quotas=(going,), shares=(waiting("p"),))
    assert not actions(CreateShadow, snapshot)
    with_another = replace(snapshot, quotas=(going, quota("team-a", "spare")))
    assert [one.quota for one in actions(CreateShadow, with_another)] == ["spare"]


def test_what_a_quota_that_is_being_deleted_has_goes_once_it_is_idle() -> None:
    going = _going(quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]))
    idle, used = ready("shadow-2-idle"), ready("shadow-2-used", holders=(("team-a", "p"),))
    snapshot = small(quotas=(going,), shadows=(idle, used))
    assert [one.shadow[1] for one in actions(Drain, snapshot)] == ["shadow-2-idle"]
    draining = replace(snapshot, shadows=(_draining(),), shares=(waiting("p"),))
    assert not actions(CancelDrain, draining)


# Where there is room.


def test_free_devices_of_a_cordoned_node_help_nobody() -> None:
    snapshot = small(
        nodes=(node("n1", available=False), node("n2")),
        shadows=(ready(),),
        shares=(waiting("p"),),
    )
    assert len(actions(CreateShadow, snapshot)) == 1
    assert status(snapshot).ready == -1


def test_a_pod_for_another_zone_gets_a_shadow_pod_there() -> None:
    snapshot = small(
        nodes=(node("n1"), node("n2", "west")),
        shadows=(ready(),),
        shares=(waiting("p", needs=WEST),),
    )
    (made,) = actions(CreateShadow, snapshot)
    assert made.needs.selector == WEST.selector


def test_a_label_that_all_nodes_have_is_not_asked_for() -> None:
    snapshot = small(shares=(waiting("p", needs=EAST),))
    (made,) = actions(CreateShadow, snapshot)
    assert made.needs.selector == frozenset()


@pytest.mark.parametrize("first", ["anywhere", "east"])
def test_one_shadow_pod_serves_who_is_choosy_and_who_is_not(first: str) -> None:
    """It is made for the share pod with constraints, whichever came first: made for the other it
    might land elsewhere."""
    ages = {"anywhere": at(1), "east": at(1), first: at(9)}
    shares = (
        waiting("anywhere", created=ages["anywhere"]),
        waiting("east", needs=EAST, created=ages["east"]),
    )
    nodes = (node("n1"), node("n2", "west"))
    (made,) = actions(CreateShadow, small(nodes=nodes, shares=shares))
    assert made.needs.selector == EAST.selector


def test_as_few_shadow_pods_as_selectors_allow() -> None:
    """Three pods want the east and three the west, and two may go anywhere."""
    nodes = (node("n1"), node("n2", "west"))
    shares = (
        *(waiting(f"a{i}") for i in range(2)),
        *(waiting(f"e{i}", needs=EAST) for i in range(3)),
        *(waiting(f"w{i}", needs=WEST) for i in range(3)),
    )
    made = actions(CreateShadow, small(nodes=nodes, shares=shares))
    selectors = [one.needs.selector for one in made]
    assert sorted(map(sorted, selectors)) == sorted(map(sorted, [EAST.selector, WEST.selector] * 2))


def test_pods_that_ask_for_many_devices_are_placed_before_pods_that_ask_for_few() -> None:
    """The devices are used as 3 + 1 and 3 + 1, and not as 1 + 1, 3 and 3."""
    wide = "team-a.mizar.share/gpu.4"
    shares = (
        *(waiting(f"a{i}", 1, wide, created=at(9)) for i in range(2)),
        *(waiting(f"b{i}", 3, wide) for i in range(2)),
    )
    quotas = (quota("team-a", profiles=[{"devices": 4, "max": 4}]),)
    assert len(actions(CreateShadow, small(quotas=quotas, shares=shares))) == 2


def test_a_pod_that_contradicts_the_pool_gets_nothing() -> None:
    snapshot = small(
        pools=(pool(nodeSelector={"zone": "east"}),), shares=(waiting("p", needs=WEST),)
    )
    assert not actions(CreateShadow, snapshot)
    (event,) = [one for one in actions(EmitEvent, snapshot) if one.kind == "Pod"]
    assert "zone=west" in event.message


def test_devices_come_back_when_an_agent_restarts() -> None:
    """They are not offered for the moment, but a bound pod holds them: no second shadow pod is made
    for it."""
    away = ready(ready=False, holders=(("team-a", "p"),), idle_since=None, heard_at=at(10))
    bound = replace(waiting("p"), node="n1")
    snapshot = small(shadows=(away,), shares=(bound, waiting("q")))
    assert not actions(CreateShadow, snapshot)
    assert (status(snapshot).in_use, status(snapshot).pipelining) == (1, 1)


def test_unhealthy_devices_are_no_devices() -> None:
    snapshot = small(shadows=(ready(healthy=1),), shares=(waiting("p", 2),))
    assert len(actions(CreateShadow, snapshot)) == 1


def test_only_models_of_the_pool() -> None:
    nodes = (_model_node("n1", "NVIDIA-A100-SXM4-40GB"), _model_node("n2", "Tesla-T4"))
    pools = (pool(cardModels=["NVIDIA A100*"]),)
    (made,) = actions(CreateShadow, small(pools=pools, nodes=nodes, shares=(waiting("p"),)))
    assert made.needs.terms == _any_but("Tesla-T4")


@pytest.mark.parametrize(
    ("pattern", "is_one"),
    [
        ("NVIDIA-A100-*", True),
        ("NVIDIA A100-SXM4-40GB", True),
        ("nvidia a100*", True),
        ("*A[13]00*", True),
        ("*", True),
        ("A100*", False),
        ("NVIDIA-A100", False),
        ("NVIDIA-H100*", False),
    ],
)
def test_patterns_of_models(pattern: str, is_one: bool) -> None:
    """What fits is counted; the affinity excludes all else that there is, exactly as the node's
    label has it, and names what the pool names in full."""
    label = "NVIDIA-A100-SXM4-40GB"
    snapshot = small(
        pools=(pool(cardModels=[pattern]),),
        nodes=(_model_node("n1", label),),
        shares=(waiting("p"),),
    )
    assert _pool_status(snapshot).cards.total == (4 if is_one else 0)
    name = pattern.replace(" ", "-")
    wanted = _models(name) if "*" not in pattern else _any_but(*([] if is_one else [label]))
    assert [one.needs.terms for one in actions(CreateShadow, snapshot)] == [wanted]


def test_a_model_that_is_named_in_full_is_asked_for_as_the_label_has_it() -> None:
    """Also if no node has it yet: an autoscaler may create one."""
    parts = {"pools": (pool(cardModels=["nvidia h100", "T4"]),), "shares": (waiting("p"),)}
    (made,) = actions(CreateShadow, small(**parts))
    assert made.needs.terms == _models("T4", "nvidia-h100")
    (made,) = actions(CreateShadow, small(nodes=(_model_node("n1", "NVIDIA-H100"),), **parts))
    assert made.needs.terms == _models("NVIDIA-H100", "T4", "nvidia-h100")


def test_a_model_that_no_node_has_yet_is_not_excluded() -> None:
    """There are A100s and T4s; H100s would come with a node group that is at zero."""
    nodes = (_model_node("n1", "NVIDIA-A100"), _model_node("n2", "Tesla-T4"))
    h100 = _model_node("n3", "NVIDIA-H100")
    for patterns in (["*A100*", "*H100*"], ["*H100*"]):
        parts = {"pools": (pool(cardModels=patterns),), "shares": (waiting("p"),)}
        (made,) = actions(CreateShadow, small(nodes=nodes, **parts))
        assert fits(made.needs, h100) and not fits(made.needs, nodes[1])


def test_cards_of_an_unknown_model_are_no_model_of_the_pool() -> None:
    """No affinity leads a shadow pod to a node without the label, so its cards don't count."""
    for patterns, total in ((["*"], 0), ([], 4)):
        found = small(pools=(pool(cardModels=patterns),), nodes=(node("n1"),))
        assert _pool_status(found).cards.total == total


def test_a_new_model_of_the_pool_makes_a_waiting_shadow_pod_anew() -> None:
    """A pod's affinity can't be changed, and the pod may be waiting for models that do not
    exist."""
    stuck = shadow(pod=PodView(unschedulable="no node", needs=Needs(terms=_any_but("T4"))))
    snapshot = small(
        pools=(pool(cardModels=["A100*"]),),
        nodes=(_model_node("n1", "T4"), _model_node("n2", "V100")),
        shadows=(stuck,),
        shares=(waiting("p"),),
    )
    assert actions(DeleteShadow, snapshot)
    assert [one.needs.terms for one in actions(CreateShadow, snapshot)] == [_any_but("T4", "V100")]
    gone = replace(snapshot, nodes=())
    assert not actions(DeleteShadow, gone), "it excludes one more than it needs to"
    widened = replace(snapshot, pools=(pool(cardModels=["A100*", "T4*"]),))
    assert actions(DeleteShadow, widened)
    assert [one.needs.terms for one in actions(CreateShadow, widened)] == [_any_but("V100")]


@pytest.mark.parametrize("shares", [(), (waiting("p"),)], ids=["kept warm", "for a share pod"])
def test_a_narrower_pool_makes_a_waiting_shadow_pod_anew(shares: tuple[ShareView, ...]) -> None:
    """The next card that becomes free outside the pool would be shared all the same."""
    stuck = shadow(pod=PodView(unschedulable="no free card"))
    snapshot = small(
        pools=(pool(nodeSelector={"zone": "west"}),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]),),
        nodes=(node("n1"), node("n2", zone="west")),
        shadows=(stuck,),
        shares=shares,
    )
    assert actions(DeleteShadow, snapshot)
    assert [one.needs.selector for one in actions(CreateShadow, snapshot)] == [WEST.selector]
    fits = replace(stuck, pod=PodView(unschedulable="no free card", needs=WEST))
    assert not actions(DeleteShadow, replace(snapshot, shadows=(fits,)))


def test_a_pod_that_selects_nodes_itself_does_not_have_its_shadow_pod_made_anew() -> None:
    own = Needs(selector=frozenset({("arch", "amd64")}))
    of = pool(nodeSelector={"zone": "east"})
    start = small(pools=(of,), nodes=(), shares=(waiting("p", needs=own),))
    (made,) = actions(CreateShadow, start)
    assert made.needs.selector == EAST.selector | own.selector
    stuck = shadow(pod=PodView(unschedulable="no node", needs=made.needs))
    assert not actions(DeleteShadow, replace(start, shadows=(stuck,)))


def test_a_pod_that_excludes_models_itself_does_not_have_its_shadow_pod_made_anew() -> None:
    own = Needs(terms=(Term((Requirement(MODEL, "NotIn", ("A100",)),)),))
    start = small(pools=(pool(cardModels=["A100*"]),), shares=(waiting("p", needs=own),))
    (made,) = actions(CreateShadow, start)
    stuck = shadow(pod=PodView(unschedulable="no node", needs=made.needs))
    assert not actions(DeleteShadow, replace(start, shadows=(stuck,)))


def test_a_shadow_pod_on_a_card_of_another_model_is_never_offered() -> None:
    """The scheduler was quicker than the label that says which model it is."""
    nodes = (_model_node("n1", "T4"), _model_node("n2", "A100"))
    bound = PodView("uid-pod", "Running", "n1", at(1))
    parts = {"pools": (pool(cardModels=["A100*"]),), "nodes": nodes, "shares": (waiting("p"),)}
    snapshot = small(shadows=(shadow(pod=bound),), **parts)
    assert actions(Drain, snapshot)
    assert [one.needs.terms for one in actions(CreateShadow, snapshot)] == [_any_but("T4")]
    drained = ready(ready=False, pod=replace(bound, drain_asked=at(1)), draining=True)
    assert not actions(CancelDrain, small(shadows=(drained,), **parts))
    offered = small(shadows=(ready(pod=bound),), **parts)
    assert not actions(Drain, offered), "it goes when nobody has used it for a while"
    unknown = replace(nodes[0], labels=frozenset())
    assert not actions(Drain, replace(snapshot, nodes=(unknown, nodes[1])))


def _pool_ready(memory: str | None, mib: str | None, **spec: Any) -> tuple[str, str, str]:
    profile = {"devices": 2, "cards": 1} | ({"memory": memory} if memory else {})
    made = node("n1")
    if mib is not None:
        made = replace(made, labels=made.labels | {("nvidia.com/gpu.memory", mib)})
    pools = (pool(**{"profiles": [profile], **spec}),)
    (ready,) = _pool_status(small(pools=pools, nodes=(made,))).conditions
    return ready.status, ready.reason, ready.message


def test_a_pool_without_cards_says_what_to_check() -> None:
    without = replace(node("n1"), cards={})
    (state,) = _pool_status(small(nodes=(without,))).conditions
    assert (state.status, state.reason) == ("False", "NoCards")
    assert state.message == (
        "no node that nodeSelector and cardModels allow offers nvidia.com/gpu: check them, and"
        " that the device plugin or the DRA driver of the cards runs"
    )


def test_a_pool_without_cards_says_which_right_the_operator_lacks_to_see_them() -> None:
    without = replace(node("n1"), cards={})

    def said(**spec: Any) -> str:
        parts = {"nodes": (without,), "dra_refusal": "GET resourceslices: you cannot list them"}
        (state,) = _pool_status(small(pools=(pool(**spec),), **parts)).conditions
        assert state.reason == "NoCards"
        return state.message

    assert said().endswith(
        "the DRA driver of the cards runs; cards of gpu.nvidia.com, NVIDIA's DRA driver, do not"
        " count, since the operator lacks a right, which the chart's ClusterRole has: GET"
        " resourceslices: you cannot list them"
    )
    assert "lacks a right" in said(physicalResource="nvidia.com/mig-1g.5gb")
    assert said(physicalResource="nvidia.com/pgpu").endswith("runs")


def test_a_pool_whose_cards_no_class_offers_says_what_is_missing() -> None:
    without = [replace(node(name), cards={}) for name in ("n1", "n2", "n3")]
    elsewhere = replace(without[2], labels=without[2].labels | {("rack", "7")})
    parts: dict[str, Any] = {"nodes": (*without[:2], elsewhere)}
    offered = frozenset({"n1", "n2", "n3", "gone"})

    def said(**spec: Any) -> tuple[str, str]:
        snapshot = small(pools=(pool(**spec),), nodes_without_class=offered, **parts)
        (state,) = _pool_status(snapshot).conditions
        return state.reason, state.message

    assert said() == (
        "NoCards",
        "gpu.nvidia.com, NVIDIA's DRA driver, offers the cards of 3 nodes, but no DeviceClass has"
        " the extendedResourceName nvidia.com/gpu, by which pods request them: set it in the"
        " DeviceClass gpu.nvidia.com (Kubernetes 1.36 or newer keeps it, 1.34 and 1.35 only with"
        " the feature gate DRAExtendedResource)",
    )
    assert "the cards of 1 node," in said(nodeSelector={"rack": "7"})[1]
    for spec in ({"nodeSelector": {"rack": "8"}}, {"physicalResource": "nvidia.com/pgpu"}):
        assert said(**spec)[1].startswith("no node that nodeSelector and cardModels allow offers")


def test_the_dra_driver_says_which_cards_there_are_where_no_label_does() -> None:
    told = CardsOnNode(2, 2, "Tesla-T4", 15360)
    bare = replace(node("n1"), labels=frozenset(), cards={"nvidia.com/gpu": told})
    labels = frozenset({("nvidia.com/gpu.product", "A100"), ("nvidia.com/gpu.memory", "40960")})
    labelled = replace(bare, name="n2", labels=labels)
    found = _pool_status(small(nodes=(bare, labelled)))
    assert [one.model for one in found.models] == ["A100", "Tesla-T4"]

    def reason(*nodes: NodeView) -> str:
        profile = {"devices": 2, "cards": 1, "memory": "10Gi"}
        pools = (pool(profiles=[profile]),)
        return _pool_status(small(pools=pools, nodes=nodes)).conditions[0].reason

    assert reason(bare) == "ProfileTooLarge"
    assert reason(bare, labelled) == "CardsFound"


def test_memory_that_fits_no_card_of_the_pool_is_said() -> None:
    assert _pool_ready("8193Mi", "16384") == (
        "False",
        "ProfileTooLarge",
        "profile 2: an even share of the pool's largest known card, 16384 MiB, is 8192 MiB per"
        " device, less than its memory 8193Mi: lower that, or take fewer devices",
    )
    assert _pool_ready("8Gi", "16384")[:2] == ("True", "CardsFound")
    assert _pool_ready(None, "16384")[:2] == ("True", "CardsFound")


def test_node_agents_say_how_large_cards_without_a_label_are() -> None:
    """Where GPU feature discovery does not run, this is known once a shadow pod holds a card."""
    profile = {"devices": 2, "cards": 1, "memory": "40Gi"}

    def said(*shadows: ShadowView, **mib: str) -> str:
        found = {"n1": "", "n2": ""} | mib
        nodes = tuple(
            replace(node(name), labels=frozenset({("nvidia.com/gpu.memory", size)}))
            for name, size in found.items()
        )
        pools = (pool(profiles=[profile]),)
        (made,) = _pool_status(small(pools=pools, nodes=nodes, shadows=shadows)).conditions
        return f"{made.reason}: {made.message}"

    too_large = (
        "ProfileTooLarge: profile 2: an even share of the pool's largest known card, 24576 MiB, is"
        " 12288 MiB per device, less than its memory 40Gi"
    )
    fine = "CardsFound: 8 cards, 8 healthy"
    small_card = ready(card_mib=24576)
    other_small = ready("shadow-2-bbbbb", node="n2", card_mib=24576, sequence=1)
    assert said() == fine
    assert said(ready()) == fine, "not reported yet"
    assert said(small_card).startswith(f"{fine}; profile 2: the cards of node n1 are too small")
    assert said(small_card, n2="81920").startswith(f"{fine}; ")
    assert said(small_card, other_small).startswith(too_large)
    assert said(small_card, n2="24576").startswith(too_large)
    assert said(small_card, ready("shadow-2-bbbbb", card_mib=81920)) == fine
    large = ready("shadow-2-bbbbb", node="n2", card_mib=81920, sequence=1)
    assert "the cards of node n1 are too small: 24576 MiB are" in said(small_card, large)
    assert "the cards of node n1 are too small" in said(small_card, n2="81920")
    assert said(small_card, n1="81920") == fine, "the label counts first"
    assert said(replace(small_card, pool="other")) == fine


def test_scaled_memory_may_be_larger_than_the_card() -> None:
    oversubscribed = {"memoryScaling": "2", "isolation": {"memory": "Oversubscribe"}}
    assert _pool_ready("16Gi", "16384", **oversubscribed)[0] == "True"
    assert _pool_ready("16385Mi", "16384", **oversubscribed)[0] == "False"


def test_shares_too_small_for_any_program_are_said() -> None:
    assert "is 63 MiB per device, too little for any CUDA program" in _pool_ready(None, "127")[2]
    assert _pool_ready(None, "128")[0] == "True"


def test_memory_that_some_cards_of_the_pool_lack_is_said() -> None:
    def said(**mib: str) -> str:
        nodes = tuple(
            replace(node(name), labels=frozenset({("nvidia.com/gpu.memory", size)}))
            for name, size in mib.items()
        )
        pools = (pool(profiles=[{"devices": 2, "cards": 1, "memory": "20Gi"}]),)
        (ready,) = _pool_status(small(pools=pools, nodes=nodes)).conditions
        assert (ready.status, ready.reason) == ("True", "CardsFound")
        return ready.message

    assert said(n1="81920", n2="40960", n3="") == "12 cards, 12 healthy"
    assert said(n1="81920", n2="16384") == (
        "8 cards, 8 healthy; profile 2: the cards of node n2 are too small: 16384 MiB are 8192 MiB"
        " per device, less than its memory 20Gi"
    )
    assert "node n1 and 1 other node are" in said(n3="81920", n2="24576", n1="16384")


def test_small_cards_beside_large_ones_may_be_too_small_for_any_program() -> None:
    nodes = tuple(
        replace(node(name), labels=frozenset({("nvidia.com/gpu.memory", size)}))
        for name, size in (("n1", "81920"), ("n2", "127"))
    )
    (ready,) = _pool_status(small(nodes=nodes)).conditions
    assert ready.message.endswith("less than any CUDA program needs")


@pytest.mark.parametrize("mib", [None, "", "many", "-1"])
def test_nothing_is_said_of_cards_of_unknown_size(mib: str | None) -> None:
    assert _pool_ready("80Gi", mib)[0] == "True"


# What is drained and deleted.


def test_a_pod_whose_init_containers_had_more_devices_keeps_no_other_shadow_pod() -> None:
    """An init container had two devices, the main one has one: no pod is about to get the other."""
    used = ready("shadow-2-used", holders=(("team-a", "p"),), idle_since=None)
    gone = ready("shadow-2-gone", pod=None, deleting=True, healthy=0)
    bound = replace(waiting("p", 2), node="n1")
    snapshot = small(shadows=(used, gone), shares=(bound,))
    assert not actions(RemoveFinalizer, snapshot)
    later = replace(snapshot, shares=(replace(bound, after_init=1),))
    assert [one.shadow[1] for one in actions(RemoveFinalizer, later)] == ["shadow-2-gone"]


def test_a_broken_shadow_pod_is_drained_and_replaced() -> None:
    quotas = (quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]),)
    broken = ready(broken=True, healthy=0, ready=False)
    snapshot = small(quotas=quotas, shadows=(broken,))
    assert actions(Drain, snapshot)
    assert actions(CreateShadow, snapshot)


def _failed(bound: float, **fields: Any) -> ShadowView:
    """A shadow pod that was started then and whose cards have all failed."""
    pod = PodView(phase="Running", node="n1", bound_at=at(bound))
    return ready(broken=True, healthy=0, ready=False, pod=pod, **fields)


def test_failed_cards_are_not_asked_for_again_and_again() -> None:
    """NVIDIA's plugin knows nothing of the failure, and gives the same card to the next shadow
    pod: there was one every four seconds."""
    quotas = (quota("team-a", profiles=[{"devices": 2, "max": 1}]),)
    failed = _failed(bound=10)
    snapshot = small(quotas=quotas, shadows=(failed,), shares=(waiting("p"),))
    found = plan(snapshot, NOW)
    assert not [one for one in found.actions if isinstance(one, (Drain, CreateShadow))]
    assert found.due == at(10) + FAILED_AGAIN_AFTER
    (event,) = (one for one in found.actions if isinstance(one, EmitEvent))
    assert event.reason == "NoCardFree" and failed.name in event.message
    later = replace(snapshot, shadows=(_failed(bound=46),))
    assert actions(Drain, later)


@pytest.mark.parametrize(
    ("devices", "most", "reason"),
    [(4, 2, "NoCardFree"), (2, 1, "QuotaExceeded")],
    ids=["of another profile", "beside one in use"],
)
def test_failed_cards_are_named_where_they_alone_are_in_the_way(
    devices: int, most: int, reason: str
) -> None:
    """Those of another profile were said to be replaced. Where the quota has been lowered since, no
    other one is tried."""
    profiles = [{"devices": 2, "max": most}, {"devices": 4, "max": 1}]
    quotas = (quota("team-a", profiles=profiles, maxCards=3),)
    failed = _failed(bound=10, name="shadow-0", devices=devices)
    held = {"holders": (("team-a", "user"),), "in_use": True, "idle_since": None}
    users = (waiting("user", 2, node="n1"), waiting("p"))
    snapshot = small(quotas=quotas, shadows=(failed, ready(**held)), shares=users)
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert event.reason == reason
    assert (failed.name in event.message) == (reason == "NoCardFree")


@pytest.mark.parametrize("going", [{"deleting": True}, {"drain_asked": at(5)}])
def test_a_shadow_pod_that_goes_anyway_is_not_said_to_keep_its_failed_cards(
    going: dict[str, Any],
) -> None:
    """Its place is free in seconds. Otherwise nobody would plan when the 45 s are over."""
    quotas = (quota("team-a", profiles=[{"devices": 2, "max": 1}]),)
    failed = _failed(bound=10)
    assert failed.pod is not None
    leaving = replace(failed, pod=replace(failed.pod, **going))
    snapshot = small(quotas=quotas, shadows=(leaving,), shares=(waiting("p"),))
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert (event.reason, event.message) == (
        "WaitingForShadow",
        "no node where it can run has enough free devices, and a shadow pod of quota quota that it "
        "cannot use is being replaced",
    )


def test_nobody_waits_for_devices_of_a_shadow_pod_in_use_whose_cards_have_all_failed() -> None:
    """It stays until its users end, which a program that hangs may never do."""
    pod = PodView(phase="Running", node="n1", bound_at=at(600), in_use=True)
    held = {"holders": (("team-a", "user"),), "in_use": True, "idle_since": None}
    failed = ready(broken=True, healthy=0, ready=False, heard_at=at(300), pod=pod, **held)
    user = waiting("user", node="n1")
    snapshot = small(shadows=(failed,), shares=(user, waiting("p")))
    for heard in (at(300), at(1)):
        told = replace(failed, heard_at=heard)
        assert actions(CreateShadow, replace(snapshot, shadows=(told,)))
        alone = replace(snapshot, shadows=(told,), shares=(waiting("p"),))
        assert actions(CreateShadow, alone), "its user's pod is not known yet"
    partly = replace(failed, draining=True)
    called_off = replace(snapshot, shadows=(partly,))
    assert not actions(CreateShadow, called_off), "those of the other card are coming back"


@pytest.mark.parametrize(
    "parts",
    [
        {"pools": (pool(profiles=[{"devices": 4, "cards": 1}]),)},
        {"quotas": (quota("team-a", profiles=[{"devices": 2, "max": 0}]),)},
        {},
    ],
    ids=["of a former profile", "over its quota", "not needed"],
)
def test_a_shadow_pod_in_use_whose_pod_seems_to_have_no_node_stays(parts: dict[str, Any]) -> None:
    """The node agent has reported its users, but the watch of pods is behind. Its deletion, which
    is only planned, would evict them."""
    seen = PodView(phase="Pending", unschedulable="0/2 nodes are available")
    held = ready(pod=seen, holders=(("team-a", "p"),), in_use=True, idle_since=None)
    bound = replace(waiting("p"), node="n1")
    made = plan(small(shadows=(held,), shares=(bound,), **parts), NOW).actions
    assert not [one for one in made if isinstance(one, (DeleteShadow, EvictShare))]


def test_a_shadow_pod_whose_binding_is_not_known_yet_is_where_its_node_agent_reports_it() -> None:
    seen = PodView(phase="Pending", unschedulable="0/2 nodes are available")
    snapshot = small(shadows=(ready(pod=seen, phase=None),), shares=(waiting("p"),))
    (status,) = actions(WriteShadowStatus, snapshot)
    assert status.phase == "Ready"
    assert not actions(CreateShadow, snapshot), "its devices are free"
    assert _pool_status(snapshot).cards.held == 1
    gone = replace(snapshot, nodes=(node("n2"),))
    assert actions(DeleteShadow, gone), "its node is gone"
    untold = ready(node=None, pod=PodView(phase="Running", node="n1", bound_at=at(5)))
    assert _pool_status(replace(snapshot, shadows=(untold,))).cards.held == 1
    two_cards = ready(devices=4)
    assert _pool_status(replace(snapshot, shadows=(two_cards,))).cards.held == 2
    ended = ready(pod=None, deleting=True, finalizer=False)
    for one in (ended, shadow(), shadow(pod=PodView())):
        assert _pool_status(replace(snapshot, shadows=(one,))).cards.held == 0


def test_no_drain_is_cancelled_for_devices_of_a_failed_card() -> None:
    """One of two cards has failed, and the pod that waits needs the devices of both: the plan
    drained the shadow pod and kept it again and again."""
    partly = ready(broken=True, healthy=1, idle_since=at(600))
    snapshot = small(shadows=(partly,), shares=(waiting("p", 2),))
    first = plan(snapshot, NOW)
    assert len([one for one in first.actions if isinstance(one, Drain)]) == 1
    assert not first.unsettled
    draining = small(shadows=(_draining(broken=True, healthy=1),), shares=(waiting("p", 2),))
    assert not actions(CancelDrain, draining)
    assert actions(CancelDrain, replace(draining, shares=(waiting("p"),)))


def test_a_drain_is_cancelled_for_a_pod_that_needs_other_free_devices_of_the_node_too() -> None:
    """One of the drained shadow pod's two cards has failed: two of its devices are left, and the
    node has one more. No card is free for another shadow pod, so the pod waited for ever."""
    asked = PodView(phase="Running", node="n1", drain_asked=at(5))
    of = {"devices": 4, "idle_since": at(600)}
    partly = ready(broken=True, healthy=2, ready=False, pod=asked, phase="Draining", **of)
    user = waiting("user", 3, partly.resource, node="n1")
    used = ready("shadow-4-bbbbb", holders=(user.key,) * 3, in_use=True, **of)
    pods = [waiting(name, 3, partly.resource) for name in ("p", "q")]
    snapshot = small(
        quotas=(quota("team-a", profiles=[{"devices": 4, "max": 2}]),),
        shadows=(partly, used),
        shares=(user, pods[0]),
    )
    assert actions(CancelDrain, snapshot)
    assert not actions(CancelDrain, replace(snapshot, shares=(user, waiting("u", 1, node="n1"))))
    full = replace(user, count=4)
    assert not actions(CancelDrain, replace(snapshot, shares=(full, pods[0])))
    other = replace(partly, name="shadow-4-ccccc", uid="uid-c")
    both = replace(
        snapshot,
        quotas=(quota("team-a", profiles=[{"devices": 4, "max": 3}]),),
        shadows=(partly, used, other),
        shares=(user, *pods),
    )
    assert len(actions(CancelDrain, both)) == 1, "the device that is left is counted once"
    away = replace(other, name="shadow-4-ddddd", uid="uid-d", node="n2", broken=False, healthy=4)
    away = replace(away, pod=replace(asked, node="n2", drain_asked=at(9)))
    roomy = (quota("team-a", profiles=[{"devices": 4, "max": 5}]),)
    nodes = (node("n1"), node("n2"))
    both = replace(both, quotas=roomy, nodes=nodes, shadows=(partly, used, other, away))
    assert [one.shadow[1] for one in actions(CancelDrain, both)] == [partly.name, away.name]
    assert not actions(CreateShadow, both)


def test_a_pod_for_which_a_drain_is_cancelled_gets_no_shadow_pod_as_well() -> None:
    """Though it needs other devices of the node, too."""
    asked = PodView(phase="Running", node="n1", drain_asked=at(5))
    partly = ready(devices=4, broken=True, healthy=2, ready=False, pod=asked, phase="Draining")
    user = waiting("user", 3, partly.resource, node="n1")
    used = ready("shadow-4-bbbbb", devices=4, holders=(user.key,) * 3, in_use=True)
    snapshot = small(
        quotas=(quota("team-a", profiles=[{"devices": 4, "max": 4}]),),
        nodes=(node("n1", cards=8),),
        shadows=(partly, used),
        shares=(user, waiting("p", 3, partly.resource)),
    )
    assert actions(CancelDrain, snapshot) and not actions(CreateShadow, snapshot)


def test_a_drain_is_cancelled_for_a_pod_whose_shadow_pod_finds_no_card() -> None:
    blocked = shadow("shadow-2-bbbbb", pod=PodView(unschedulable="no free card"))
    snapshot = small(shadows=(_draining(), blocked), shares=(waiting("p"),))
    assert actions(CancelDrain, snapshot) and not actions(CreateShadow, snapshot)


def test_no_drain_is_cancelled_for_a_pod_that_asks_for_more_than_a_shadow_pod_has() -> None:
    user = waiting("user", node="n1")
    used = ready("shadow-2-bbbbb", holders=(user.key,), in_use=True)
    shadows = (_draining(), used)
    for count, cancels in ((2, 1), (3, 0)):
        snapshot = small(shadows=shadows, shares=(user, waiting("p", count)))
        assert len(actions(CancelDrain, snapshot)) == cancels


def test_a_drain_is_cancelled_once_however_many_pods_wait() -> None:
    drained = _draining(devices=4)
    shares = tuple(
        waiting(name, count, drained.resource)
        for name, count in zip("pqrs", (2, 1, 1, 1), strict=True)
    )
    quotas = (quota("team-a", profiles=[{"devices": 4, "max": 2}]),)
    snapshot = small(quotas=quotas, shadows=(drained,), shares=shares)
    assert len(actions(CancelDrain, snapshot)) == len(actions(CreateShadow, snapshot)) == 1


def test_a_drain_that_is_too_small_for_one_pod_is_cancelled_for_another() -> None:
    """The latest drain comes first."""
    late = PodView(phase="Running", node="n1", drain_asked=at(1))
    small_one = ready(devices=4, broken=True, healthy=1, ready=False, pod=late, phase="Draining")
    large_one = _draining(name="shadow-4-bbbbb", devices=4)
    shares = (waiting("p", 4, large_one.resource), waiting("q", 1, large_one.resource))
    snapshot = small(
        quotas=(quota("team-a", profiles=[{"devices": 4, "max": 3}]),),
        shadows=(small_one, large_one),
        shares=shares,
    )
    assert len(actions(CancelDrain, snapshot)) == 2 and not actions(CreateShadow, snapshot)


def test_nobody_is_drained_who_would_be_needed_at_once() -> None:
    snapshot = small(
        pools=(pool(idleTimeoutSeconds=0),), shadows=(ready(),), shares=(waiting("p", 2),)
    )
    assert not actions(Drain, snapshot)


IMPATIENT = (quota("team-a", profiles=[{"devices": 2, "max": 4}], idleTimeoutSeconds=5),)


def test_what_is_promised_stays_and_the_rest_goes() -> None:
    """There are two idle shadow pods, and a waiting pod needs a device of either."""
    shadows = (ready("shadow-2-a"), ready("shadow-2-b"))
    snapshot = small(quotas=IMPATIENT, shadows=shadows)
    assert len(actions(Drain, snapshot)) == 2
    assert len(actions(Drain, replace(snapshot, shares=(waiting("p"),)))) == 1
    assert not actions(Drain, replace(snapshot, shares=(waiting("p", 2), waiting("q"))))


def test_what_comes_soon_is_not_what_is_promised_now() -> None:
    """The scheduler binds the pod at once; the devices that start are not there yet."""
    shadows = (ready("shadow-2-a"), ready("shadow-2-b", ready=False, healthy=0))
    snapshot = small(quotas=IMPATIENT, shadows=shadows)
    assert actions(Drain, snapshot)
    assert not actions(Drain, replace(snapshot, shares=(waiting("p"),)))


def test_what_is_free_now_is_promised_to_who_waits_for_more_to_come() -> None:
    shadows = (ready("shadow-2-a"), ready("shadow-2-b", ready=False, healthy=0))
    snapshot = small(quotas=IMPATIENT, shadows=shadows, shares=(waiting("p", 3),))
    assert not actions(Drain, snapshot)


def test_what_is_promised_on_another_node_keeps_nothing_here() -> None:
    nodes = (node("n1"), node("n2", "west"))
    shadows = (ready("shadow-2-a"), ready("shadow-2-b", "n2"))
    snapshot = small(
        quotas=IMPATIENT, nodes=nodes, shadows=shadows, shares=(waiting("p", needs=WEST),)
    )
    assert [one.shadow[1] for one in actions(Drain, snapshot)] == ["shadow-2-a"]


def test_the_quotas_own_timeout_counts() -> None:
    quotas = (quota("team-a", idleTimeoutSeconds=5),)
    assert actions(Drain, small(quotas=quotas, shadows=(ready(),)))


def test_a_plan_is_due_when_the_timeout_ends() -> None:
    planned = plan(small(shadows=(ready(),)), NOW)
    assert planned.due == at(10) + timedelta(seconds=300)


def test_a_drain_is_called_off_when_somebody_got_a_device_after_all() -> None:
    assert actions(CancelDrain, small(shadows=(_draining(holders=(("team-a", "p"),)),)))


def test_a_drain_is_called_off_for_demand_even_when_it_is_done() -> None:
    snapshot = small(shadows=(_draining(draining=True, drained=True),), shares=(waiting("p", 2),))
    assert actions(CancelDrain, snapshot)
    assert not actions(DeleteShadow, snapshot)
    assert not actions(CreateShadow, snapshot)


def test_a_drain_is_called_off_though_another_pod_cannot_use_it() -> None:
    """The pod with the most constraints comes first, and finds nothing among the drains."""
    shares = (waiting("far", needs=EAST), waiting("near"))
    nodes = (node("n1", "west"), node("n2", "east"))
    snapshot = small(nodes=nodes, shadows=(_draining(draining=True),), shares=shares)
    assert [one.shadow[1] for one in actions(CancelDrain, snapshot)] == ["shadow-2-aaaaa"]


def test_all_devices_on_their_way_to_a_node_are_counted() -> None:
    coming = {"ready": False, "phase": "Pending", "idle_since": None, "healthy": 0}
    shadows = tuple(ready(f"shadow-2-{name}", **coming) for name in "abc")
    shares = tuple(waiting(f"p{number}") for number in range(6))
    assert not actions(CreateShadow, small(shadows=shadows, shares=shares))
    assert actions(CreateShadow, small(shadows=shadows, shares=(*shares, waiting("more"))))


@pytest.mark.parametrize(
    ("one", "goes"),
    [
        (shadow(pod=PodView(unschedulable="no free card")), True),
        (shadow(pod=PodView(unschedulable="no free card"), contested=True), False),
        (ready(), True),
        (ready(ready=False, draining=True), False),
    ],
    ids=["waits", "is in use after all", "is idle", "is drained, which was called off"],
)
def test_what_no_quota_allows_goes_once_it_may(one: ShadowView, goes: bool) -> None:
    snapshot = small(quotas=(quota("team-a", profiles=[{"devices": 4, "max": 1}]),))
    found = replace(snapshot, shadows=(one,))
    assert bool(actions(DeleteShadow, found) or actions(Drain, found)) == goes


def test_what_a_lower_ceiling_of_cards_leaves_idle_goes() -> None:
    shadows = tuple(ready(f"shadow-2-{name}") for name in "abc")

    def drained(most: int) -> list[str]:
        quotas = (quota("team-a", profiles=[{"devices": 2, "max": 4}], maxCards=most),)
        found = actions(Drain, small(quotas=quotas, shadows=shadows))
        assert {one.reason for one in found} <= {ReapReason.OVER_QUOTA}
        return [one.shadow[1] for one in found]

    assert [len(drained(most)) for most in (3, 2, 1)] == [0, 1, 2]


WARM = quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}])


@pytest.mark.parametrize("drained", [False, True])
def test_a_drain_is_called_off_for_the_minimum(drained: bool) -> None:
    """Otherwise another shadow pod would be made beside it."""
    snapshot = small(quotas=(WARM,), shadows=(_draining(draining=True, drained=drained),))
    assert [one.shadow[1] for one in actions(CancelDrain, snapshot)] == ["shadow-2-aaaaa"]
    assert not actions(CreateShadow, snapshot)
    assert not actions(DeleteShadow, snapshot)


def test_the_minimum_takes_no_more_drains_back_than_it_needs() -> None:
    shadows = (_draining(name="shadow-2-a"), _draining(name="shadow-2-b"))
    assert len(actions(CancelDrain, small(quotas=(WARM,), shadows=shadows))) == 1


def test_no_other_quotas_drain_is_called_off_for_the_minimum() -> None:
    spare = quota("team-a", "spare")
    theirs = _draining(quota="spare", quota_uid="uid-team-a-spare")
    snapshot = small(quotas=(WARM, spare), shadows=(theirs,))
    assert not actions(CancelDrain, snapshot)
    assert [one.quota for one in actions(CreateShadow, snapshot)] == ["quota"]


def test_a_drain_goes_on_where_the_ceiling_leaves_the_minimum_no_card() -> None:
    """The quota's one card is taken by what is in use."""
    profiles = [{"devices": 2, "min": 1, "max": 2}, {"devices": 4, "max": 1}]
    quotas = (quota("team-a", profiles=profiles, maxCards=2),)
    wide = ready("shadow-4-wide", devices=4, holders=(("team-a", "p"),), idle_since=None)
    snapshot = small(quotas=quotas, shadows=(_draining(), wide))
    assert not actions(CancelDrain, snapshot)
    assert not actions(CreateShadow, snapshot)


def test_no_new_drain_before_the_agent_has_seen_the_end_of_the_last() -> None:
    quotas = (quota("team-a", idleTimeoutSeconds=5),)
    snapshot = small(quotas=quotas, shadows=(ready(draining=True, drained=True),))
    assert not actions(Drain, snapshot)


def test_what_waits_for_cards_that_nobody_needs_is_dropped() -> None:
    stuck = shadow(pod=PodView(unschedulable="no cards"))
    assert actions(DeleteShadow, small(shadows=(stuck,)))


def test_a_shadow_pod_of_an_earlier_quota_of_that_name_goes() -> None:
    assert actions(Drain, small(shadows=(ready(quota_uid="an earlier one"),)))


def test_an_orphan_of_an_earlier_quota_of_that_name_is_left_to_its_successor() -> None:
    orphan = ready(quota_uid="")
    assert not actions(Drain, small(shadows=(orphan,)))
    assert status(small(shadows=(orphan,))).ready == 2
    assert actions(Drain, small(shadows=(orphan,), quotas=()))


def test_the_pod_is_made_when_only_the_shadow_pod_was() -> None:
    half = replace(shadow(), pod=None, phase=None)
    assert actions(CreatePod, small(shadows=(half,)))


def test_the_finalizer_waits_for_those_who_still_use_it() -> None:
    gone = replace(ready(deleting=True, holders=(("team-a", "p"),), idle_since=None), pod=None)
    user = replace(waiting("p"), node="n1")
    assert not actions(RemoveFinalizer, small(shadows=(gone,), shares=(user,)))
    assert actions(RemoveFinalizer, small(shadows=(replace(gone, holders=()),)))


# Refusals of the API server.

REFUSED = (Refused(("team-a", "quota"), 2, "exceeded quota: gpus"),)


def test_what_is_refused_is_not_created_until_it_is_time_and_everybody_is_told() -> None:
    snapshot = small(shares=(waiting("p"),), refused=REFUSED)
    assert not actions(CreateShadow, snapshot)
    (event,) = actions(EmitEvent, snapshot)
    assert (event.about, event.reason) == (("team-a", "p"), EventReason.SHADOW_REFUSED)
    assert "exceeded quota: gpus" in event.message
    condition = satisfied(snapshot)
    assert (condition.status, condition.reason) == ("False", "ShadowRefused")
    assert "exceeded quota: gpus" in condition.message
    assert status(snapshot).waiting == 1
    assert actions(CreateShadow, replace(snapshot, refused=()))


def test_a_shadow_pod_whose_pod_is_refused_says_so_and_is_tried_again() -> None:
    half = replace(shadow(), pod=None, phase=None)
    snapshot = small(shadows=(half,), shares=(waiting("p"),), refused=REFUSED)
    assert not actions(CreatePod, snapshot)
    assert not actions(CreateShadow, snapshot)
    (written,) = actions(WriteShadowStatus, snapshot)
    assert written.phase is None, "a phase says that there was a pod"
    assert "exceeded quota: gpus" in written.scheduled.message
    assert satisfied(snapshot).reason == "ShadowRefused"
    told = {(one.kind, one.reason) for one in actions(EmitEvent, snapshot)}
    assert told == {(kind, EventReason.SHADOW_REFUSED) for kind in ("Pod", "ShadowPod")}
    assert actions(CreatePod, replace(snapshot, refused=()))


def test_a_minimum_that_the_api_server_refuses_is_told() -> None:
    quotas = (quota("team-a", profiles=[{"devices": 2, "min": 1, "max": 2}]),)
    half = replace(shadow(), pod=None, phase=None)
    snapshot = small(quotas=quotas, shadows=(half,), refused=REFUSED)
    assert satisfied(snapshot).reason == "ShadowRefused"


def test_what_is_refused_and_not_needed_goes() -> None:
    half = replace(shadow(), pod=None, phase=None)
    assert actions(DeleteShadow, small(shadows=(half,), refused=REFUSED))


def test_another_quota_pays_for_what_the_first_is_refused() -> None:
    quotas = (quota("team-a"), quota("team-a", "spare"))
    snapshot = small(quotas=quotas, shares=(waiting("p"),), refused=REFUSED)
    assert [one.quota for one in actions(CreateShadow, snapshot)] == ["spare"]


def test_nobody_waits_beside_a_satisfied_quota() -> None:
    """This holds also where devices are free and the scheduler has not said so yet."""
    snapshot = small(shadows=(ready(),), shares=(waiting("p"),))
    assert (satisfied(snapshot).status, satisfied(snapshot).reason) == ("False", "Scheduling")


def test_a_pod_that_asks_for_a_profile_that_no_quota_has_waits_for_the_first_quota() -> None:
    other = quota("team-a", "second", profiles=[{"devices": 8, "max": 2}])
    snapshot = small(
        pools=(pool(profiles=[{"devices": n, "cards": 1} for n in (2, 4, 8)]),),
        quotas=(other, quota("team-a", "first")),
        shares=(waiting("a", 3, "team-a.mizar.share/gpu.4"),),
    )
    first, second = (plan(snapshot, NOW).quotas["team-a", name] for name in ("first", "second"))
    assert (first.waiting, first.ready, second.waiting) == (3, -3, 0)
    assert [one.devices for one in first.profiles] == [2]
    assert satisfied(snapshot).reason == "UnknownProfile"
    # Its owner may not know what the quotas have.
    has = (
        "share pod a waits: no quota of namespace team-a (first has 2, second has 8) has profile 4"
    )
    assert satisfied(snapshot).message.startswith(has)


def test_an_unknown_profile_does_not_hide_who_is_served_by_others() -> None:
    """In a Shared pool, devices of another tenant's shadow pod may be free for it."""
    shared = "mizar.share/gpu.4"
    made = ready("shadow-4-aaaaa", devices=4, namespace="team-b", resource=shared)
    quotas = (quota("team-a"), quota("team-b", profiles=[{"devices": 4, "max": 1}]))
    snapshot = small(
        pools=(pool(tenancy="Shared"),),
        quotas=quotas,
        shadows=(made,),
        shares=(waiting("a", resource=shared),),
    )
    assert (status(snapshot).waiting, satisfied(snapshot).reason) == (1, "Scheduling")


@pytest.mark.parametrize("profiles", [[], [{"devices": 2, "max": 1}]])
def test_a_quota_whose_spot_pods_wait_is_not_satisfied(profiles: list[dict[str, int]]) -> None:
    def borrowing(cards: int) -> Snapshot:
        made = quota("team-a", profiles=profiles, spot={"max": 2})
        spot = SpotStatus(in_use=1, waiting=cards)
        return small(quotas=(made.changed(status=made.status.changed(spot=spot)),))

    assert satisfied(borrowing(0)).status == "True"
    found = satisfied(borrowing(1))
    assert (found.status, found.reason) == ("False", "SpotWaiting")
    assert "1 card:" in found.message


# Pods of several containers.


def test_a_pod_gets_devices_of_several_shadow_pods_where_a_node_has_enough() -> None:
    """The scheduler counts devices per node, whichever shadow pod they are of."""
    shadows = (ready("shadow-2-a"), ready("shadow-2-b"))
    snapshot = small(shadows=shadows, shares=(waiting("p", 3),))
    assert not actions(EmitEvent, snapshot)
    quotas = (quota("team-a", idleTimeoutSeconds=5),)
    assert not actions(Drain, replace(snapshot, quotas=quotas)), "both are needed"


def test_no_shadow_pod_is_made_for_who_asks_for_more_than_one_has() -> None:
    snapshot = small(shadows=(ready(),), shares=(waiting("p", 3),))
    assert not actions(CreateShadow, snapshot)
    (event,) = actions(EmitEvent, snapshot)
    assert event.reason is EventReason.TOO_MANY_DEVICES
    assert satisfied(snapshot).reason == "TooManyDevices"


def test_three_containers_of_one_device_each_are_told_what_becomes_of_them() -> None:
    """Of one shadow pod of two devices they cannot all have one: they wait, with an event that
    says why. Where two on a node have enough they run, without an event."""
    container = {"resources": {"limits": {"team-a.mizar.share/gpu.2": "1"}}}
    meta = {"name": "p", "namespace": "team-a", "uid": "u", "creationTimestamp": NOW.isoformat()}
    spec = {"containers": [{"name": name, **container} for name in "abc"]}
    pod = pod_view({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    assert isinstance(pod, SharePod)
    ((_, share),) = pod.demands

    def told(*shadows: ShadowView) -> list[EventReason]:
        snapshot = small(shadows=shadows, shares=(share,))
        snapshot = replace(snapshot, nodes=(*snapshot.nodes, node("n2")))
        return [one.reason for one in actions(EmitEvent, snapshot)]

    first = ready("shadow-2-a")
    assert told(first) == [EventReason.TOO_MANY_DEVICES]
    assert told(first, ready("shadow-2-b", "n2")) == [EventReason.TOO_MANY_DEVICES]
    assert not told(first, ready("shadow-2-b"))


# Messages for users.


def test_each_of_two_pools_on_the_same_nodes_holds_its_own_cards() -> None:
    pools = (pool("mine"), pool("theirs"))
    quotas = (quota("team-a", "a", "mine"), quota("team-a", "b", "theirs"))
    shadows = (
        ready("shadow-2-a", pool="mine", quota="a", quota_uid=""),
        ready("shadow-2-b", pool="theirs", quota="b", quota_uid=""),
        ready("shadow-2-c", pool="theirs", quota="b", quota_uid=""),
    )
    written = actions(WritePoolStatus, small(pools=pools, quotas=quotas, shadows=shadows))
    assert {one.pool: one.status.cards.held for one in written} == {"mine": 1, "theirs": 2}


def test_a_silent_agent_is_named() -> None:
    silent = ready(ready=False, heard_at=at(100))
    snapshot = small(shadows=(silent,), shares=(waiting("p"),))
    told = {
        one.about: one
        for one in actions(EmitEvent, snapshot)
        if one.reason == EventReason.NODE_AGENT_SILENT
    }
    assert told.keys() == {silent.key, ("team-a", "p")}
    assert {one.type for one in told.values()} == {"Warning"}
    found = satisfied(snapshot)
    assert found.reason == "NodeAgentSilent"
    assert {one.message for one in told.values()} == {found.message}
    assert "check that mizar-nodeagent and the pod's container run there" in found.message


def test_a_pod_at_a_limit_is_told_to_wait_for_others_to_end_only_where_that_helps() -> None:
    used = ready(holders=(("team-a", "other"),))
    for limits, helps in (({"max": 1}, True), ({"max": 0}, False)):
        quotas = (quota("team-a", profiles=[{"devices": 2, **limits}]),)
        shares = (waiting("other", 2, node="n1"), waiting("p"))
        snapshot = small(quotas=quotas, shadows=(used,), shares=shares)
        (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
        assert event.reason == EventReason.QUOTA_EXCEEDED
        assert ("the pod runs once another one ends" in event.message) == helps


def test_nobody_is_told_that_no_device_is_free_where_one_is_on_a_cordoned_node() -> None:
    """`kubectl describe shadowpods` and the quota's READY show it, and the pod may exclude the node
    by itself as well."""
    snapshot = small(
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),),
        shadows=(ready(holders=(("team-a", "other"),)),),
        shares=(waiting("other", node="n1"), waiting("p")),
        nodes=(node("n1", available=False), node("n2")),
    )
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert event.reason == EventReason.QUOTA_EXCEEDED
    assert event.message.startswith(
        "no node where it can run has enough free devices, and quota quota allows 1 shadow pod of"
    )


def test_an_agent_that_says_why_it_offers_nothing_is_quoted() -> None:
    why = "card GPU-a is not known: NVML does not list it"
    stuck = ready(ready=False, heard_at=at(100), not_ready_because=why)
    snapshot = small(shadows=(stuck,), shares=(waiting("p"),))
    messages = {one.about: one.message for one in actions(EmitEvent, snapshot)}
    for message in (satisfied(snapshot).message, messages[stuck.key], messages["team-a", "p"]):
        assert message.endswith(f"its devices are not offered: {why}")


def test_a_pod_is_not_told_of_silence_while_another_agent_is_in_time() -> None:
    silent = ready(ready=False, heard_at=at(100))
    other = ready("shadow-2-other", ready=False, heard_at=at(1))
    snapshot = small(shadows=(silent, other), shares=(waiting("p"),))
    (event,) = (one for one in actions(EmitEvent, snapshot) if one.kind == "Pod")
    assert event.reason == EventReason.WAITING_FOR_SHADOW


def test_a_quota_whose_other_limits_leave_no_room_for_its_least_says_so() -> None:
    profiles = [{"devices": 2, "min": 1, "max": 2}, {"devices": 4, "max": 1}]
    wide = {"resource": "team-a.mizar.share/gpu.4", "devices": 4, "cards": 2}
    used = ready("shadow-4-a", holders=(("team-a", "p"),), **wide)
    quotas = (quota("team-a", profiles=profiles, maxCards=2),)
    found = satisfied(small(quotas=quotas, shadows=(used,)))
    assert (found.status, found.reason) == ("False", "MinimumNotWarm")
    assert found.message == (
        "0 of at least 1 shadow pod of profile 2 are kept warm: the quota's other limits leave no"
        " room for more"
    )


def test_an_agent_that_answered_a_moment_ago_is_not_silent() -> None:
    snapshot = small(shadows=(ready(ready=False, heard_at=at(1)),))
    assert EventReason.NODE_AGENT_SILENT not in {one.reason for one in actions(EmitEvent, snapshot)}


def test_the_same_is_said_once() -> None:
    snapshot = small(
        shares=(waiting("p", namespace="team-c", resource="team-c.mizar.share/gpu.2"),)
    )
    (event,) = actions(EmitEvent, snapshot)
    assert event.reason is EventReason.NO_QUOTA
    for told in (event.subject, event.wording):
        assert not actions(EmitEvent, replace(snapshot, announced=frozenset({told})))


def test_idle_devices_that_are_not_offered_for_the_moment_stay_for_whoever_waits() -> None:
    """Otherwise drain and cancellation would follow each other for ever."""
    given = small(
        pools=(pool(idleTimeoutSeconds=0),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),),
        shadows=(ready(healthy=0),),
    )
    assert len(actions(Drain, given)) == 1
    waited_for = replace(given, shares=(waiting("p"),))
    assert not plan(waited_for, NOW).unsettled
    assert not actions(Drain, waited_for)


def test_that_a_young_pod_has_no_quota_is_said_a_moment_later() -> None:
    """Its quota may have been applied together with it."""
    young = waiting("p", namespace="team-c", resource="team-c.mizar.share/gpu.2", created=NOW)
    snapshot = small(shares=(young,))
    assert not [one for one in actions(EmitEvent, snapshot) if one.kind == "Pod"]
    made = plan(snapshot, NOW)
    assert made.waiting["team-c", "NoQuota"] == [young.uid]
    assert made.due == NOW + NO_QUOTA_AFTER
    later = plan(snapshot, NOW + NO_QUOTA_AFTER).actions
    (event,) = [one for one in later if isinstance(one, EmitEvent)]
    assert event.reason is EventReason.NO_QUOTA


def test_new_words_are_held_back_while_others_were_told_of_late() -> None:
    share = waiting("p", namespace="team-c", resource="team-c.mizar.share/gpu.2")
    (event,) = actions(EmitEvent, small(shares=(share,)))
    earlier = replace(event, message="something else")
    of_late = frozenset({earlier.subject, earlier.wording})
    planned = plan(small(shares=(share,), announced=of_late), NOW)
    assert not [one for one in planned.actions if isinstance(one, EmitEvent)]
    assert planned.held_back == {event.subject}
    long_ago = frozenset({earlier.wording})
    assert actions(EmitEvent, small(shares=(share,), announced=long_ago)) == [event]
    same = frozenset({event.subject, event.wording})
    assert not plan(small(shares=(share,), announced=same), NOW).held_back


def test_a_quota_whose_pod_waits_for_anothers_stuck_shadow_pod_says_no_card_is_free() -> None:
    """This happens in a Shared pool; the quota's own figures would say that all is well."""
    stuck = shadow(
        namespace="team-b",
        resource="mizar.share/gpu.2",
        pod=PodView(unschedulable="2 Insufficient nvidia.com/gpu"),
        quota_uid="uid-team-b-quota",
    )
    snapshot = small(
        pools=(pool(tenancy="Shared"),),
        quotas=(quota("team-a"), quota("team-b")),
        shadows=(stuck,),
        shares=(waiting("p", resource="mizar.share/gpu.2"),),
    )
    assert satisfied(snapshot).reason == "NoCardFree"


@pytest.mark.parametrize(("priority", "outranked"), [(99, False), (100, False), (101, True)])
def test_a_pod_that_waits_behind_pods_of_lower_priority_is_told_why(
    priority: int, outranked: bool
) -> None:
    lacking = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    stuck = shadow(pod=PodView(unschedulable=lacking, priority=100))
    snapshot = small(shadows=(stuck,), shares=(waiting("p", priority=priority),))
    (event,) = (
        one for one in actions(EmitEvent, snapshot) if one.reason == EventReason.NO_CARD_FREE
    )
    said = (
        " (the shadow pod has priority 100, the share pod 101: pods that request whole cards with"
        " a priority in between go first; set a higher priorityClassName in pool pool)"
    )
    start = f"no card is free for shadow pod {stuck.name}: {lacking}"
    assert event.message == start + (said if outranked else "")


def test_what_keeps_a_shadow_pod_from_a_node_is_not_always_a_card() -> None:
    full = "0/2 nodes are available: 2 Insufficient cpu."
    stuck = shadow(pod=PodView(unschedulable=full))
    snapshot = small(shadows=(stuck,), shares=(waiting("p"),))
    found = satisfied(snapshot)
    assert (found.reason, found.message) == (
        "NoNodeFits",
        f"1 shadow pod waiting for a node: {full}",
    )
    events = {(str(one.reason), one.message) for one in actions(EmitEvent, snapshot)}
    assert ("NoNodeFits", f"shadow pod {stuck.name} finds no node: {full}") in events


def test_a_condition_keeps_its_time_while_it_lasts() -> None:
    first = small(shares=(waiting("p"),))
    now = status(first)
    before = now.changed(
        conditions=tuple(one.changed(last_transition_time=at(1000)) for one in now.conditions)
    )
    quotas = (first.quotas[0].model_copy(update={"status": before}),)
    later = status(replace(first, quotas=quotas))
    assert {one.last_transition_time for one in later.conditions} == {at(1000)}


def test_a_shadow_pod_without_pool_and_pod_is_let_go() -> None:
    left = replace(shadow(resource="", deleting=True), pod=None)
    planned = actions(RemoveFinalizer, small(pools=(), quotas=(), shadows=(left,)))
    assert [one.shadow for one in planned] == [left.key]


def test_a_share_pod_that_is_gone_does_not_keep_a_lost_shadow_pod() -> None:
    """A node that was set up anew under the same name has an agent that knows nothing of the
    pod."""
    gone = replace(ready(in_use=True, holders=(("team-a", "p1"),), idle_since=None), pod=None)
    assert [one.shadow for one in actions(DeleteShadow, small(shadows=(gone,)))] == [gone.key]
    there = replace(waiting("p1"), node="n1")
    assert not actions(DeleteShadow, small(shadows=(gone,), shares=(there,)))


def test_a_pod_of_a_pool_that_was_made_again_as_shared_must_be_created_again() -> None:
    """Its resource has its namespace in the name, and no quota can ever serve it."""
    told = actions(EmitEvent, small(pools=(pool(tenancy="Shared"),), shares=(waiting("p"),)))
    (why,) = [one for one in told if one.kind == "Pod"]
    assert why.reason == EventReason.NO_POOL
    assert "create the pod again" in why.message
