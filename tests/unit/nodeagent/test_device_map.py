"""Which pods hold which devices, as the agent shows at /debug/devices."""

import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.device_map import PATH, device_map
from mizar_nodeagent.planning import plan
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    SHADOW,
    card,
    card_claim,
    device,
    shadow,
    share_claim,
    snapshot,
)
from unit.nodeagent.test_assembly import SHARE, World, until
from unit.nodeagent.test_assembly import world as world


async def test_a_shared_card(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    async with TestClient(TestServer(world.app.application())) as client:
        found = await (await client.get(PATH)).json()
    (slot,) = world.app.slots.all()
    (given,) = held.ids
    assert (found["apiServerHeard"], found["devicesOfUnknownShadowPods"]) == (True, [])
    carved = {one["uuid"]: one["shadowPod"] for one in found["cards"]}
    assert len(carved) == 4 and carved[CARD] == "/".join(SHADOW)
    (shadow,) = found["shadowPods"]
    assert shadow["name"] == "/".join(SHADOW) and shadow["cards"] == [CARD]
    assert (shadow["resource"], shadow["stage"]) == (RESOURCE, "Serving")
    assert {
        one["id"]: (one["state"], one["holder"], one["healthy"]) for one in shadow["devices"]
    } == {
        device(0): ("Free", None, True),
        device(1): ("Free", None, True),
    } | {given: ("Held", "team-a/share/main", True)}
    (pod,) = found["sharePods"]
    assert pod == {
        "name": f"{SHARE.namespace}/{SHARE.name}",
        "containers": [
            {
                "container": "main",
                "devices": [given],
                "shadowPods": ["/".join(SHADOW)],
                "slot": slot.name,
                "shim": True,
            }
        ],
    }


async def test_before_anything_is_known(world: World) -> None:
    found = device_map(world.app.agent.state, [], 0.0)
    assert json.loads(json.dumps(found))["shadowPods"] == []


OTHER = ("team-a", "shadow-2-other")


def served(now: float = 1.0, claims: Any = (), **changes: Any) -> AgentState:
    """An agent that serves a shadow pod on a card; the kubelet knows one of its two devices."""
    state = AgentState()
    given = {"kubelet": {RESOURCE: {device(0)}}, **changes}
    state.replan(snapshot(now, [shadow()], [card_claim(), *claims], **given))
    return state


def devices(found: dict[str, Any], what: str) -> dict[str, Any]:
    """What the map says of each device of the only shadow pod."""
    (told,) = found["shadowPods"]
    return {one["id"]: one[what] for one in told["devices"]}


def test_a_device_that_is_about_to_be_given_and_one_that_the_kubelet_knows() -> None:
    state = served()
    state.begin_allocation([DeviceID.parse(device(1))], 1.0)
    found = device_map(state, [], 3.0)
    assert devices(found, "state") == {device(0): "Free", device(1): "Allocating"}
    assert devices(found, "healthyToKubelet") == {device(0): True, device(1): False}
    assert devices(found, "card") == {device(0): CARD, device(1): CARD}
    assert (found["plannedSecondsAgo"], found["kubeletAskedSecondsAgo"]) == (2.0, 2.0)


def test_a_card_that_fails_and_its_devices() -> None:
    bad = card(1, problem="the card reported XID 79")
    found = device_map(served(cards={CARD: bad, card(2).uuid: card(2)}), [], 1.0)
    assert {one["uuid"]: (one["problem"], one["memoryMiB"]) for one in found["cards"]} == {
        CARD: ("the card reported XID 79", 16384),
        card(2).uuid: ("", 16384),
    }
    assert devices(found, "healthy") == {device(0): False, device(1): False}


def test_what_keeps_a_node_from_carving_anew() -> None:
    """Devices that containers hold of shadow pods that the agent does not know."""
    found = device_map(served(claims=[share_claim(device(0, OTHER))]), [], 1.0)
    assert found["devicesOfUnknownShadowPods"] == [device(0, OTHER)]


def test_a_shadow_pod_for_which_planning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    state = served()
    (shadow_pod,) = device_map(state, [], 1.0)["shadowPods"]
    assert (shadow_pod["confirmed"], shadow_pod["planningError"]) == (True, None)
    monkeypatch.setattr(plan, "step", lambda *_: 1 // 0)
    state.replan(snapshot(2.0, [shadow()], [card_claim()]))
    (shadow_pod,) = device_map(state, [], 2.0)["shadowPods"]
    assert shadow_pod["planningError"].startswith("ZeroDivisionError(")
