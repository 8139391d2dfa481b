"""Gates of share pods that may preempt others: closed only while devices are on their way."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateShadow, LetPreempt
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.postponed import JUDGED_MAX
from mizar_core.planning.preemption_gates import OPENED_AFTER
from mizar_core.planning.snapshot import PodView, ShareView
from property.plan.snapshots import NOW, at, quota, ready, shadow, waiting
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


def test_a_minute_after_the_creation_at_the_latest() -> None:
    starting = shadow(pod=PodView("uid-pod", "Running", "n1", at(1)))
    young = small(shadows=(starting,), shares=(_gated(created=at(10)),))
    assert not _opened(young)
    due = plan(young, NOW).due
    assert due is not None and due <= at(10) + OPENED_AFTER
    old = replace(young, shares=(_gated(created=NOW - OPENED_AFTER),))
    assert _opened(old)
    almost = replace(young, shares=(_gated(created=NOW - OPENED_AFTER + timedelta(seconds=1)),))
    assert not _opened(almost)


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


def test_not_while_a_later_plan_considers_the_pod() -> None:
    """Of very many pods with different constraints, a plan considers some."""
    needs = [Needs(selector=frozenset({("mine", str(n))})) for n in range(JUDGED_MAX + 10)]
    pods = tuple(_gated(f"p{n}", needs=one) for n, one in enumerate(needs))
    assert not _opened(small(shares=pods, quotas=(MANY,)))


def test_only_of_pods_that_have_one() -> None:
    assert not _opened(small(shadows=(ready(),), shares=(waiting("p"),)))
