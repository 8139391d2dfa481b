"""Devices are counted as the scheduler counts them."""

from typing import Any

import pytest

from mizar_core.pod_requests import device_requests, devices_requested, is_countable, is_whole
from mizar_core.quantities import COUNT_MAX

GPU = "team-a.mizar.share/gpu.2"


def _container(count: int = 0, **fields: Any) -> dict[str, Any]:
    resources = {"limits": {GPU: str(count), "cpu": "1"}} if count else {}
    return {"name": "c", "resources": resources, **fields}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        ([], [_container(1)], 1),
        ([], [_container(1), _container(2)], 3),
        ([_container(2)], [_container(1)], 2),
        ([_container(1), _container(2)], [_container(1)], 2),
        ([_container(1, **SIDECAR)], [_container(1)], 2),
        ([_container(1, **SIDECAR), _container(3)], [_container(1)], 4),
        ([_container(3), _container(1, **SIDECAR)], [_container(1)], 3),
        ([_container(1)], [_container()], 1),
    ],
)
def test_counts(init: list[Any], main: list[Any], expected: int) -> None:
    assert devices_requested({"initContainers": init, "containers": main}) == {GPU: expected}


def test_other_resources_do_not_count() -> None:
    limits = {"nvidia.com/gpu": "1", "mizar.share.gpu.2": "1", "memory": "1Gi"}
    assert devices_requested({"containers": [{"resources": {"limits": limits}}]}) == {}


def test_two_resources_are_two_demands() -> None:
    limits = {"a.mizar.share/gpu.2": "1", "a.mizar.share/gpu.4": "2"}
    assert devices_requested({"containers": [{"resources": {"requests": limits}}]}) == {
        "a.mizar.share/gpu.2": 1,
        "a.mizar.share/gpu.4": 2,
    }


def test_a_thousand_is_written_1k() -> None:
    assert devices_requested({"containers": [{"resources": {"limits": {GPU: "1k"}}}]}) == {
        GPU: 1000
    }


@pytest.mark.parametrize("amount", ["1000001", "1e7", "1Gi", "1e30", "10e399"])
def test_what_nobody_has_is_as_much_as_can_be_counted(amount: str) -> None:
    assert devices_requested({"containers": [{"resources": {"limits": {GPU: amount}}}]}) == {
        GPU: COUNT_MAX
    }
    assert not is_countable(amount)


@pytest.mark.parametrize(
    ("amount", "whole"),
    [("1", True), ("1k", True), ("0.5", False), ("1n", False), ("-1e40", True), ("-.5", False)],
)
def test_fractions_are_told_from_numbers_of_any_length(amount: str, whole: bool) -> None:
    """Users may write -1e40, which the API server refuses only after the webhook."""
    assert is_countable(amount) and is_whole(amount) is whole


@pytest.mark.parametrize("amount", ["0", 0, "x", None])
def test_what_is_no_number_of_devices_asks_for_none(amount: Any) -> None:
    assert devices_requested({"containers": [{"resources": {"limits": {GPU: amount}}}]}) == {}


@pytest.mark.parametrize("spec", [{}, {"containers": None}, {"containers": [{"resources": None}]}])
def test_anything_may_be_missing_before_validation(spec: dict[str, Any]) -> None:
    assert devices_requested(spec) == {} and device_requests(spec) == []


def test_every_entry_says_where_it_is() -> None:
    (ask,) = device_requests(
        {"initContainers": [{}, {"name": "i", "resources": {"requests": {GPU: 1}}}]}
    )
    assert (ask.container, ask.key, ask.amount) == ("i", GPU, "1")
    assert ask.path == ("initContainers", "1", "resources", "requests")
