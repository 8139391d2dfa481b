"""Gates of share pods that may preempt others: closed only while devices are on their way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateQuota, CreateShadow, Drain, LetPreempt
from mizar_core.planning.events import NO_QUOTA_AFTER
from mizar_core.planning.exclusion import PartName
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.planning_errors import plan_isolated
from mizar_core.planning.postponed import JUDGED_MAX
from mizar_core.planning.preemption_gates import (
    BLOCKED_FOR,
    FREED_FOR,
    OPENED_AT_ONCE,
    REST_AFTER,
    YIELDS_FOR,
)
from mizar_core.planning.preemption_gates import OPENED_AFTER as LATEST
from mizar_core.planning.snapshot import PodView, ShadowView, ShareView
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from support.planned import actions, small
from support.projection import apply_plan

CARDS = "nvidia.com/gpu"
MADE_ROOM = frozenset({"room/uid-team-a-shadow-2-aaaaa"})
NO_CARDS = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
SEEN = {"uid-team-a-p": at(2)}
MANY = quota("team-a", profiles=[{"devices": 2, "max": 1000}])
OTHER = "team-a.mizar.share/gpu.4"


def _gated(name: str = "p", **fields: Any) -> ShareView:
    return waiting(name, gated=True, **fields)


def _opened(snapshot: Snapshot) -> list[str]:
    return [one.uid for one in actions(LetPreempt, snapshot)]


def test_where_devices_are_free() -> None:
    snapshot = small(shadows=(ready(),), shares=(_gated(),))
    (opened,) = actions(LetPreempt, snapshot)
    assert (opened.share, opened.uid) == (("team-a", "p"), "uid-team-a-p")
    assert not actions(LetPreempt, apply_plan(snapshot, plan(snapshot, NOW)))


def test_not_while_a_shadow_pod_is_created_and_starts() -> None:
    snapshot = small(shares=(_gated(),))
    assert actions(CreateShadow, snapshot) and not _opened(snapshot)
    created = apply_plan(snapshot, plan(snapshot, NOW))
    assert not _opened(created)
    (made,) = created.shadows
    starting = replace(made, pod=PodView("uid-pod", "Running", "n1", at(1)))
    assert not _opened(replace(created, shadows=(starting,)))


def test_a_minute_after_the_operator_saw_it_at_the_latest() -> None:
    """Not after its creation: another program's gate may have held it back for longer."""
    first = small(shadows=(shadow(),), shares=(_gated(created=at(3600)),))
    assert not _opened(first)
    assert plan(first, NOW).due == NOW + LATEST
    for seconds, opened in ((59, False), (60, True)):
        seen = replace(first, gated_since={"uid-team-a-p": at(seconds)})
        assert bool(_opened(seen)) is opened


@pytest.mark.parametrize(
    "parts",
    [
        {"quotas": ()},
        {"quotas": (quota("team-a", profiles=[{"devices": 2, "max": 0}]),)},
        {"shadows": (shadow(pod=PodView(unschedulable=NO_CARDS)),), "gated_since": SEEN},
        {"pools": ()},
    ],
    ids=["no quota", "quota exhausted", "no cards", "no pool"],
)
def test_where_no_shadow_pod_can_serve_it(parts: dict[str, Any]) -> None:
    """It may preempt the pods that have the devices."""
    assert _opened(small(**{"shares": (_gated(),), **parts})) == ["uid-team-a-p"]


def test_a_pod_of_two_resources_waits_for_both() -> None:
    profiles = [{"devices": 2, "max": 2}, {"devices": 4, "max": 2}]
    both = (_gated(), replace(_gated(), resource=OTHER))
    free = (ready(), ready("shadow-4-bbbbb", devices=4))
    rules = (quota("team-a", profiles=profiles),)
    assert not _opened(small(quotas=rules, shadows=free[:1], shares=both))
    assert _opened(small(quotas=rules, shadows=free, shares=both)) == ["uid-team-a-p"]


FOUR = [{"devices": 2, "max": 2}, {"devices": 4, "max": 1}]


def test_not_while_an_idle_shadow_pod_makes_room_in_the_quota() -> None:
    rules = (quota("team-a", profiles=FOUR, maxCards=2),)
    idle = tuple(ready(f"shadow-2-{n}", sequence=n) for n in range(2))
    snapshot = small(quotas=rules, shadows=idle, shares=(replace(_gated(), resource=OTHER),))
    assert actions(Drain, snapshot) and not _opened(snapshot)
    draining = apply_plan(snapshot, plan(snapshot, NOW))
    assert not _opened(draining)
    leaving = tuple(
        replace(one, deleting=True, ready=False, pod=PodView(node="n1", deleting=True))
        for one in idle
    )
    assert not _opened(replace(snapshot, shadows=leaving))
    held = tuple(replace(one, holders=(("team-a", "u"),), idle_since=None) for one in idle)
    assert _opened(replace(snapshot, shadows=held))


def _blocked(idle: ShadowView, **parts: Any) -> Snapshot:
    """The pod's shadow pod finds no card, and another shadow pod has one."""
    blocked = shadow(pod=PodView(unschedulable=NO_CARDS), sequence=1)
    rules = (quota("team-a", profiles=FOUR),)
    given = {"shadows": (blocked, idle), "shares": (_gated(),), "gated_since": SEEN}
    return small(quotas=rules, **{**given, **parts})


IDLE = ready("shadow-4-idle", devices=4, sequence=2, idle_since=at(50))
LEAVING = replace(IDLE, deleting=True, ready=False, pod=PodView(node="n1", deleting=True))


def test_not_while_an_idle_shadow_pod_gives_up_its_card() -> None:
    snapshot = _blocked(IDLE)
    assert actions(Drain, snapshot) and not _opened(snapshot)
    assert not _opened(apply_plan(snapshot, plan(snapshot, NOW)))
    assert plan(_blocked(LEAVING), NOW).freed == {CARDS}
    assert not _opened(_blocked(LEAVING))


def test_not_before_the_scheduler_has_seen_that_the_card_is_free() -> None:
    """Also if another pool's shadow pod gave it up."""
    gone = _blocked(IDLE, freed_until={CARDS: NOW + FREED_FOR}, attempted=MADE_ROOM)
    assert not _opened(gone) and plan(gone, NOW).due == NOW + FREED_FOR
    assert _opened(replace(gone, freed_until={CARDS: NOW}))
    assert _opened(replace(gone, freed_until={"nvidia.com/mig-1g.5gb": NOW + FREED_FOR}))
    assert _opened(replace(gone, gated_since={"uid-team-a-p": at(60)}))


def test_not_before_other_pools_could_give_up_a_card() -> None:
    first = _blocked(IDLE, gated_since={}, attempted=MADE_ROOM)
    assert not _opened(first) and plan(first, NOW).due == NOW + BLOCKED_FOR
    assert _opened(replace(first, gated_since=SEEN))


USED = replace(IDLE, holders=(("team-a", "u"),), idle_since=None)
DRAINING = PodView("uid-pod", "Running", "n1", at(60), drain_asked=at(5))


@pytest.mark.parametrize(
    "other",
    [
        USED,
        replace(USED, pod=DRAINING),
        replace(LEAVING, contested=True),
        replace(LEAVING, pod=PodView(node="n2", deleting=True), node="n2"),
        replace(IDLE, ready=False, pod=replace(DRAINING, drain_asked=at(3000)), node=None),
    ],
    ids=["in use", "drained in use", "asked live: in use", "on a dead node", "of a silent agent"],
)
def test_where_no_card_is_being_freed(other: ShadowView) -> None:
    nodes = (node("n1"), node("n2", available=False))
    snapshot = _blocked(other, nodes=nodes, attempted=MADE_ROOM)
    assert _opened(snapshot) and not plan(snapshot, NOW).freed


def test_where_its_shadow_pod_waits_for_something_else_than_a_card() -> None:
    for_cpu = shadow(pod=PodView(unschedulable="0/1 nodes: 1 Insufficient cpu"), sequence=1)
    assert _opened(_blocked(LEAVING, shadows=(for_cpu, LEAVING)))


def test_not_for_the_devices_that_a_pod_without_a_gate_takes() -> None:
    """The scheduler has that one in its queue already; the gated one would preempt it."""
    other = waiting("other", 1, created=at(5))
    starting = ready("shadow-2-bbbbb", sequence=1, ready=False, healthy=0)
    snapshot = small(shadows=(ready(), starting), shares=(_gated(count=2), other))
    assert not _opened(snapshot) and plan(snapshot, NOW).due == NOW + YIELDS_FOR
    bound = replace(snapshot, shares=(_gated(count=2), replace(other, node="n1")))
    assert not _opened(bound), "its own are on their way"
    key = ("team-a.mizar.share/gpu.2", "n1")
    late = replace(snapshot, free_since={key: (at(50), at(10))})
    assert _opened(late), "the scheduler has not given them to the other one"
    assert not _opened(replace(late, free_since={key: (at(50), at(9))}))
    full = ready("shadow-2-ccccc", "n2", sequence=2)
    users = replace(waiting("user", 2), node="n2")
    beside = replace(late, shadows=(*late.shadows, full), nodes=(node("n1"), node("n2")))
    assert _opened(replace(beside, shares=(*late.shares, users))), "nothing became free there"
    west = replace(other, needs=Needs(selector=frozenset({("zone", "west")})))
    for calm in (replace(other, gated=True), replace(other, resource=OTHER), west):
        assert _opened(replace(snapshot, shares=(_gated(count=2), calm))), calm


def test_where_a_pod_without_a_gate_needs_more_than_is_free() -> None:
    one, other = ready(healthy=1), waiting("other", 2, created=at(5))
    starting = ready("shadow-2-bbbbb", sequence=1, ready=False, healthy=0)
    assert _opened(small(shadows=(one, starting), shares=(_gated(created=at(50)), other)))


def test_not_while_the_namespace_gets_a_quota() -> None:
    shared = {"tenancy": "Shared", "resourcePrefix": "mizar.share"}
    default = {"profiles": [{"devices": 2, "max": 2}], "namespaceSelector": {}}
    snapshot = small(
        pools=(pool(defaultQuota=default, **shared),),
        quotas=(),
        shares=(_gated(resource="mizar.share/gpu.2"),),
        namespaces={"team-a": {}},
    )
    assert actions(CreateQuota, snapshot) and not _opened(snapshot)
    young = _gated(resource="mizar.share/gpu.2", created=at(1))
    applied = replace(snapshot, pools=(pool(**shared),), shares=(young,))
    assert not _opened(applied) and plan(applied, NOW).due == at(1) + NO_QUOTA_AFTER
    assert _opened(replace(applied, shares=(replace(young, created=NOW - NO_QUOTA_AFTER),)))
    ahead = replace(young, created=at(-300))
    seen = {"uid-team-a-p": NOW - NO_QUOTA_AFTER}
    assert _opened(replace(applied, shares=(ahead,), gated_since=seen)), "clocks differ"


def test_of_very_many_some_are_opened_in_each_plan() -> None:
    """The oldest first: each takes a call, for which the tenants' other actions wait."""
    many = tuple(_gated(f"p{n}", created=at(60 + n)) for n in range(OPENED_AT_ONCE + 10))
    snapshot = small(shares=many, quotas=(quota("team-a", profiles=[{"devices": 2, "max": 0}]),))
    opened = _opened(snapshot)
    assert len(opened) == OPENED_AT_ONCE and "uid-team-a-p0" not in opened
    made = plan(snapshot, NOW)
    assert made.due == NOW + REST_AFTER
    assert len(_opened(apply_plan(snapshot, made))) == 10


def test_not_while_the_api_server_refuses_to_open_it() -> None:
    """Others are opened meanwhile."""
    shares = (_gated(), _gated("q"))
    snapshot = small(shadows=(ready(),), shares=shares, unopenable=frozenset({"uid-team-a-p"}))
    assert _opened(snapshot) == ["uid-team-a-q"]


def test_first_of_those_whose_devices_are_free() -> None:
    """A tenant's many pods that can have none do not hold them up."""
    many = tuple(_gated(f"p{n}", resource=OTHER, created=at(60)) for n in range(OPENED_AT_ONCE))
    snapshot = small(shadows=(ready(),), shares=(*many, _gated("late")))
    assert "uid-team-a-late" in _opened(snapshot)


def _opened_without(snapshot: Snapshot, *excluded: ShareView) -> list[str]:
    """The UIDs of the pods whose gates are opened if nothing can be planned for some of them."""
    names = {
        PartName("Pod", one.key, one.resource): (one, ValueError("unreadable")) for one in excluded
    }
    with pytest.raises(StopIteration) as done:
        next(plan_isolated(snapshot, NOW, names))
    planned = done.value.value.plan
    return [one.uid for one in planned.actions if isinstance(one, LetPreempt)]


def test_of_a_pod_that_is_excluded_from_the_plan() -> None:
    """Nothing would tell when to open it; an ungated pod would be scheduled, too."""
    share, other = _gated(), waiting("q")
    starting = shadow(pod=PodView("uid-pod", "Running", "n1", at(1)))
    snapshot = small(shadows=(starting,), shares=(share, other))
    assert _opened_without(snapshot, share, other) == [share.uid]
    assert not _opened_without(replace(snapshot, unopenable=frozenset({share.uid})), share)
    many = tuple(_gated(f"p{n}") for n in range(OPENED_AT_ONCE + 10))
    assert len(_opened_without(small(shares=many), *many)) == OPENED_AT_ONCE


def test_not_while_a_later_plan_considers_the_pod() -> None:
    """Of very many pods with different constraints, a plan considers some."""
    needs = [Needs(selector=frozenset({("mine", str(n))})) for n in range(JUDGED_MAX + 10)]
    pods = tuple(_gated(f"p{n}", needs=one) for n, one in enumerate(needs))
    assert not _opened(small(shares=pods, quotas=(MANY,)))


def test_only_of_pods_that_have_one() -> None:
    assert not _opened(small(shadows=(ready(),), shares=(waiting("p"),)))
