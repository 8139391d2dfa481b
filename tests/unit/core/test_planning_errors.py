"""Planning goes on without the objects that it fails for: what is left out the next time, and what
is tried again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from mizar_core.names import EventReason
from mizar_core.planning import Plan, Snapshot, plan
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.exclusion import Part, PartName, parts
from mizar_core.planning.planning_errors import IsolatedPlan, Planner, plan_isolated
from mizar_core.planning.snapshot import Announcement, PendingView
from property.plan.snapshots import NOW, at, node, pool, quota, ready, waiting

PENDING = PendingView("team-z", "whole", "uid-whole", at(1), (("nvidia.com/gpu", 1),))
SNAPSHOT = Snapshot(
    pools=(pool(),),
    quotas=(quota("team-a"),),
    shadows=(ready(),),
    shares=(waiting("p"), waiting("q")),
    nodes=(node("n1"),),
    pending=(PENDING,),
)
CHANGES: dict[PartName, Any] = {
    PartName("Pod", ("team-a", "p"), "team-a.mizar.share/gpu.2"): waiting("p", 2),
    PartName("PendingPod", ("team-z", "whole")): replace(PENDING, created=at(2)),
    PartName("Node", ("", "n1")): node("n1", cards=8),
    PartName("ShadowPod", ("team-a", "shadow-2-aaaaa")): ready(healthy=1),
    PartName("GPUQuota", ("team-a", "quota")): quota("team-a", maxCards=1),
    PartName("GPUPool", ("", "pool")): pool(memoryScaling="1.5"),
}
FIELDS = {
    "Pod": "shares",
    "PendingPod": "pending",
    "Node": "nodes",
    "ShadowPod": "shadows",
    "GPUQuota": "quotas",
    "GPUPool": "pools",
}
NAMES = pytest.mark.parametrize("name", list(CHANGES), ids=lambda one: one.what)


class Poisoned:
    """A planner that fails while one part of the snapshot is as it was; counts how often."""

    def __init__(self, name: PartName) -> None:
        self.name = name
        self.part = dict(parts(SNAPSHOT))[name]
        self.failures = 0

    def __call__(self, snapshot: Snapshot, now: datetime) -> Plan:
        if dict(parts(snapshot)).get(self.name) == self.part:
            self.failures += 1
            raise ZeroDivisionError
        return plan(snapshot, now)


def _around(snapshot: Snapshot, decide: Planner, last: IsolatedPlan | None = None) -> IsolatedPlan:
    steps = plan_isolated(snapshot, NOW, last.excluded if last else None, decide)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: IsolatedPlan = done.value
            return found


def _with(name: PartName, part: Part) -> Snapshot:
    """The snapshot with another part in place of the first of its kind."""
    field = FIELDS[name.what]
    return replace(SNAPSHOT, **{field: (part, *getattr(SNAPSHOT, field)[1:])})


@NAMES
def test_what_is_as_it_was_is_left_out_without_a_try(name: PartName) -> None:
    decide = Poisoned(name)
    first = _around(SNAPSHOT, decide)
    assert set(first.excluded) == {name}
    tried = decide.failures
    assert tried > 0
    again = _around(SNAPSHOT, decide, first)
    assert (again.excluded, decide.failures) == (first.excluded, tried)


@NAMES
def test_what_has_changed_since_is_tried_again_at_once(name: PartName) -> None:
    decide = Poisoned(name)
    changed = _with(name, CHANGES[name])
    found = _around(changed, decide, _around(SNAPSHOT, decide))
    assert not found.excluded
    assert found.plan == plan(changed, NOW)


@NAMES
def test_what_is_gone_is_not_left_out_any_more(name: PartName) -> None:
    decide = Poisoned(name)
    first = _around(SNAPSHOT, decide)
    field = FIELDS[name.what]
    gone = replace(SNAPSHOT, **{field: getattr(SNAPSHOT, field)[1:]})
    assert not _around(gone, decide, first).excluded


@NAMES
def test_what_has_changed_and_fails_again_is_left_out_as_it_is_now(name: PartName) -> None:
    first = _around(SNAPSHOT, Poisoned(name))
    decide = Poisoned(name)
    changed = _with(name, CHANGES[name])
    decide.part = CHANGES[name]
    found = _around(changed, decide, first)
    assert {one: part for one, (part, _) in found.excluded.items()} == {name: CHANGES[name]}


def test_several_that_fail_do_not_take_their_pool_with_them() -> None:
    """Without the pool, all that belongs to it would be left out, and so would objects of
    others."""
    shadows = [ready("shadow-2-aaaaa"), ready("shadow-2-bbbbb"), ready("shadow-2-ccccc")]
    snapshot = replace(SNAPSHOT, shadows=tuple(shadows), quotas=())
    bad = {"shadow-2-aaaaa", "shadow-2-ccccc"}

    def decide(given: Snapshot, now: datetime) -> Plan:
        if any(one.name in bad and one.healthy for one in given.shadows):
            raise ZeroDivisionError
        return plan(given, now)

    assert {one.key[1] for one in _around(snapshot, decide).excluded} == bad


def test_another_failure_is_held_back_while_one_was_told_of_late() -> None:
    share = next(one for one in CHANGES if one.what == "Pod")

    def around(*announced: Announcement) -> Plan:
        told = replace(SNAPSHOT, announced=frozenset(announced))
        return _around(told, Poisoned(share)).plan

    failed = EventReason.PLANNING_FAILED
    found = (one for one in around().actions if isinstance(one, EmitEvent))
    (event,) = (one for one in found if one.reason is failed)
    assert event.message == (
        "Mizar cannot plan for it now and leaves it as it is: report this error to an "
        "administrator: ZeroDivisionError()"
    )
    another = replace(event, message="another failure")
    assert event in around(another.wording).actions
    late = around(another.subject, another.wording)
    assert (event in late.actions, late.held_back) == (False, {event.subject})
    same = around(event.subject, event.wording)
    assert (event in same.actions, same.held_back) == (False, set())
