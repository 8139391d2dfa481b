"""Annotations in the forms that HAMi's dashboards read."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from mizar_kube.errors import Unavailable
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.hami_node_annotations import (
    HamiAnnotations,
    handshake_value,
    register_value,
    registered,
)
from unit.nodeagent.makers import card, card_claim, cards, carve, shadow, snapshot

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
ONE, TWO = card(1).uuid, card(2).uuid


@pytest.fixture
def state() -> AgentState:
    """A card that is divided into four devices, and a broken card that is not shared."""
    made = AgentState()
    how = carve(
        resource="team-a.mizar.share/gpu.4",
        devices=4,
        memory_scaling="1.5",
        core_scaling="2",
    )
    broken = replace(card(2, problem="fell off the bus"), model="Tesla T4", numa=(1,))
    known = {ONE: card(1), TWO: broken}
    made.replan(snapshot(1, [shadow(carve=how)], [card_claim()], cards=known))
    return made


def test_as_todays_hami_writes_it(state: AgentState) -> None:
    assert json.loads(register_value(registered(state), "JSON")) == [
        {
            "id": ONE,
            "count": 4,
            "devmem": 24576,
            "devcore": 200,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "hami-core",
            "health": True,
        },
        {
            "id": TWO,
            "count": 1,
            "devmem": 16384,
            "devcore": 100,
            "type": "NVIDIA-Tesla T4",
            "numa": 1,
            "mode": "hami-core",
            "health": False,
        },
    ]


def test_as_hami_wrote_it_before(state: AgentState) -> None:
    assert register_value(registered(state), "Text") == (
        f"{ONE},4,24576,200,NVIDIA A100-SXM4-40GB,0,true:{TWO},1,16384,100,NVIDIA-Tesla T4,1,false:"
    )


def test_a_card_that_mig_divides_is_none() -> None:
    state = AgentState()
    state.replan(snapshot(1, cards={ONE: replace(card(1), divided=True), TWO: card(2)}))
    assert [one.id for one in registered(state)] == [TWO]


def test_when_it_was_told() -> None:
    assert handshake_value(NOW) == "Reported 2026-01-02 03:04:05 +0000 UTC"


class Api:
    """Remembers what was written to the node."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def patch_merge(self, ref: Any, body: Any, subresource: str) -> None:
        assert (ref.name, subresource) == ("n", "status")
        if self.error:
            raise self.error
        self.written.append(body["metadata"]["annotations"])


class TestWriter:
    async def test_writes_changes_at_once_and_the_time_now_and_then(
        self, state: AgentState
    ) -> None:
        api, seconds = Api(), [0.0]
        made = HamiAnnotations(api, "n", state, "Text", lambda: seconds[0], lambda: NOW)  # type: ignore[arg-type]
        await made.write()
        await made.write()
        assert len(api.written) == 1
        assert api.written[0].keys() == {REGISTER, HANDSHAKE}
        state.replan(snapshot(2, cards=cards(1)))
        await made.write()
        assert api.written[1][REGISTER] != api.written[0][REGISTER]
        seconds[0] = 30.0
        await made.write()
        assert api.written[2] == api.written[1]

    async def test_what_could_not_be_written_is_written_later(self, state: AgentState) -> None:
        api = Api()
        made = HamiAnnotations(api, "n", state, "JSON", lambda: 0.0)  # type: ignore[arg-type]
        api.error = Unavailable("away")
        with pytest.raises(Unavailable):
            await made.write()
        await made.withdraw()
        api.error = None
        await made.write()
        assert len(api.written) == 1

    async def test_takes_them_away_at_its_end(self, state: AgentState) -> None:
        api = Api()
        made = HamiAnnotations(api, "n", state, "JSON", lambda: 0.0)  # type: ignore[arg-type]
        await made.withdraw()
        assert api.written == [{REGISTER: None, HANDSHAKE: None}]
