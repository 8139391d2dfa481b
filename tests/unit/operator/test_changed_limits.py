"""Existing shadow pods follow changes of pool and quota; those of another shape are drained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.carve import Carve
from mizar_core.models import GPUPool, Isolation
from mizar_core.names import ANNOTATION_CARVE
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateShadow, DeleteShadow, Drain, Recarve
from mizar_core.planning.snapshot import CardsOnNode, NodeView, PodView, ShadowView
from mizar_kube.errors import Conflict
from mizar_kube.kinds import GPU_POOL, POD, Object
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from stateful.harness import KINDS, Harness
from stateful.memory_api import Write
from stateful.model import Model
from support.projection import apply_plan
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"
HELD = (("team-a", "p"),)
GIB = 1 << 30


def _carve(**changes: Any) -> Carve:
    given = {"resource": GPU, "devices": 2, "cards": 1, "pool": "pool", "quota": "quota"}
    return Carve(**{**given, **changes})


def _carved(carve: Carve | None = None, **fields: object) -> ShadowView:
    """A shadow pod that serves, and whose carve says this."""
    text = (carve or _carve()).to_json()
    pod = PodView(uid="uid-pod", phase="Running", node="n1", bound_at=at(60), carve=text)
    return ready(**{"pod": pod, **fields})


def _snapshot(*shadows: ShadowView, of: GPUPool | None = None, **parts: Any) -> Snapshot:
    given = {
        "pools": (of or pool(),),
        "quotas": (quota("team-a"),),
        "nodes": (node("n1"),),
        "shadows": shadows,
    }
    return Snapshot(**{**given, **parts})


def _recarved(snapshot: Snapshot) -> list[Carve]:
    return [one.carve for one in plan(snapshot, NOW).actions if isinstance(one, Recarve)]


def test_nothing_is_told_twice() -> None:
    assert _recarved(_snapshot(_carved())) == []


def test_an_annotation_that_says_the_same_in_other_words_stays() -> None:
    text = f'{{"quota": "quota", "pool": "pool", "cards": 1, "devices": 2, "resource": "{GPU}"}}'
    one = _carved()
    assert one.pod
    assert _recarved(_snapshot(replace(one, pod=replace(one.pod, carve=text)))) == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"isolation": {"compute": "Hard"}}, {"isolation": Isolation(compute="Hard")}),
        ({"isolation": {"mayOptOut": True}}, {"isolation": Isolation(may_opt_out=True)}),
        ({"shareVariables": ["HAMi"]}, {"variables": ("HAMi",)}),
        ({"sameCard": True}, {"same_card": True}),
        ({"memoryScaling": "1.5"}, {"memory_scaling": "1.5"}),
        ({"coreScaling": "0.5"}, {"core_scaling": "0.5"}),
        ({"profiles": [{"devices": 2, "cards": 1, "memory": "4Gi"}]}, {"memory": 4 * GIB}),
    ],
)
def test_what_a_pool_says_now_is_told(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    """Whether or not the shadow pod is in use."""
    for fields in ({}, {"holders": HELD}):
        assert _recarved(_snapshot(_carved(**fields), of=pool(**spec))) == [_carve(**expected)]


def test_what_a_quota_says_goes_before_the_pool() -> None:
    own = quota("team-a", isolation={"compute": "Soft"})
    snapshot = _snapshot(_carved(), of=pool(isolation={"compute": "Hard"}), quotas=(own,))
    assert _recarved(snapshot) == [_carve(isolation=Isolation(compute="Soft"))]


def test_a_damaged_annotation_is_written_again() -> None:
    one = _carved()
    assert one.pod
    for text in ("", "{}"):
        assert _recarved(_snapshot(replace(one, pod=replace(one.pod, carve=text)))) == [_carve()]


@pytest.mark.parametrize("change", [{"deleting": True}, {"phase": "Failed"}])
def test_a_shadow_pod_whose_pod_failed_or_is_being_deleted_is_told_no_new_limits(
    change: dict[str, Any],
) -> None:
    one = _carved()
    assert one.pod
    gone = replace(one, pod=replace(one.pod, **change))
    assert _recarved(_snapshot(gone, of=pool(memoryScaling="1.5"))) == []


@pytest.mark.parametrize("goes", ["shadow-2-a", "shadow-2-b", "shadow-2-c"])
def test_a_shadow_pod_that_goes_keeps_new_limits_from_no_other(goes: str) -> None:
    names = ["shadow-2-a", "shadow-2-b", "shadow-2-c"]
    every = [replace(_carved(), name=name, uid=f"uid-{name}") for name in names]
    shadows = [
        replace(one, pod=replace(one.pod, deleting=one.name == goes)) for one in every if one.pod
    ]
    wide = quota("team-a", profiles=[{"devices": 2, "max": 3}])
    found = plan(_snapshot(*shadows, of=pool(memoryScaling="1.5"), quotas=(wide,)), NOW).actions
    told = [one.shadow[1] for one in found if isinstance(one, Recarve)]
    assert told == [name for name in names if name != goes]


OTHER_SHAPES = {
    "more cards": {"profiles": [{"devices": 2, "cards": 2}]},
    "no such profile": {"profiles": [{"devices": 4, "cards": 2}]},
    "another resource": {"resourcePrefix": "other.example"},
}


@pytest.mark.parametrize("spec", OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_another_shape_is_drained_when_idle(spec: dict[str, Any]) -> None:
    actions = plan(_snapshot(_carved(), of=pool(**spec)), NOW).actions
    assert [one for one in actions if isinstance(one, Drain)]
    assert not [one for one in actions if isinstance(one, Recarve)]


@pytest.mark.parametrize("spec", OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_another_shape_in_use_keeps_its_limits_and_takes_nobody_new(spec: dict[str, Any]) -> None:
    snapshot = _snapshot(_carved(holders=HELD), of=pool(**spec))
    assert _recarved(snapshot) == [_carve(closed=True)]
    after = apply_plan(snapshot, plan(snapshot, NOW))
    assert _recarved(after) == []
    # When the pool has the old shape again, the shadow pod takes new pods again.
    assert _recarved(replace(after, pools=(pool(),))) == [_carve()]


def _two_in_use(**spec: Any) -> Snapshot:
    """Two shadow pods, the first with one user and the second with two, and a quota."""
    fewer = _carved(holders=HELD, name="shadow-2-a", uid="uid-a")
    more = _carved(holders=HELD * 2, name="shadow-2-b", uid="uid-b")
    return _snapshot(fewer, more, quotas=(quota("team-a", **spec),))


LOWERED = {
    "fewer shadow pods": {"profiles": [{"devices": 2, "max": 1}]},
    "fewer cards": {"maxCards": 1},
    "another profile": {"profiles": [{"devices": 2, "max": 1}, {"devices": 4, "max": 1}]},
}


@pytest.mark.parametrize("spec", LOWERED.values(), ids=LOWERED)
def test_beyond_a_lowered_quota_the_least_used_takes_nobody_new(spec: dict[str, Any]) -> None:
    """Otherwise pods that come while others go would keep both shadow pods for ever."""
    snapshot = _two_in_use(**spec)
    found = [one for one in plan(snapshot, NOW).actions if isinstance(one, Recarve)]
    assert [(one.shadow[1], one.carve) for one in found] == [("shadow-2-a", _carve(closed=True))]
    after = apply_plan(snapshot, plan(snapshot, NOW))
    assert _recarved(after) == []
    # The other one has fewer users now: the choice stays.
    first, second = sorted(after.shadows, key=lambda one: one.name)
    first, second = replace(first, holders=HELD * 2), replace(second, holders=HELD)
    assert _recarved(replace(after, shadows=(first, second))) == []
    # The quota is raised again.
    assert _recarved(replace(after, quotas=(quota("team-a"),))) == [_carve()]


def test_one_beyond_its_quota_stays_closed_while_it_is_drained() -> None:
    """The node agent would give its devices back to the kubelet, only to take them once more."""
    closed = _carved(_carve(closed=True), name="shadow-2-a", uid="uid-a", idle_since=NOW)
    other = _carved(holders=HELD, name="shadow-2-b", uid="uid-b")
    lowered = quota("team-a", profiles=[{"devices": 2, "max": 1}])
    snapshot = _snapshot(closed, other, quotas=(lowered,))
    first = plan(snapshot, NOW)
    assert [one.shadow for one in first.actions if isinstance(one, Drain)] == [closed.key]
    assert _recarved(snapshot) == []
    after = apply_plan(snapshot, first)
    assert _recarved(after) == []
    # A pod needs it, and the quota is raised again: the drain is called off.
    shares = replace(waiting("p"), node="n1"), waiting("q", 2)
    raised = replace(after, quotas=(quota("team-a"),), shares=shares)
    assert _recarved(raised) == [_carve()]


def test_a_revoked_quota_closes_all_that_is_in_use() -> None:
    snapshot = _two_in_use(profiles=[{"devices": 2, "max": 0}])
    assert _recarved(snapshot) == [_carve(closed=True)] * 2


def test_one_that_is_deleted_in_use_takes_nobody_new_and_goes_when_idle() -> None:
    deleted = _carved(holders=HELD, in_use=True, idle_since=None, deleting=True)
    assert _recarved(_snapshot(deleted)) == [_carve(closed=True)]
    idle = _carved(_carve(closed=True), deleting=True)
    (drain,) = [one for one in plan(_snapshot(idle), NOW).actions if isinstance(one, Drain)]
    assert drain.shadow == idle.key


def test_a_closed_one_does_not_count_as_free_and_the_quota_creates_another() -> None:
    """The node agent reports only held devices as healthy; the other device is not available."""
    old = _carved(_carve(closed=True), holders=HELD, in_use=True, healthy=1)
    bound = replace(waiting("p"), node="n1")
    shape = [{"devices": 2, "cards": 2}]
    snapshot = _snapshot(old, of=pool(profiles=shape), shares=(bound, waiting("q")))
    assert [one.cards for one in plan(snapshot, NOW).actions if isinstance(one, CreateShadow)] == [
        2
    ]
    full = replace(snapshot, quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1}]),))
    assert not [one for one in plan(full, NOW).actions if isinstance(one, CreateShadow)]


# On an API server.


@pytest.fixture
def model() -> Model:
    """A node, a pool, a quota, and a share pod for which there is a shadow pod soon."""
    made = small_model()
    made.add_share("team-a", "one", GPU, 1)
    return made


@pytest.fixture
def operator(model: Model) -> Harness:
    """An operator whose shadow pod serves."""
    found = Harness(model)
    for _ in range(5):
        found.round()
    assert _told(model) == _carve()
    return found


def _holder(model: Model) -> Object:
    (found,) = (one for one in model.api.all(POD) if one["metadata"].get("annotations"))
    return found


def _told(model: Model) -> Carve:
    return Carve.from_json(_holder(model)["metadata"]["annotations"][ANNOTATION_CARVE])


def _change_pool(model: Model, **spec: Any) -> None:
    (found,) = model.api.all(GPU_POOL)
    found["spec"] |= spec
    model.api.touch(found)


def test_the_annotation_is_written(model: Model, operator: Harness) -> None:
    _change_pool(model, isolation={"compute": "Hard"})
    operator.round()
    assert _told(model) == _carve(isolation=Isolation(compute="Hard"))


def test_a_change_in_between_is_not_undone(model: Model, operator: Harness) -> None:
    """Another client writes the pod between the operator's reading and its write: the operator
    reads again."""
    refused = [Conflict("resourceVersion")]

    def once(write: Write) -> None:
        if write[0] == "patch" and write[1].kind == POD and refused:
            raise refused.pop()

    _change_pool(model, memoryScaling="1.5")
    model.api.before_write = once
    operator.round()
    assert not refused
    operator.round()
    assert _told(model) == _carve(memory_scaling="1.5")


def test_another_pod_of_that_name_is_left_alone(model: Model, operator: Harness) -> None:
    _change_pool(model, memoryScaling="1.5")
    operator.sync(KINDS)
    _holder(model)["metadata"]["uid"] = "another"
    operator.reconcile()
    assert _told(model) == _carve()


MIG = "nvidia.com/mig-1g.5gb"


def _mig_node() -> NodeView:
    return replace(node("n1"), cards={MIG: CardsOnNode(7, 7)})


def test_what_holds_cards_of_a_former_pool_of_the_name_goes() -> None:
    """physicalResource cannot be changed: the pool was deleted and made again."""
    made_again = pool(physicalResource=MIG)
    asked = _snapshot(_carved(), of=made_again, nodes=(_mig_node(),))
    assert [one for one in plan(asked, NOW).actions if isinstance(one, Drain)]


def test_what_waits_for_cards_of_a_former_pool_of_the_name_makes_way() -> None:
    """Otherwise the share pod waits for ever for cards that the pool does not want any more."""
    pod = PodView(
        uid="u", carve=_carve().to_json(), unschedulable="0/1 nodes: 1 Insufficient nvidia.com/gpu."
    )
    asked = _snapshot(
        shadow(pod=pod),
        of=pool(physicalResource=MIG),
        nodes=(_mig_node(),),
        shares=(waiting("p"),),
    )
    actions = plan(asked, NOW).actions
    assert [one for one in actions if isinstance(one, DeleteShadow)]
    assert [one for one in actions if isinstance(one, CreateShadow)]


def test_users_of_cards_of_a_former_pool_of_the_name_keep_their_carve_but_closed() -> None:
    asked = _snapshot(_carved(holders=HELD), of=pool(physicalResource=MIG), nodes=(_mig_node(),))
    assert _recarved(asked) == [_carve(closed=True)]
