"""A device that the kubelet gave to two containers: which one starts, and which pod gives way;
invariant 1."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mizar_core.names import gives_way, who_starts_after
from mizar_nodeagent.container.device_given_twice import Holding, Sharing, sharing
from mizar_nodeagent.container.slots import Owner, Slots
from mizar_nodeagent.pods import Pod
from unit.nodeagent.makers import RESOURCE, device, new_slots, share

D0, D1 = device(0), device(1)
A = share("a", controller="ReplicaSet")
B = share("b", controller="ReplicaSet")


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return new_slots(tmp_path)


def holding(pod: Pod, *ids: str, container: str = "main", init: bool = False) -> Holding:
    owner = Owner(pod.namespace, pod.name, pod.uid, container)
    return Holding(owner, frozenset(ids or (D0,)), init)


def start(slots: Slots, one: Holding) -> None:
    """The container has started."""
    slots.assign(slots.create(RESOURCE, one.ids, 0.0), one.owner)


def shared(
    slots: Slots, *holdings: Holding, ids: Iterable[str] = (D0,), pods: Iterable[Pod] = (A, B)
) -> Sharing:
    """How the devices of a container that is to start are shared."""
    known = {pod.key: pod for pod in pods}
    found = sharing(frozenset(ids), holdings, known, slots.all())
    assert found is not None
    return found


def test_what_one_container_has_is_not_shared(slots: Slots) -> None:
    assert sharing(frozenset({D0}), [holding(A)], {A.key: A}, slots.all()) is None


def test_an_init_container_and_the_one_after_it_take_turns(slots: Slots) -> None:
    both = holding(A, container="prepare", init=True), holding(A)
    assert sharing(frozenset({D0}), both, {A.key: A}, slots.all()) is None
    third = holding(A, D1, container="side")
    two = frozenset({D0, D1})
    found = sharing(two, (replace(both[0], ids=two), both[1], third), {A.key: A}, slots.all())
    assert found is not None and found.first_may_start


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"controller": ""}, {"controller": "Job"}),
        ({"controller": "Job"}, {"controller": "StatefulSet"}),
        ({"controller": "Workflow"}, {"controller": "ReplicaSet"}),
        ({"controller": "Workflow", "priority": 9}, {"controller": "Job"}),
        ({"controller": ""}, {"controller": "Workflow"}),
        ({"controller": ""}, {"controller": "ReplicaSet", "priority": 9}),
        ({"controller": "ReplicaSet", "priority": 9}, {"controller": "StatefulSet"}),
    ],
)
def test_the_pod_that_is_harder_to_replace_keeps_the_device_then_the_one_of_higher_priority(
    slots: Slots, first: dict[str, Any], second: dict[str, object]
) -> None:
    """Names decide last."""
    pods = share("z", **first), share("c", **second)
    found = shared(slots, *map(holding, pods), pods=pods)
    assert (found.first, found.leaving) == (pods[0].key, [pods[1].key])
    found = shared(slots, *map(holding, (A, B)))
    assert (found.first, found.leaving) == (A.key, [B.key])


def test_the_pod_that_has_started_keeps_the_device(slots: Slots) -> None:
    bare = share("a")
    start(slots, holding(B))
    found = shared(slots, holding(bare), holding(B), pods=(bare, B))
    assert (found.first, found.leaving) == (B.key, [bare.key])
    assert gives_way(*bare.key) in found.describe()
    assert gives_way(*B.key) not in found.describe()
    assert who_starts_after(found.describe()) == B.key


def test_the_pod_whose_container_runs_without_a_slot_keeps_the_device(slots: Slots) -> None:
    """The slot was lost, or is in an earlier stateDir."""
    runs = replace(B, container_ids=(("0123", "main"),))
    both = holding(A, D0, D1), holding(B, D1)
    found = shared(slots, *both, ids=(D0, D1), pods=(A, runs))
    assert (found.first, found.leaving, found.first_may_start) == (B.key, [A.key], False)
    beside = replace(B, container_ids=(("0123", "side"),))
    assert shared(slots, *both, ids=(D0, D1), pods=(A, beside)).first == A.key


def test_a_slot_of_an_earlier_pod_of_the_name_does_not_count(slots: Slots) -> None:
    start(slots, holding(replace(B, uid="uid-earlier")))
    assert shared(slots, holding(A), holding(B)).first == A.key


def test_nobody_starts_with_exactly_the_devices_of_another(slots: Slots) -> None:
    """The kubelet does not say which of the two is to start."""
    for _ in range(2):
        assert not shared(slots, holding(A), holding(B)).first_may_start
        start(slots, holding(A))


def test_of_different_devices_the_first_pods_container_may_start(slots: Slots) -> None:
    """It is known which of the two is to start, and the other has never run."""
    both = holding(A, D0, D1), holding(B, D1)
    assert shared(slots, *both, ids=(D0, D1)).first_may_start
    assert not shared(slots, *both, ids=(D1,)).first_may_start
    start(slots, both[1])
    assert not shared(slots, *both, ids=(D0, D1)).first_may_start
    assert shared(slots, *both, ids=(D1,)).first_may_start


def test_nobody_starts_beside_one_that_has_started_and_ends(slots: Slots) -> None:
    ending = replace(B, terminating=True)
    both = holding(A, D0, D1), holding(B, D1)
    start(slots, both[1])
    found = shared(slots, *both, ids=(D0, D1), pods=(A, ending))
    assert (found.first, found.leaving) == (A.key, [])
    assert not found.first_may_start
    assert "it starts once the other pod has ended" in found.describe()


def test_of_three_the_others_give_way(slots: Slots) -> None:
    third, fourth = share("c"), share("d", terminating=True)
    pods = A, B, third, fourth
    found = shared(slots, *map(holding, pods), pods=pods)
    assert (found.first, found.leaving) == (third.key, [A.key, B.key])
    assert "to 4 containers" in found.describe()


def test_nobody_has_to_go_while_a_pod_is_not_known(slots: Slots) -> None:
    found = shared(slots, holding(A), holding(B), pods=(A,))
    assert found.leaving == [] and not found.first_may_start


def test_a_pod_that_has_a_device_twice_gives_way(slots: Slots) -> None:
    twice = holding(A), holding(A, D0, D1, container="side")
    found = shared(slots, *twice, pods=(A,))
    assert (found.first, found.leaving, found.first_may_start) == (None, [A.key], False)
    assert who_starts_after(found.describe()) is None
    found = shared(slots, *twice, holding(B))
    assert (found.first, found.leaving) == (B.key, [A.key])


def test_the_message_names_the_shared_devices_alone(slots: Slots) -> None:
    found = shared(slots, holding(A, D0, D1), holding(B, D1), ids=(D0, D1))
    assert found.describe().startswith(f"the kubelet gave {D1} to 2 containers: ")


def test_the_message_leaves_out_what_an_init_container_hands_on(slots: Slots) -> None:
    first = holding(A, D0, D1, container="prepare", init=True)
    found = shared(slots, first, holding(A, D0), holding(B, D1), ids=(D0, D1))
    assert found.describe().startswith(f"the kubelet gave {D1} to 2 containers: ")
