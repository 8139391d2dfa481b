"""A share pod whose containers ask for devices of several resources, all of which must be on one
node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mizar_core.planning import plan
from mizar_core.planning.actions import Drain
from mizar_core.planning.creation_checks import MOVE_TURN, next_move
from mizar_kube.kinds import POD, Object
from property.plan.snapshots import NOW, at, node, quota, ready, waiting
from stateful.harness import Harness
from stateful.model import Model
from support.planned import small

NODES = ("n1", "n2")


KEYS = ("mizar.share", "cards.example")


def _model(*allowed: int) -> Model:
    """Two nodes of two cards; two pools, with a quota of that many shadow pods in each."""
    made = Model()
    for name in NODES:
        made.add_node(name)
    for name, prefix, most in zip(("pool", "other"), KEYS, allowed or (1, 1), strict=True):
        made.add_pool(name, resourcePrefix=prefix, idleTimeoutSeconds=120)
        made.add_quota("team-a", [{"devices": 2, "min": 0, "max": most}], name, pool=name)
    return made


def _shadow_pods(model: Model) -> list[Object]:
    return [one for one in model.api.all(POD) if one["metadata"]["name"].startswith("shadow")]


def _pod(model: Model, name: str) -> Object:
    found = model.api.find(POD, name, "team-a")
    assert found is not None
    return found


def _rounds(operator: Harness, count: int, seconds: float = 1) -> None:
    for _ in range(count):
        for name in NODES:
            operator.catch_up(name)
        for key in KEYS:
            operator.reconcile(key)
        operator.model.tick(seconds)


@pytest.mark.parametrize("started", [0, 60, 119])
def test_it_runs_though_its_devices_come_to_different_nodes(started: int) -> None:
    """Its shadow pods must not change places for ever."""
    model = _model()
    model.tick(started)
    operator = Harness(model)
    # A card of n1 is taken until the shadow pods have their nodes.
    model.add_whole("team-a", "whole", 1)
    _rounds(operator, 3)
    model.add_share_of("team-a", "wide", {f"team-a.{key}/gpu.2": 1 for key in KEYS})
    _rounds(operator, 8)
    model.api.start_delete(_pod(model, "whole"))
    assert _pod(model, "wide")["status"]["phase"] == "Pending"
    for _ in range(20):
        _rounds(operator, 10, seconds=3)
        if _pod(model, "wide")["status"]["phase"] == "Running":
            break
    _rounds(operator, 10, seconds=3)
    assert _pod(model, "wide")["status"]["phase"] == "Running"


def test_of_the_devices_it_has_left_only_as_many_stay_as_it_needs() -> None:
    """It waits for long, since no quota allows it devices of the other pool."""
    model = _model(5, 0)
    model.add_node("n3")
    model.add_whole("team-a", "whole", 2)
    model._bind(_pod(model, "whole"), "n3")
    operator = Harness(model)
    for number in range(4):
        model.add_share("team-a", f"p{number}", f"team-a.{KEYS[0]}/gpu.2", 2)
    _rounds(operator, 10)
    for number in range(4):
        model.api.start_delete(_pod(model, f"p{number}"))
    model.add_share_of("team-a", "wide", {f"team-a.{key}/gpu.2": 1 for key in KEYS})
    _rounds(operator, 80, seconds=5)
    assert [one["spec"].get("nodeName") for one in _shadow_pods(model)] == ["n1", None]


@pytest.mark.parametrize("refused", [True, False])
def test_a_plan_for_its_turn_is_due_only_where_its_devices_may_be_moved(refused: bool) -> None:
    """While it waits for a quota, the turns change nothing."""
    pod = waiting("wide", unschedulable="Insufficient cpu", unschedulable_since=at(99))
    devices = (ready(idle_since=None),) if refused else ()
    made = plan(
        small(
            quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1 if refused else 0}]),),
            shadows=devices,
            shares=(replace(pod, beside=(f"team-a.{KEYS[1]}/gpu.2",)),),
            free_since={(pod.resource, "n1"): (at(99), at(99))},
        ),
        NOW,
    )
    assert made.due == (next_move(NOW) if refused else None)


def test_each_resource_is_moved_in_its_turn_though_another_one_was_just_moved() -> None:
    """Both are of one pool, whose quota has room for no other shadow pod."""
    first, second = "team-a.mizar.share/gpu.2", "team-a.mizar.share/gpu.4"
    pod = waiting("wide", unschedulable="Insufficient cpu", unschedulable_since=at(99))
    limits = [{"devices": devices, "max": 1} for devices in (2, 4)]
    given = small(
        quotas=(quota("team-a", profiles=limits),),
        nodes=tuple(node(f"n{number}") for number in range(4)),
        shadows=(ready(idle_since=at(99)), ready("b", "n2", devices=4, idle_since=at(99))),
        shares=(
            replace(pod, resource=first, beside=(second,)),
            replace(pod, resource=second, beside=(first,)),
        ),
        free_since={(first, "n1"): (at(99),) * 2, (second, "n2"): (at(99),) * 4},
    )
    turns = [NOW + number * MOVE_TURN for number in range(4)]
    moved, tried = set[str](), frozenset[str]()
    for turn in turns:
        made = plan(replace(given, attempted=tried), turn)
        tried |= {one.what for one in made.attempts}
        moved |= {one.shadow[1] for one in made.actions if isinstance(one, Drain)}
    assert moved == {one.name for one in given.shadows}
