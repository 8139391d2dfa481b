"""A shadow pod takes no new users: step by step, so that no pod that is on its way fails."""

from typing import Any

from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.planning.plan import Plan, plan
from mizar_nodeagent.planning.snapshot import Counts
from mizar_nodeagent.pods import Pod
from unit.nodeagent.makers import (
    RESOURCE,
    SHADOW,
    card_claim,
    carve,
    device,
    shadow,
    share,
    share_claim,
    snapshot,
)
from unit.nodeagent.test_plan import BOTH, D0, D1, listed, said, served

HELD = share_claim(D0)
CLOSED = shadow(carve=carve(closed=True))
WAITS = share("late", admitted=False)


def step(before: Plan, at: float, *more: Pod, claims: tuple[Claim, ...] = (HELD,)) -> Plan:
    """The plan a second or so later; the API server confirms what the node's status was to say."""
    seen: dict[str, Any] = {"node": before.counts, "node_at": {RESOURCE: at}}
    pods = [CLOSED, share(), *more]
    return plan(before.carvings, snapshot(at, pods, [card_claim(), *claims], BOTH, **seen))


def test_the_scheduler_is_told_first_then_the_kubelet() -> None:
    first = step(served(), 2.0)
    assert first.counts == {RESOURCE: Counts(2, 1)}
    assert listed(first) == {D0: True, D1: True}
    assert first.poll_often and first.rewrite == {RESOURCE}
    assert listed(step(first, 2.5)) == {D0: True, D1: True}
    second = step(first, 3.5)
    assert listed(second) == {D0: True, D1: False}
    assert not second.rewrite


def test_its_status_says_so() -> None:
    """Beside `Ready`, a waiting pod's owner would ask why the free device is not given out."""
    assert said(served(), "Draining") == ("False", "NotAsked")
    closed = step(step(served(), 2.0), 3.5)
    assert said(closed, "Draining") == ("False", "Closed")
    (report,) = closed.reports
    assert "offers 1 device of" in {one.type: one.message for one in report.conditions}["Ready"]


def test_a_scheduler_that_may_not_know_yet_is_waited_for() -> None:
    """The node's status has not been confirmed since."""
    first = step(served(), 2.0)
    seen = snapshot(9.0, [CLOSED, share()], [card_claim(), HELD], BOTH, node_at={RESOURCE: 1.0})
    assert listed(plan(first.carvings, seen)) == {D0: True, D1: True}


def test_a_pod_that_was_bound_before_still_gets_a_device() -> None:
    first = step(served(), 2.0)
    second = step(first, 4.0, WAITS)
    assert listed(second) == {D0: True, D1: True}
    # The kubelet goes by the node's status, and would refuse it with OutOf... for good.
    assert second.counts == {RESOURCE: Counts(2, 2)}
    late = step(second, 5.0, WAITS, claims=(HELD, share_claim(D1, pod="late")))
    assert listed(late) == {D0: True, D1: True}
    assert late.counts == {RESOURCE: Counts(2, 2)}
    assert not late.rewrite


def test_a_pod_that_was_bound_before_and_goes_leaves_nothing_offered() -> None:
    """What was written for its sake has to be lowered first, or another pod is bound."""
    second = step(step(served(), 2.0), 4.0, WAITS)
    third = step(second, 5.5)
    assert third.counts == {RESOURCE: Counts(2, 1)} and third.rewrite == {RESOURCE}
    assert listed(third) == {D0: True, D1: True}
    assert listed(step(third, 6.0)) == {D0: True, D1: True}
    assert listed(step(third, 7.0)) == {D0: True, D1: False}


def test_what_is_left_free_is_closed_in_the_same_way() -> None:
    closed = step(step(served(), 2.0), 3.5)
    left = step(closed, 5.0, claims=())
    assert listed(left) == {D0: True, D1: False}
    assert left.counts == {RESOURCE: Counts(2, 0)}
    assert listed(step(left, 6.5, claims=())) == {D0: False, D1: False}


def test_opened_again_it_is_offered_at_once() -> None:
    closed = step(step(served(), 2.0), 3.5)
    seen = snapshot(4.0, [shadow(), share()], [card_claim(), HELD], BOTH)
    found = plan(closed.carvings, seen)
    assert listed(found) == {D0: True, D1: True}
    assert found.counts == {RESOURCE: Counts(2, 2)}
    assert found.carvings[SHADOW].closing_since is None
    assert device(1) == D1
