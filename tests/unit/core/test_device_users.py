"""Whether a pod uses a shadow pod, or may be about to: which pods are bound, and where their
devices are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mizar_core.planning.device_users import may_be_used, pods_without_devices
from mizar_core.planning.snapshot import Key
from property.plan.snapshots import ready, waiting

P: Key = ("team-a", "p")
Q: Key = ("team-a", "q")


def _bound(count: int, name: str = "p", **fields: object) -> object:
    return waiting(name, count, node="n1", **fields)


@pytest.mark.parametrize(
    ("elsewhere", "bound", "unsure"),
    [
        ([], [_bound(1)], [P]),
        ([[P]], [_bound(1)], []),
        # The pod asks for two devices, of which one is elsewhere: the other one may be here.
        ([[P]], [_bound(2)], [P]),
        ([[P, P]], [_bound(2)], []),
        ([[P], [P]], [_bound(2)], []),
        ([[P], [P]], [_bound(3)], [P]),
        # What another pod has elsewhere says nothing about this one's devices.
        ([[Q]], [_bound(1)], [P]),
        ([[Q, P]], [_bound(1), _bound(2, "q")], [Q]),
        ([[("team-b", "p")]], [_bound(1)], [P]),
        # Init containers that have ended need no device any more.
        ([[P]], [_bound(2, after_init=1)], []),
        ([], [_bound(2, after_init=0)], []),
    ],
)
def test_a_bound_pod_may_have_a_device_here_unless_all_of_its_devices_are_elsewhere(
    elsewhere: list[list[Key]], bound: list[object], unsure: list[Key]
) -> None:
    others = [
        ready(f"shadow-2-{number}", holders=tuple(keys)) for number, keys in enumerate(elsewhere)
    ]
    assert pods_without_devices(others, bound) == unsure  # type: ignore[arg-type]
    here = ready("shadow-2-here")
    user = may_be_used(here, others, bound)  # type: ignore[arg-type]
    assert user == ("/".join(unsure[0]) if unsure else None)


def test_a_pod_that_holds_a_device_uses_its_shadow_pod_wherever_its_other_devices_are() -> None:
    here = ready("shadow-2-here", holders=(P,))
    others = [ready("shadow-2-other", holders=(P, P))]
    assert may_be_used(here, others, [_bound(2)]) == "team-a/p"  # type: ignore[list-item]


def test_holders_of_what_has_lost_its_pod_count_while_they_are_there() -> None:
    lost = replace(ready("shadow-2-here", holders=(P,), in_use=True), pod=None)
    other = ready("shadow-2-other", holders=(P,))
    assert may_be_used(lost, [other], [_bound(1)]) == "team-a/p"  # type: ignore[list-item]
    assert may_be_used(lost, [other], []) is None
