"""Which pods hold which devices, as the agent shows at /debug/devices."""

import json

from aiohttp.test_utils import TestClient, TestServer

from mizar_nodeagent.device_map import PATH, device_map
from unit.nodeagent.makers import CARD, RESOURCE, SHADOW, device
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
