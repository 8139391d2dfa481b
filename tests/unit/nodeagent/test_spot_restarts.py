"""Lent cards while node agent, kubelet or NVML end and start again."""

import os
import time
from pathlib import Path

import pytest

from mizar_core.names import SPOT_RESOURCE
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.plugin import manager
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.spot.detectors import card_processes
from mizar_nodeagent.spot.loan import CardState
from support.waiting import until
from unit.nodeagent.fake_kubelet import KubePod
from unit.nodeagent.makers import CARD, RESOURCE, card
from unit.nodeagent.spot_world import (
    AWAKE,
    BORROWER,
    DEVICE,
    LOW_POWER,
    OWNER,
    RULES,
    SpotWorld,
    Victim,
    asleep,
    goes,
    is_stopped,
    make_nvml_hang,
    pod_object,
    rules,
)
from unit.nodeagent.spot_world import world as world
from unit.nodeagent.test_assembly import SHARE, limits_of


async def test_a_registration_that_the_kubelet_has_undone_is_made_again(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream stays open, so that only the kubelet's answer shows it."""
    monkeypatch.setattr(manager, "UNDONE_AFTER_S", 0.2)
    world.add_owner()
    await world.lendable()
    world.kubelet.undo_registration(SPOT_RESOURCE)

    def is_serving() -> bool:
        world.app.poller.poll_soon()
        return world.kubelet.is_serving(SPOT_RESOURCE)

    await until(is_serving)


async def test_a_card_of_which_nvml_tells_stays_lent_long_after_the_agent_has_started(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_processes, "FIRST_S", 0.0)
    world.add_owner()
    await world.lendable()
    await world.lend()
    await world.looked()
    assert world.state() is CardState.LENT


async def test_an_agent_that_starts_while_nvml_hangs_pauses_borrowers_and_takes_cards_back(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVML the agent does not even know which whole card a pod holds."""
    world.add_owner()
    await world.lendable()
    held = await world.lend()
    await until(world.lender.sees_owners)
    await world.stop_agent()
    answers = make_nvml_hang(world, monkeypatch)
    await world.start_agent()
    await until(lambda: world.state() is CardState.LENT)
    beat = limits_file.read(limits_of(held)).live[0].beat
    await world.replanned()
    await until(lambda: world.lender.watched() == {CARD})
    assert not world.lender.sees_owners() and not world.lender.owners
    assert limits_file.read(limits_of(held)).live[0].beat == beat
    monkeypatch.setattr(card_processes, "FIRST_S", 0.0)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
    answers.set()
    await until(world.lender.sees_owners)


async def test_an_owner_that_sleeps_is_not_told_that_it_works(world: SpotWorld) -> None:
    """An agent that ends while it takes back both cards of a borrower leaves no word on which of
    them has the active owner."""
    second = card(2).uuid
    world.add_owner()
    world.add_owner(KubePod("team-a", "other", "uid-other"), second)
    await world.lendable()
    await world.lendable(second)
    await world.lend(cards=2)
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.notes("OwnerWoke"))
    await world.stop_agent()
    world.cards.working.clear()
    await world.start_agent()
    for uuid in (CARD, second):
        await until(lambda one=uuid: world.state(one) is CardState.RECLAIMING)  # type: ignore[misc]
    await until(lambda: world.must_go() and len(world.notes("SpotEvicted")) == 2)
    await world.replanned()
    assert [pod for pod, _ in world.notes("OwnerWoke")] == ["owner"]


async def test_borrowers_compute_on_once_a_late_nvml_answers(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_owner()
    await world.lendable()
    held = await world.lend()
    await world.stop_agent()
    answers = make_nvml_hang(world, monkeypatch)
    await world.start_agent()
    await until(lambda: world.state() is CardState.LENT)
    await world.replanned()
    answers.set()
    await until(world.lender.sees_owners)
    beat = limits_file.read(limits_of(held)).live[0].beat
    await until(lambda: limits_file.read(limits_of(held)).live[0].beat > beat)
    assert world.state() is CardState.LENT


async def test_shims_are_told_of_cards_only_what_they_do_not_know(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time takes a part of the time in which the kubelet waits for the next Allocate."""
    told: list[tuple[Path, bool]] = []
    tell = limits_file.set_borrowed
    monkeypatch.setattr(
        limits_file,
        "set_borrowed",
        lambda path, uuids: (told.append((path, bool(uuids))), tell(path, uuids)),
    )
    world.api.rules = ""
    await world.serve_shadow()
    limits = limits_of(await world.start_share(annotations=LOW_POWER))
    await world.replanned()
    await world.replanned()
    assert told == []
    world.api.rules = RULES.to_json()
    await until(lambda: bool(limits_file.read(limits).asleep))
    await world.stop_agent()
    world.api.rules = ""
    await world.start_agent()
    await until(lambda: not limits_file.read(limits).asleep)
    await world.replanned()
    assert told == [(limits, True), (limits, False)]


async def test_an_agent_that_lends_no_more_tells_owners_of_the_one_before(
    world: SpotWorld,
) -> None:
    """Lending is switched off, so all agents start anew. An owner that was told nothing earlier is
    told nothing now."""
    world.add_owner()
    other = KubePod("team-a", "other", "uid-other")
    world.add_owner(other, card(2).uuid, annotations={})
    await world.lendable()
    await until(lambda: world.pod_condition(OWNER) == asleep("CardLendable"))
    await world.stop_agent()
    world.api.rules = ""
    await world.start_agent()
    await until(lambda: world.pod_condition(OWNER) == AWAKE)
    assert not world.pod_condition(other)[0]


async def test_a_lent_card_stays_lent_across_the_agents_restart(world: SpotWorld) -> None:
    """No other card is lent before everything has been seen."""
    world.add_owner()
    world.add_owner(KubePod("team-a", "other", "uid-other"), card(2).uuid)
    await world.lendable()
    await world.lendable(card(2).uuid)
    held = await world.lend()
    borrowed = next(uuid for uuid in (CARD, card(2).uuid) if world.state(uuid) is CardState.LENT)
    before = limits_file.read(limits_of(held)).seq
    other = card(2).uuid if borrowed == CARD else CARD
    await world.stop_agent()
    world.api.rules_down = True
    await world.start_agent()
    await until(lambda: world.state(borrowed) is CardState.LENT)
    await until(lambda: world.app.pods.synced.is_set())
    await world.replanned()
    assert (world.state(borrowed), world.state(other)) == (CardState.LENT, CardState.WITHHELD)
    world.api.rules_down = False
    await world.lendable(other)
    assert world.state(borrowed) is CardState.LENT
    assert limits_file.read(limits_of(held)).seq == before
    assert not world.must_go()


async def test_a_look_at_a_snapshot_that_was_not_read_yet_takes_nothing_back(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time slicer or NVML may report something while the agent makes a plan."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    await world.stop_agent()
    replan = AgentState.replan

    def replan_and_look(state: AgentState, snapshot: NodeSnapshot) -> Plan:
        plan = replan(state, snapshot)
        world.lender.step()
        return plan

    monkeypatch.setattr(AgentState, "replan", replan_and_look)
    world.api.rules_down = True
    await world.start_agent()
    await until(lambda: world.state() is CardState.LENT)
    await until(lambda: world.app.pods.synced.is_set())
    await world.looked()
    world.api.rules_down = False
    world.add_owner(KubePod("team-a", "other", "uid-other"), card(2).uuid)
    await world.lendable(card(2).uuid)
    assert world.state() is CardState.LENT
    assert not world.must_go()


async def test_an_agent_that_starts_without_the_api_server_sees_an_owner_work(
    world: SpotWorld,
) -> None:
    """The agent beats the borrower's heartbeat, so it must watch the owners, too."""
    world.add_owner()
    await world.lendable()
    with Victim(world) as victim:
        held = await world.lend()
        await world.stop_agent()
        world.api.down = True
        await world.start_agent()
        await until(lambda: world.state() is CardState.LENT)
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(victim.ended)
        assert is_stopped(held)
        world.api.down = False
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_an_agent_that_starts_without_the_api_server_leaves_a_loan_alone(
    world: SpotWorld,
) -> None:
    """Meanwhile it does not know which owners agreed, and by which rule. The owner has another
    card."""
    world.add_owner(OWNER, CARD, card(2).uuid)
    await world.lendable()
    await world.lendable(card(2).uuid)
    held = await world.lend()
    borrowed = next(uuid for uuid in (CARD, card(2).uuid) if world.state(uuid) is CardState.LENT)
    before = limits_file.read(limits_of(held)).seq
    await world.stop_agent()
    world.api.down = True
    await world.start_agent()
    await until(lambda: world.state(borrowed) is CardState.LENT)
    await world.looked()
    assert world.lender.loans[borrowed].owners
    assert world.state(borrowed) is CardState.LENT
    world.api.down = False
    await until(lambda: world.app.pods.synced.is_set())
    await world.lendable(next(iter({CARD, card(2).uuid} - {borrowed})))
    await world.looked()
    assert world.state(borrowed) is CardState.LENT
    assert limits_file.read(limits_of(held)).seq == before
    assert not world.must_go()


async def test_an_agent_without_checkpoint_and_api_server_leaves_what_owners_were_told(
    world: SpotWorld,
) -> None:
    """The owners' shims go on reporting copies, which nothing else would show."""
    await world.serve_shadow()
    world.api.put_pod(pod_object(SHARE, RESOURCE, LOW_POWER))
    await world.knows(SHARE)
    await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    owner = await world.kubelet.start_container(SHARE, "main", RESOURCE)
    await world.lendable()
    await world.lend()

    def is_told() -> bool:
        return limits_file.read(limits_of(owner)).live[0].borrowed == 1

    await until(is_told)
    await world.stop_agent()
    (world.config.state_dir / "checkpoint.json").unlink()
    world.api.down = True
    await world.start_agent()
    await until(lambda: world.state() is CardState.LENT)
    await world.replanned()
    assert is_told()


async def test_what_an_agent_began_to_take_back_the_next_one_does(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    held = await world.lend()
    await world.stop_agent()
    limits_file.stop_cards(limits_of(held))
    await world.start_agent()
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_a_lent_card_stays_lent_across_the_kubelets_restart(world: SpotWorld) -> None:
    """A kubelet that has not been told of its pods yet lists none: that says nothing about who
    holds what."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    await until(lambda: world.pod_condition(OWNER) == asleep("CardLent"))
    # The old one knows them until it has gone.
    await world.kubelet.stop()
    world.kubelet.knows_its_pods = False
    await world.kubelet.start()
    asked = world.kubelet.asked
    await until(lambda: world.kubelet.asked > asked + 1)
    world.kubelet.knows_its_pods = True
    await world.replanned()
    await until(lambda: DEVICE in world.kubelet.healthy(SPOT_RESOURCE))
    assert world.state() is CardState.LENT
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 0
    assert world.pod_condition(OWNER) == asleep("CardLent")


async def test_a_card_stays_lent_when_agent_and_kubelet_start_together(world: SpotWorld) -> None:
    """The agent has seen no answer of an earlier kubelet, but its own slots."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    await until(lambda: world.pod_condition(OWNER) == asleep("CardLent"))
    await world.stop_agent()
    await world.kubelet.stop()
    world.kubelet.knows_its_pods = False
    await world.kubelet.start()
    await world.start_agent()
    asked = world.kubelet.asked
    await until(lambda: world.kubelet.asked > asked + 1)
    assert world.app.poller.claims == Claims()
    world.kubelet.knows_its_pods = True
    await until(lambda: DEVICE in world.kubelet.healthy(SPOT_RESOURCE))
    assert world.state() is CardState.LENT
    assert world.pod_condition(OWNER) == asleep("CardLent")
    assert not world.must_go()


async def test_how_often_a_card_was_taken_back_outlives_the_agent(world: SpotWorld) -> None:
    """Also when the next agent has to finish what the last one began: that counts once."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.state() is CardState.RECLAIMING)
    (taken,) = world.lender.loans[CARD].taken_back
    await world.replanned()
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.state() is CardState.RECLAIMING)
    assert world.lender.loans[CARD].taken_back == (taken,)


async def test_an_agent_that_dies_during_a_notice_ends_it(world: SpotWorld) -> None:
    """The next agent gives no other notice, also where the owner sleeps again: otherwise an agent
    that dies again and again would let the borrower go on computing."""
    world.api.rules = rules(notice_seconds=30, grace_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        wants = {"mizar.share/spot-notice": "30", "mizar.share/spot-grace": "30"}
        held = await world.lend(wants)
        await world.stop_agent()
        limits_file.give_notice(limits_of(held), [CARD])
        await world.start_agent()
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
        assert victim.ended() and victim.heard() == []


async def test_an_agent_that_ends_during_a_notice_stops_the_borrower(world: SpotWorld) -> None:
    """Nothing tells when the next agent comes, and until then nothing else would stop it."""
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        held = await world.lend({"mizar.share/spot-notice": "30"})
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: victim.heard() == ["USR1"])
        await world.stop_agent()
        assert is_stopped(held)
        assert not victim.ended()
        await world.start_agent()
        await until(victim.ended)


async def test_a_card_stays_lent_while_a_new_kubelet_knows_only_static_pods(
    world: SpotWorld,
) -> None:
    """The owner would be gone, and then come back as a new one, for which the borrower goes."""
    static = KubePod("kube-system", "monitor-node-1", "uid-static")
    world.kubelet.add_pod(static, main=["fuse-0"])
    world.add_owner()
    await world.lendable()
    await world.lend()
    await until(lambda: world.pod_condition(OWNER) == asleep("CardLent"))
    await world.kubelet.stop()
    pods, allocated = world.kubelet.pods, dict(world.kubelet.allocated)
    world.kubelet.pods = {static.uid: static}
    await world.kubelet.start()
    asked = world.kubelet.asked
    await until(lambda: world.kubelet.asked > asked + 1)
    world.kubelet.pods, world.kubelet.allocated = pods, allocated
    since = time.monotonic()
    await until(lambda: world.app.poller.claims.asked_at > since)
    await world.replanned()
    assert world.state() is CardState.LENT
    assert not world.must_go()
