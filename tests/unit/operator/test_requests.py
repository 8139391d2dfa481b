"""Devices are counted as the scheduler counts them."""

from typing import Any

import pytest

from mizar_operator.requests import devices_asked

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
    assert devices_asked({"initContainers": init, "containers": main}) == {GPU: expected}


def test_other_resources_do_not_count() -> None:
    limits = {"nvidia.com/gpu": "1", "mizar.share.gpu.2": "1", "memory": "1Gi"}
    assert devices_asked({"containers": [{"resources": {"limits": limits}}]}) == {}


def test_two_resources_are_two_demands() -> None:
    limits = {"a.mizar.share/gpu.2": "1", "a.mizar.share/gpu.4": "2"}
    assert devices_asked({"containers": [{"resources": {"requests": limits}}]}) == {
        "a.mizar.share/gpu.2": 1,
        "a.mizar.share/gpu.4": 2,
    }
