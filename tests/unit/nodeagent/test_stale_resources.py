"""Former tenants' resources are removed from the node's status, and nothing else is."""

import pytest

from mizar_core.names import SPOT_RESOURCE
from mizar_kube.errors import Unavailable
from mizar_nodeagent.stale_resources import StaleResources, stale
from unit.nodeagent.fake_api import FakeApi, serving

GONE, HERE, IDLE = (
    "team-a.mizar.share/gpu.2",
    "team-b.mizar.share/gpu.2",
    "team-c.mizar.share/gpu.4",
)


def _status(**more: str) -> dict[str, dict[str, str]]:
    numbers = {GONE: "0", HERE: "2", IDLE: "0", "cpu": "8", "nvidia.com/gpu": "0", **more}
    return {"capacity": dict(numbers), "allocatable": dict(numbers)}


def test_only_what_nobody_serves_goes() -> None:
    assert stale(_status(), {HERE, IDLE}) == [GONE]
    assert stale(_status(), {HERE}) == [GONE, IDLE]
    assert stale({}, ()) == []


def test_the_resource_of_lent_cards_goes_where_none_are_lent_any_more() -> None:
    status = _status(**{SPOT_RESOURCE: "0"})
    assert stale(status, {HERE, IDLE}) == [SPOT_RESOURCE, GONE]
    assert stale(status, {HERE, IDLE, SPOT_RESOURCE}) == [GONE]


def test_what_the_kubelet_still_has_stays() -> None:
    """Unhealthy devices that a pod holds count in the capacity only."""
    status = _status()
    status["capacity"][GONE] = "1"
    assert stale(status, {HERE, IDLE}) == []


async def test_it_is_taken_off_both_lists_in_one_write() -> None:
    api = FakeApi()
    api.node = {"status": _status()}
    async with serving(api) as client:
        resources = StaleResources(client, "node-1", lambda: {HERE, IDLE})
        await resources.remove()
        await resources.remove()
    assert api.from_copy == api.asked[:1] + api.asked[-1:]
    assert [path for path, _ in api.writes] == ["/api/v1/nodes/node-1/status"]
    assert api.node["status"] == {
        field: {name: value for name, value in numbers.items() if name != GONE}
        for field, numbers in _status().items()
    }


async def test_an_api_server_that_is_away_is_asked_again_later() -> None:
    api = FakeApi()
    api.down = True
    async with serving(api) as client:
        with pytest.raises(Unavailable):
            await StaleResources(client, "node-1", set).remove()
