"""How a card is taken back: for what a borrower has a notice, whether a slow borrower holds up
others, and which pods may not start on the card."""

import asyncio
import json
import os
from collections.abc import Callable

import grpc
import pytest

from mizar_core.names import SPOT_RESOURCE
from mizar_core.spot_rules import SpotRules
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.spot import reclaim
from mizar_nodeagent.spot.loan import CardState
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CARD, GIB, UID, card
from unit.nodeagent.spot_world import (
    BORROWER,
    DEVICE,
    LOW_POWER,
    OWNER,
    SpotWorld,
    Victim,
    add_process_that_hangs,
    goes,
    is_stopped,
    pod_object,
    rules,
)
from unit.nodeagent.spot_world import world as world
from unit.nodeagent.test_assembly import limits_of

SECOND = card(2).uuid
OTHER_UID = "87654321" + UID[8:]
OTHER = KubePod("team-c", "quick", OTHER_UID)
FOREIGN = "example.com/gpu"
NOTICE = {"mizar.share/spot-notice": "30"}


def a_stranger_comes(world: SpotWorld) -> None:
    world.add_owner(KubePod("team-c", "proud", "uid-proud"), annotations=None)


def its_owner_goes(world: SpotWorld) -> None:
    world.kubelet.remove_pod(OWNER.uid)
    world.api.delete_pod(OWNER.namespace, OWNER.name)


def it_fails(world: SpotWorld) -> None:
    world.cards.tell(CARD, 79)


def it_vanishes(world: SpotWorld) -> None:
    del world.cards.present[CARD]


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (a_stranger_comes, "OwnerAlive"),
        (its_owner_goes, "OwnerGone"),
        (it_fails, "DeviceLost"),
        (it_vanishes, "DeviceLost"),
    ],
)
async def test_no_notice_delays_what_no_owner_agreed_to(
    world: SpotWorld, happens: Callable[[SpotWorld], None], reason: str
) -> None:
    """A pod that holds the card and lends nothing would wait for it; a card without an owner may be
    given to such a pod at any moment."""
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        await world.lend(NOTICE)
        happens(world)
        await until(lambda: world.pod_condition(BORROWER) == goes(reason))
        assert victim.ended() and victim.heard() == []
    assert world.metric("mizar_spot_evictions_total", reason=reason) == 1


async def test_a_borrower_is_told_whose_card_it_was(world: SpotWorld) -> None:
    """Also where no pod owns it any more. Owners that are gone are told nothing."""
    other = KubePod("team-a", "other", "uid-other")
    world.add_owner()
    world.add_owner(other)
    await world.lendable()
    await world.lend()
    condition = world.api.conditions
    await until(lambda: world.pod_condition(BORROWER)[0] == "mizar.share/borrows")
    both = f"card {CARD} of team-a/other, team-a/owner"
    await until(lambda: condition["team-b", "train"]["message"] == both)
    whose = "team-a/owner"
    world.kubelet.remove_pod(other.uid)
    await until(lambda: condition["team-b", "train"]["message"] == f"card {CARD} of {whose}")
    its_owner_goes(world)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerGone"))
    await until(lambda: world.notes("SpotEvicted"))
    ((_, told),) = world.notes("SpotEvicted")
    assert told.startswith(f"the pod loses card {CARD} of {whose}: no pod owns it any more"), told
    assert condition["team-b", "train"]["message"].startswith(f"card {CARD} of {whose}:")
    assert not world.notes("OwnerWoke")


async def test_a_borrower_of_two_cards_goes_for_one_reason(world: SpotWorld) -> None:
    """That which was counted, though another of its cards is taken back for another reason before
    it has gone. The owner of that card is told as well, once."""
    world.add_owner()
    world.add_owner(KubePod("team-a", "other", "uid-other"), SECOND)
    await world.lendable()
    await world.lendable(SECOND)
    await world.lend(cards=2)
    its_owner_goes(world)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerGone"))
    world.cards.working[SECOND] = {os.getpid(): 90}
    await until(lambda: world.lender.loans[SECOND].reason == "OwnerBack")
    await world.replanned()
    assert world.pod_condition(BORROWER) == goes("OwnerGone")
    assert world.metric("mizar_spot_evictions_total", reason="OwnerGone") == 1
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 0
    assert len(world.notes("SpotEvicted")) == 1
    told = f"card {SECOND} is taken back from spot pod team-b/train: its owner is active again"
    await until(lambda: world.notes("OwnerWoke") == [("other", told)])


async def test_a_borrower_is_told_why_its_cards_owner_is_not_known(world: SpotWorld) -> None:
    """The owner goes while no node agent runs."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    await world.stop_agent()
    its_owner_goes(world)
    await world.start_agent()
    await until(lambda: world.notes("SpotEvicted"))
    ((_, told),) = world.notes("SpotEvicted")
    why = "its owner is not known: this node agent has seen none since it started"
    assert told.startswith(f"the pod loses card {CARD} ({why}): no pod owns it"), told


async def test_an_eviction_does_not_wait_for_a_notice_that_has_ended(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that no signal ends holds it up for LONG_S from the end of the notice on."""
    monkeypatch.setattr(reclaim, "LONG_S", 2 * PATIENCE_S)
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    add_process_that_hangs(world)
    await world.lend(NOTICE)
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.notes("SpotEvicted"))
    monkeypatch.setattr(reclaim, "LONG_S", 0.1)
    a_stranger_comes(world)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerAlive"))


@pytest.mark.parametrize(
    ("happens", "reason"), [(a_stranger_comes, "OwnerAlive"), (its_owner_goes, "OwnerGone")]
)
async def test_a_notice_ends_when_no_owner_agrees_to_it_any_more(
    world: SpotWorld, happens: Callable[[SpotWorld], None], reason: str
) -> None:
    """The borrower would compute beside a pod that never agreed. What it is told, what is counted
    and why it is evicted name the last reason."""
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        held = await world.lend({"mizar.share/spot-notice": "30"})
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: victim.heard() == ["USR1"])
        assert not is_stopped(held) and not victim.ended()
        happens(world)
        await until(lambda: world.pod_condition(BORROWER) == goes(reason))
        assert is_stopped(held) and victim.ended() and victim.heard() == ["USR1"]
    assert world.metric("mizar_spot_evictions_total", reason=reason) == 1
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 0
    await until(lambda: len(world.notes("SpotEvicted")) == 2)
    (_, first), (_, last) = world.notes("SpotEvicted")
    assert "in 30 s" in first and "(OwnerBack)" in first
    assert "in 30 s" not in last and f"({reason})" in last


async def test_a_pool_that_lends_no_more_gives_the_notice_that_it_permitted(
    world: SpotWorld,
) -> None:
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        await world.lend(NOTICE)
        world.api.rules = ""
        await until(lambda: victim.heard() == ["USR1"])
        assert not world.must_go()


async def test_a_borrower_that_takes_its_time_holds_up_no_other(world: SpotWorld) -> None:
    """The owners of two cards wake at the same time."""
    world.api.rules = rules(grace_seconds=30).to_json()
    world.add_owner()
    world.add_owner(KubePod("team-a", "other", "uid-other"), SECOND)
    await world.lendable()
    await world.lendable(SECOND)
    with Victim(world, deaf=True) as slow, Victim(world, pod=OTHER_UID) as quick:
        await world.lend({"mizar.share/spot-grace": "30"})
        await start_other(world)
        await until(lambda: world.state(SECOND) is CardState.LENT)
        world.cards.working = {CARD: {os.getpid(): 90}, SECOND: {os.getpid(): 90}}
        await until(lambda: slow.heard() == ["TERM"])
        await until(lambda: world.pod_condition(OTHER) == goes("OwnerBack"))
        assert quick.ended() and not slow.ended()


async def test_an_owner_whose_container_starts_again_gets_its_card_back(world: SpotWorld) -> None:
    """It is about to work, though at each moment the detectors find it idle."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    again = pod_object(OWNER, "nvidia.com/gpu", LOW_POWER)
    status = {"name": "main", "containerID": f"containerd://{'ef' * 32}"}
    again["status"]["containerStatuses"] = [status]
    world.api.put_pod(again)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_processes_that_start_later_are_ended_as_well(world: SpotWorld) -> None:
    """As by `kubectl exec`, before the pod is evicted: the owner would not have its card alone."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.metric("mizar_spot_reclaim_seconds_count") == 1)
    with Victim(world) as late:
        await until(late.ended)


async def start_other(world: SpotWorld) -> Allocated:
    """Bind and start another borrower."""
    world.api.put_pod(pod_object(OTHER, SPOT_RESOURCE))
    await world.knows(OTHER)
    await world.kubelet.allocate(OTHER, "main", SPOT_RESOURCE, 1)
    return await world.kubelet.start_container(OTHER, "main", SPOT_RESOURCE)


async def test_a_card_is_withdrawn_before_the_next_plan(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy agent plans late, and until then the scheduler would bind pods to the card."""
    world.add_owner()
    await world.lendable()
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "1"))
    await world.plan_no_more(monkeypatch)
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: DEVICE not in world.kubelet.healthy(SPOT_RESOURCE))
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "0"))
    # The kubelet may still write the count that it had before.
    world.api.node["status"]["allocatable"][SPOT_RESOURCE] = "1"
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "0"))
    world.cards.working.clear()
    await until(lambda: DEVICE in world.kubelet.healthy(SPOT_RESOURCE))


async def test_the_node_has_no_spot_devices_until_the_kubelet_has_offered_one(
    world: SpotWorld,
) -> None:
    """Until a kubelet knows the resource it copies its capacity to allocatable, and pods were bound
    to a card that was not lent, and failed."""
    world.cards.working[CARD] = {os.getpid(): 90}
    world.add_owner()
    await until(lambda: DEVICE in world.kubelet.devices.get(SPOT_RESOURCE, {}))
    await until(lambda: world.node(SPOT_RESOURCE) == ("0", "0"))
    await world.replanned()
    assert world.node(SPOT_RESOURCE) == ("0", "0")
    world.cards.working.clear()
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "1"))


async def test_nobody_starts_on_a_card_that_another_pod_borrows(world: SpotWorld) -> None:
    """The kubelet may give a device to the next pod before the one before has ended."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    own = Owner(BORROWER.namespace, BORROWER.name, BORROWER.uid, "main")
    other = Owner(OTHER.namespace, OTHER.name, OTHER.uid, "main")
    await until(lambda: world.lender.objection(CARD, other) == "pod team-b/train borrows it")
    assert world.lender.objection(CARD, own) is None


async def test_the_reserve_is_lent_to_nobody(world: SpotWorld) -> None:
    """Of a card on which no more is free, a borrower gets nothing."""
    world.add_owner()
    await world.lendable()
    world.cards.free = GIB
    with pytest.raises(grpc.aio.AioRpcError, match="has no memory to lend"):
        await start_other(world)
    world.cards.free += 1 << 20
    held = await world.kubelet.start_container(OTHER, "main", SPOT_RESOURCE)
    assert limits_file.read(limits_of(held)).cards[0].memory_limit == 1 << 20


async def test_a_borrower_is_told_as_what_its_owner_holds_the_card(world: SpotWorld) -> None:
    """A pool may share cards that another device plugin offers."""
    (rule,) = rules().rules
    world.api.rules = SpotRules(rules=(rule.changed(physical_resource=FOREIGN),)).to_json()
    world.kubelet.physical_resource = FOREIGN
    world.add_owner()
    await world.lendable()
    held = await start_other(world)
    (named,) = held.answer.annotations.values()
    assert json.loads(named) == {FOREIGN: [CARD]}


async def test_a_context_that_is_being_measured_costs_the_borrower_no_memory(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent measures it on a card of that model, by a process that takes memory meanwhile."""
    measuring, measured = asyncio.Event(), asyncio.Event()

    async def measure(uuid: str) -> int:
        measuring.set()
        await measured.wait()
        return 300 << 20

    await world.stop_agent()
    monkeypatch.setattr(world.cards, "context_bytes", measure)
    await world.start_agent()
    await world.serve_shadow()
    await until(measuring.is_set)
    world.add_owner(OWNER, SECOND)
    await world.lendable(SECOND)
    starting = asyncio.create_task(start_other(world))
    await until(lambda: world.state(SECOND) is CardState.LENT)
    await world.replanned()
    world.cards.free += GIB
    measured.set()
    held = await starting
    assert limits_file.read(limits_of(held)).cards[0].memory_limit == 12 * GIB


class TestDeviceNodes:
    """Where the agent names device nodes, a borrower gets those of its own card."""

    @pytest.fixture
    async def world(self, world: SpotWorld) -> SpotWorld:
        await world.stop_agent()
        world.access = CardAccess(strategy="Mounts")
        await world.start_agent()
        world.add_owner(OWNER, SECOND)
        await world.lendable(SECOND)
        return world

    async def test_a_borrower_gets_that_of_its_card(self, world: SpotWorld) -> None:
        held = await start_other(world)
        nodes = {one.host_path for one in held.answer.devices}
        assert "/dev/nvidia1" in nodes and "/dev/nvidia0" not in nodes

    async def test_one_that_is_another_cards_by_now_is_not_used(self, world: SpotWorld) -> None:
        """The kubelet restarts a container with the device nodes of its first start."""
        await start_other(world)
        world.cards.numbers[SECOND] = 7
        with pytest.raises(grpc.aio.AioRpcError, match="the driver has renumbered its cards"):
            await world.kubelet.start_container(OTHER, "main", SPOT_RESOURCE)
