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
from mizar_core.planning.preemption_gates import OPENED_AFTER as LATEST
from mizar_core.planning.preemption_gates import OPENED_AT_ONCE, REST_AFTER
from mizar_core.planning.snapshot import PodView, ShareView
from property.plan.snapshots import NOW, at, pool, quota, ready, shadow, waiting
from support.planned import actions, small
from support.projection import apply_plan

NO_CARDS = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
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
    made = plan(first, NOW)
    assert made.gated == {"uid-team-a-p"} and made.due == NOW + LATEST
    for seconds, opened in ((59, False), (60, True)):
        seen = replace(first, gated_since={"uid-team-a-p": at(seconds)})
        assert bool(_opened(seen)) is opened
        assert plan(seen, NOW).gated == ({"uid-team-a-p"} - set(_opened(seen)))


@pytest.mark.parametrize(
    "parts",
    [
        {"quotas": ()},
        {"quotas": (quota("team-a", profiles=[{"devices": 2, "max": 0}]),)},
        {"shadows": (shadow(pod=PodView(unschedulable=NO_CARDS)),)},
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


def test_not_while_an_idle_shadow_pod_gives_up_its_card() -> None:
    blocked = shadow(pod=PodView(unschedulable=NO_CARDS), sequence=1)
    idle = ready("shadow-4-idle", devices=4, sequence=2, idle_since=at(50))
    rules = (quota("team-a", profiles=FOUR),)
    snapshot = small(quotas=rules, shadows=(blocked, idle), shares=(_gated(),))
    assert actions(Drain, snapshot) and not _opened(snapshot)
    assert not _opened(apply_plan(snapshot, plan(snapshot, NOW)))
    leaving = replace(idle, deleting=True, ready=False, pod=PodView(node="n1", deleting=True))
    assert not _opened(replace(snapshot, shadows=(blocked, leaving)))
    used = replace(idle, holders=(("team-a", "u"),), idle_since=None)
    assert _opened(replace(snapshot, shadows=(blocked, used)))
    draining = PodView("uid-pod", "Running", "n1", at(60), drain_asked=at(5))
    assert _opened(replace(snapshot, shadows=(blocked, replace(used, pod=draining))))
    for_cpu = replace(blocked, pod=PodView(unschedulable="0/1 nodes: 1 Insufficient cpu"))
    assert _opened(replace(snapshot, shadows=(for_cpu, leaving)))


def test_not_for_the_devices_that_a_pod_without_a_gate_takes() -> None:
    """The scheduler has that one in its queue already; the gated one would preempt it."""
    other = waiting("other", 1, created=at(5))
    starting = ready("shadow-2-bbbbb", sequence=1, ready=False, healthy=0)
    snapshot = small(shadows=(ready(), starting), shares=(_gated(count=2), other))
    assert not _opened(snapshot)
    bound = replace(snapshot, shares=(_gated(count=2), replace(other, node="n1")))
    assert not _opened(bound), "its own are on their way"
    late = replace(snapshot, gated_since={"uid-team-a-p": at(10)})
    assert _opened(late), "it does not yield for long"
    for calm in (replace(other, gated=True), replace(other, resource=OTHER)):
        assert _opened(replace(snapshot, shares=(_gated(count=2), calm)))


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


def test_of_very_many_some_are_opened_in_each_plan() -> None:
    """The oldest first: each takes a call, for which the tenants' other actions wait."""
    many = tuple(_gated(f"p{n}", created=at(60 + n)) for n in range(OPENED_AT_ONCE + 10))
    snapshot = small(shares=many, quotas=(quota("team-a", profiles=[{"devices": 2, "max": 0}]),))
    opened = _opened(snapshot)
    assert len(opened) == OPENED_AT_ONCE and "uid-team-a-p0" not in opened
    made = plan(snapshot, NOW)
    assert made.due == NOW + REST_AFTER and made.gated == {one.uid for one in many} - {*opened}
    assert len(_opened(apply_plan(snapshot, made))) == 10


def test_of_a_pod_that_is_excluded_from_the_plan() -> None:
    """Nothing would tell when to open it; an ungated pod would be scheduled, too."""
    share, other = _gated(), waiting("q")
    starting = shadow(pod=PodView("uid-pod", "Running", "n1", at(1)))
    snapshot = small(shadows=(starting,), shares=(share, other))
    excluded = {
        PartName("Pod", one.key, one.resource): (one, ValueError("unreadable"))
        for one in (share, other)
    }
    steps = plan_isolated(snapshot, NOW, excluded)
    with pytest.raises(StopIteration) as done:
        next(steps)
    opened = [one for one in done.value.value.plan.actions if isinstance(one, LetPreempt)]
    assert opened == [LetPreempt(share.key, share.uid)]


def test_not_while_a_later_plan_considers_the_pod() -> None:
    """Of very many pods with different constraints, a plan considers some."""
    needs = [Needs(selector=frozenset({("mine", str(n))})) for n in range(JUDGED_MAX + 10)]
    pods = tuple(_gated(f"p{n}", needs=one) for n, one in enumerate(needs))
    assert not _opened(small(shares=pods, quotas=(MANY,)))


def test_only_of_pods_that_have_one() -> None:
    assert not _opened(small(shadows=(ready(),), shares=(waiting("p"),)))
