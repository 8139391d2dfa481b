"""A shadow pod for which planning fails stays as it is, and the others of its node go on."""

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest

from mizar_core.carve import Carve
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.plan import Carvings, Plan, plan
from mizar_nodeagent.planning.planning_errors import plan_isolated
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.shadow_events import shadow_events
from unit.nodeagent.makers import (
    RESOURCE,
    SHADOW,
    card,
    card_claim,
    device,
    shadow,
    share,
    share_claim,
    snapshot,
)
from unit.nodeagent.test_plan import listed, said

BAD = ("team-a", "shadow-2-bad")
PODS = [shadow(), shadow(BAD[1])]
CLAIMS = [card_claim(), card_claim(BAD[1], card(2).uuid)]
IDS = {device(0), device(1), device(0, BAD), device(1, BAD)}


def broken(carving: Carving, step: str) -> Carving:
    """A carving for which planning fails as soon as it reads that attribute."""

    def stumble(_: Carving) -> None:
        raise ZeroDivisionError("a bug")

    made: Carving = object.__new__(type("Broken", (Carving,), {step: property(stumble)}))
    vars(made).update(vars(carving))
    return made


def seen(now: float, **changes: Any) -> NodeSnapshot:
    given: dict[str, Any] = {"pods": PODS, "claims": CLAIMS, "kubelet": {RESOURCE: IDS}}
    return snapshot(now, **{**given, "node": {RESOURCE: Counts(4, 4)}, **changes})


@pytest.fixture
def served() -> Plan:
    """A plan in which both shadow pods are served."""
    found = plan(plan({}, seen(1)).carvings, seen(1))
    assert said(found, "Ready") == said(found, "Ready", BAD) == ("True", "Serving")
    return found


def spoiled(served: Plan, step: str = "drain") -> Carvings:
    return served.carvings | {BAD: broken(served.carvings[BAD], step)}


@pytest.mark.parametrize("step", ["stage", "drain", "card", "cards", "withdrawn", "idle_since"])
def test_one_carving_does_not_stop_the_others(served: Plan, step: str) -> None:
    drained = [shadow(drain="now"), shadow(BAD[1], drain="now")]
    found = plan_isolated(spoiled(served, step), seen(2, pods=drained), served)
    assert listed(found) == dict.fromkeys(sorted(IDS), True) | {
        device(0, BAD): False,
        device(1, BAD): False,
    }
    assert found.carvings[SHADOW].stage is DrainStage.LOWERED
    assert list(found.excluded) == [BAD]
    assert found.carvings[BAD] is not served.carvings[BAD]
    assert said(found, "Ready", BAD) == ("False", "PlanningFailed")
    assert said(found, "Draining", BAD) == ("False", "NotAsked")


def test_its_users_are_told_as_they_are_now(served: Plan) -> None:
    pods = [*PODS, share()]
    claims = [*CLAIMS, share_claim(device(1, BAD))]
    found = plan_isolated(spoiled(served), seen(2, pods=pods, claims=claims), served)
    assert said(found, "PodInUsing", BAD) == ("True", "PlanningFailed")
    (report,) = (one for one in found.reports if one.key == BAD)
    assert [(one.health, one.holder is not None) for one in report.devices] == [
        ("Unhealthy", False),
        ("Unhealthy", True),
    ]
    assert report.cards and report.idle_since is None
    # Also by an agent that has just started, and has reported nothing before.
    found = plan_isolated(spoiled(served), seen(2, pods=pods, claims=claims), None)
    assert said(found, "PodInUsing", BAD) == ("True", "PlanningFailed")
    assert said(found, "Draining", BAD) == ("Unknown", "PlanningFailed")
    (report,) = (one for one in found.reports if one.key == BAD)
    assert report.uid == f"owner-{BAD[1]}", "no other ShadowPod is reported on"


def test_its_card_is_carved_for_nobody_else(served: Plan) -> None:
    other = shadow("shadow-2-ccccc")
    claims = [CLAIMS[0], card_claim(other.name, card(2).uuid)]
    found = plan_isolated(spoiled(served), seen(2, pods=[*PODS, other], claims=claims), served)
    assert said(found, "Ready", other.key) == ("False", "DevicesInUse")


def test_a_pod_that_cannot_be_adopted_does_not_stop_the_others() -> None:
    class Odd(Pod):
        @cached_property
        def carve(self) -> Carve:
            raise RecursionError("a bug")

    odd = Odd(**vars(shadow(BAD[1])))
    found = plan_isolated({}, seen(1, pods=[shadow(), odd]), None)
    assert listed(found) == {device(0): True, device(1): True}
    assert said(found, "Ready", BAD) == ("False", "PlanningFailed")


def test_it_goes_on_when_planning_succeeds_again(served: Plan) -> None:
    failed = plan_isolated(spoiled(served), seen(2), served)
    found = plan_isolated(failed.carvings | {BAD: served.carvings[BAD]}, seen(3), failed)
    assert not found.excluded
    assert said(found, "Ready", BAD) == ("True", "Serving")


def test_several_are_found_and_no_more_than_those(served: Plan) -> None:
    """Two shadow pods for which planning fails only together: one is left out."""
    third = ("team-a", "shadow-2-ccccc")
    calls = []

    def planner(carvings: Carvings, found: NodeSnapshot, excluded: Collection[Key] = ()) -> Plan:
        calls.append(set(excluded))
        if BAD not in excluded or not {SHADOW, third} & set(excluded):
            raise ZeroDivisionError("a bug")
        return replace(served, excluded={})

    carvings = served.carvings | {third: served.carvings[SHADOW]}
    found = plan_isolated(carvings, seen(2), served, planner)
    assert found.excluded.keys() == {BAD, third}
    calls.clear()
    plan_isolated(carvings, seen(3), found, planner)
    assert len(calls) == 2, "what was found once is not searched again"


def test_what_is_nobodys_fault_is_raised(served: Plan) -> None:
    def planner(carvings: Carvings, found: NodeSnapshot, excluded: Collection[Key] = ()) -> Plan:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        plan_isolated(served.carvings, seen(2), served, planner)


def test_an_event_says_so_once(served: Plan) -> None:
    failed = plan_isolated(spoiled(served), seen(2), served)
    (event,) = shadow_events(served, failed)
    assert (event.about, event.reason, event.warning) == (BAD, "PlanningFailed", True)
    again = plan_isolated(failed.carvings, seen(3), failed)
    assert not list(shadow_events(failed, again))
