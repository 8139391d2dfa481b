"""What a context costs on each model of card: measured once, kept, and written into every
container's limits."""

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from mizar_core.carve import CardLimit
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cuda_context import measure
from mizar_nodeagent.cuda_context.costs import RETRY_S, ContextCosts
from mizar_nodeagent.regions import limits_file
from support.waiting import PATIENCE_S
from unit.nodeagent.makers import CARD, GIB, card, card_claim, shadow, snapshot

MIB = 1 << 20
OTHER = card(2).uuid
COST = 310 * MIB


class Lab:
    """A node on whose cards a context takes `cost`; `asked`: the cards on which one was made."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "contexts.json"
        self.state = AgentState()
        self.cost, self.now = COST, 1000.0
        self.asked: list[str] = []
        self.measured = asyncio.Event()
        self.see(driver="580.1")

    def see(self, **changes: str) -> None:
        facts = {one.uuid: replace(one, **changes) for one in (card(1), card(2))}
        self.state.replan(snapshot(1, [shadow()], [card_claim()], cards=facts))

    def see_another_model(self) -> None:
        """The second card is of a model that is not known."""
        facts = {one.uuid: replace(one, driver="580.1") for one in (card(1), card(2))}
        facts[OTHER] = replace(facts[OTHER], model="NVIDIA H100")
        self.state.replan(snapshot(1, [shadow()], [card_claim()], cards=facts))

    def costs(self) -> ContextCosts:
        """The costs as an agent has them that has just started."""
        return ContextCosts(self.path, self.state, self._measure, lambda: self.now)

    async def _measure(self, uuid: str) -> int:
        await asyncio.sleep(0)
        self.asked.append(uuid)
        self.measured.set()
        return self.cost


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


async def test_one_card_tells_for_all_of_its_model(lab: Lab) -> None:
    costs = lab.costs()
    assert costs.of(CARD) == 0
    await asyncio.gather(costs.learn([CARD]), costs.learn([OTHER, CARD]))
    assert (costs.of(CARD), costs.of(OTHER), lab.asked) == (COST, COST, [CARD])


async def test_another_agent_knows_it_until_driver_or_model_is_another(lab: Lab) -> None:
    await lab.costs().learn([CARD])
    assert lab.costs().of(CARD) == COST
    lab.see(driver="590.0")
    assert lab.costs().of(CARD) == 0
    lab.see(driver="580.1", model="NVIDIA H100")
    assert lab.costs().of(CARD) == 0


async def test_a_card_that_this_agent_has_not_read_yet(lab: Lab) -> None:
    """Its driver is not known: nothing is measured, and what an earlier agent measured holds."""
    for cost, driver in ((COST, "580.1"), (COST + MIB, "590.0"), (COST - MIB, "600.0")):
        lab.cost = cost
        lab.see(driver=driver)
        await lab.costs().learn([CARD])
    lab.see(driver="")
    costs = lab.costs()
    await costs.learn([CARD])
    assert (costs.of(CARD), lab.asked) == (COST + MIB, [CARD] * 3)
    lab.see(driver="", model="A100-SXM4-40GB")
    await costs.learn([CARD])
    assert (costs.of(CARD), lab.asked) == (0, [CARD] * 3)


async def test_what_is_known_waits_for_no_other_card(lab: Lab) -> None:
    hangs = asyncio.Event()
    await lab.costs().learn([CARD])
    lab.see_another_model()
    costs = ContextCosts(lab.path, lab.state, lambda uuid: hangs.wait(), lambda: lab.now)  # type: ignore[arg-type,return-value]
    learning = asyncio.create_task(costs.learn([OTHER]))
    await asyncio.sleep(0)
    await costs.learn([CARD])
    assert not learning.done()
    learning.cancel()


@pytest.mark.parametrize("cost", [0, -1, 16 * GIB])
async def test_what_cannot_be_is_not_told_and_tried_again_later(lab: Lab, cost: int) -> None:
    lab.cost, costs = cost, lab.costs()
    await costs.learn([CARD, CARD])
    assert (costs.of(CARD), lab.asked, lab.path.exists()) == (0, [CARD], False)
    lab.cost, lab.now = COST, lab.now + RETRY_S
    await costs.learn([CARD])
    assert costs.of(CARD) == COST


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version": 2, "contexts": {}}', '{"version": 1, "contexts": {"a": "b"}}'],
)
async def test_a_damaged_file_is_learned_again(lab: Lab, content: str) -> None:
    lab.path.write_text(content)
    costs = lab.costs()
    await costs.learn([CARD])
    assert (costs.of(CARD), lab.costs().of(CARD)) == (COST, COST)


async def test_only_cards_that_shadow_pods_hold_are_touched(lab: Lab) -> None:
    costs = lab.costs()
    running = asyncio.create_task(costs.run())
    await asyncio.wait_for(lab.measured.wait(), PATIENCE_S)
    running.cancel()
    assert lab.asked == [CARD]


def test_the_limits_say_it(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    who = limits_file.ContainerIdentity("team-a", "share", "", "main", "s")
    for contexts in ({CARD: COST}, {}):
        limits_file.write(path, who, [CardLimit(CARD, GIB, 1, "Hard", "None")], {}, contexts)
        assert limits_file.read(path).cards[0].context_bytes == contexts.get(CARD, 0)


async def measured(machine: simgpu.Machine, uuid: str) -> int:
    async def workers(uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """The processes that NVML reports."""
        cards = [machine.card(one) for one in uuids]
        return {card.uuid: {one.pid: one.memory for one in card.processes} for card in cards}

    return await measure.context_bytes(workers, uuid)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> simgpu.Machine:
    made = simgpu.create(tmp_path / "machine", cards=2, context_bytes=COST)
    for name, value in simgpu.environment(made.directory).items():
        monkeypatch.setenv(name, value)
    return made


async def test_a_context_is_made_on_that_card_and_ended(machine: simgpu.Machine) -> None:
    uuid = machine.cards[1].uuid
    machine.state.set_number(1, "context_bytes", COST + MIB)
    assert await measured(machine, uuid) == COST + MIB
    assert not machine.cards[1].processes


async def test_a_full_card_tells_nothing(machine: simgpu.Machine) -> None:
    card = machine.cards[0]
    machine.state.set_number(0, "memory_bytes", COST - MIB)
    assert await measured(machine, card.uuid) == 0


async def test_a_process_that_does_not_end_is_left_behind(
    machine: simgpu.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a process is in a driver that hangs, where no signal reaches it: every further
    measurement waits for it, and with it the start of containers."""
    kill = Process.kill
    left: list[Process] = []
    monkeypatch.setattr(measure, "END_WITHIN_S", 0.1)
    monkeypatch.setattr(Process, "kill", lambda process: left.append(process))
    monkeypatch.setattr(Process, "communicate", lambda process: asyncio.Event().wait())
    assert await measured(machine, machine.cards[0].uuid) == COST
    kill(left[0])
    await left[0].wait()


async def test_without_a_driver_nothing_is_told(
    machine: simgpu.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", os.devnull)
    assert await measured(machine, machine.cards[0].uuid) == 0
