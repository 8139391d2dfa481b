"""Which devices are preferred, example by example."""

import pytest

from mizar_core.device_ids import DeviceID, device_ids
from mizar_core.errors import PlacementRefused
from mizar_core.models import Profile
from mizar_core.preferred_allocation import preferred

A, B = device_ids("team-a", "shadow-a", 4), device_ids("team-a", "shadow-b", 4)
SHAPE = Profile(devices=4, cards=2)
SHAPES = {("team-a", "shadow-a"): SHAPE, ("team-a", "shadow-b"): SHAPE}


def _ask(
    free: list[DeviceID], size: int, *fixed: DeviceID, held: tuple[DeviceID, ...] = ()
) -> tuple[DeviceID, ...]:
    return preferred(free, fixed, size, SHAPES, held)


def test_one_shadow_pod_and_one_card() -> None:
    assert _ask([*A, *B], 2) == (A[0], A[1])


def test_a_partly_used_shadow_pod_goes_first() -> None:
    assert _ask([*A, *B[1:]], 1, held=(B[0],)) == (B[1],)


def test_a_partly_used_card_goes_first() -> None:
    assert _ask(list(A[:3]), 1, held=(A[3],)) == (A[2],)


def test_one_card_is_worth_waking_an_idle_shadow_pod() -> None:
    assert _ask([*A, B[0], B[2]], 2, held=(B[1], B[3])) == (A[0], A[1])


def test_what_must_be_included_is_and_draws_the_rest_to_it() -> None:
    assert _ask([*A, *B], 2, B[2]) == (B[2], B[3])


def test_two_shadow_pods_when_one_is_too_small() -> None:
    assert _ask([*A, *B], 6) == (*A, B[0], B[1])


def test_while_none_is_enough_the_largest_come_first() -> None:
    """Two shadow pods are used, where beginning with the smallest would take three."""
    third = device_ids("team-a", "shadow-c", 4)
    free = [*A[:2], *B, *third[:3]]
    assert _ask(free, 7) == (*B, *third[:3])


def test_one_numa_node_before_a_partly_used_shadow_pod() -> None:
    """There are four cards in four shadow pods. Two devices of one card count for more than
    nearness."""
    one_each = {("team-a", f"shadow-{name}"): Profile(devices=2, cards=1) for name in "abcd"}
    near = {"shadow-a": (0,), "shadow-b": (1,), "shadow-c": (0,), "shadow-d": ()}
    a, b, c, d = (device_ids("team-a", f"shadow-{name}", 2) for name in "abcd")

    def ask(free: list[DeviceID], *held: DeviceID) -> tuple[DeviceID, ...]:
        return preferred(free, [], 2, one_each, held, lambda one: near[one.shadow])

    assert ask([a[0], b[0], c[0]], a[1], b[1]) == (a[0], c[0])
    assert ask([a[0], *b, c[0]], a[1], c[1]) == b
    assert ask([a[0], d[0], b[0]], a[1]) == (a[0], d[0]), "what is not known is not avoided"


def test_devices_beyond_the_shape_are_taken_last() -> None:
    """Such as those of a shadow pod whose shape has changed since it was made."""
    beyond = DeviceID("team-a", "shadow-a", 4)
    assert _ask([*A, beyond], 5) == (*A, beyond)


def test_devices_of_an_unknown_shadow_pod_are_taken_too() -> None:
    stray = DeviceID("team-a", "stray", 7)
    assert preferred([stray], [], 1, {}) == (stray,)


def test_contradictions_are_refused() -> None:
    with pytest.raises(PlacementRefused, match="5 devices were asked for, 4 are available"):
        _ask(list(A), 5)
    with pytest.raises(PlacementRefused, match="must be included is not available"):
        _ask(list(A), 2, B[0])
    with pytest.raises(PlacementRefused, match="2 are fixed"):
        _ask(list(A), 1, A[0], A[1])
