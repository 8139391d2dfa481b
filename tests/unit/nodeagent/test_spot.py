"""The agent lends cards, between a kubelet and an API server that behave like the real ones."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from prometheus_client import CollectorRegistry

from mizar_core.models import Spot
from mizar_core.names import SPOT_RESOURCE, SpotEvictionReason
from mizar_nodeagent.cards import ProcessLoad
from mizar_nodeagent.container.slots import Owner, Slots
from mizar_nodeagent.container_processes import PodProcess, is_sandbox
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_MODES, PRIORITY_NOTICE
from mizar_nodeagent.spot import lender, reclaim
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.detectors import card_processes
from mizar_nodeagent.spot.loan import CardLoan, CardState
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_events import PodIdentity
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_kubelet import KubePod
from unit.nodeagent.makers import CARD, GIB, RESOURCE, UID, card
from unit.nodeagent.spot_world import (
    AWAKE,
    BORROWER,
    DEVICE,
    LOW_POWER,
    OWNER,
    PRETENDS,
    SIDECAR,
    SpotWorld,
    Victim,
    add_process_that_hangs,
    asleep,
    goes,
    gone,
    is_stopped,
    make_nvml_hang,
    pod_object,
    rules,
    sandbox,
    with_init_container,
)
from unit.nodeagent.spot_world import world as world
from unit.nodeagent.test_assembly import SHARE, limits_of, mounted


@pytest.mark.parametrize(("reserve", "reserved"), [("1Gi", GIB), ("2560Mi", 5 * GIB // 2)])
async def test_a_sleeping_owners_card_is_lent(
    world: SpotWorld, reserve: str, reserved: int
) -> None:
    world.api.rules = rules(reserve=reserve).to_json()
    world.add_owner()
    await world.lendable()
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "1"))
    await until(
        lambda: world.pod_condition(OWNER) == ("mizar.share/active", "False", "CardLendable")
    )
    held = await world.lend()
    key = "mizar.k8s.io/container-devices-ids.main"
    assert json.loads(held.answer.annotations[key]) == {"nvidia.com/gpu": [CARD]}
    assert held.answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARD
    assert "/etc/ld.so.preload" in mounted(held)
    region = limits_file.read(limits_of(held))
    assert (region.pod_name, region.card_count) == (b"train", 1)
    found = region.cards[0]
    assert (found.uuid.decode(), found.memory_limit) == (CARD, 12 * GIB - reserved)
    assert (found.compute_mode, found.core_share, found.priority) == (COMPUTE_MODES["Soft"], 0, 0)
    await until(lambda: world.pod_condition(OWNER) == asleep("CardLent"))
    await until(lambda: world.notes("OwnerAsleep") and world.notes("SpotGranted"))
    (asleep_event,) = (one for one in world.api.events if one["reason"] == "OwnerAsleep")
    assert asleep_event["regarding"]["namespace"] == OWNER.namespace
    assert world.node(SPOT_RESOURCE) == ("1", "1")


async def test_looks_that_find_nothing_new_decide_nothing(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such looks come several times a second, and cost processor time that the pods could use."""
    world.add_owner()
    await world.lendable()
    steps = Mock(wraps=world.lender.step)
    monkeypatch.setattr(world.lender, "step", steps)
    world.lender.look_at_usage()
    world.lender.look_at_processes({CARD: {}})
    assert not steps.called
    world.lender.look_at_processes({CARD: {os.getpid(): ProcessLoad(90)}})
    assert steps.called


async def test_a_card_is_taken_back_when_nvml_hangs(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would show that an owner without the shim works."""
    world.add_owner()
    await world.lendable()
    await world.lend()
    monkeypatch.setattr(card_processes, "BLIND_S", 0.3)
    answers = make_nvml_hang(world, monkeypatch)
    await until(lambda: world.state() is CardState.RECLAIMING)
    await gone(world)
    answers.set()
    await world.lendable()


async def test_a_failed_read_of_the_cards_withdraws_none(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML fails now and then for a moment, and all lendable cards of the node were withdrawn. Were
    it for longer, their owners' processes would not be seen, either."""
    world.add_owner()
    await world.lendable()
    monkeypatch.setattr(world.cards, "read", AsyncMock(side_effect=CardsUnknown("a hiccup")))
    await until(lambda: world.app.agent.state.snapshot.cards_problem == "a hiccup")
    await world.replanned()
    assert world.state() is CardState.LENDABLE


async def test_nobody_starts_on_a_card_that_the_agent_does_not_know(world: SpotWorld) -> None:
    """As when a container starts again whose card NVML does not list any more."""
    borrower = Owner(BORROWER.namespace, BORROWER.name, BORROWER.uid, "main")
    assert world.lender.objection("GPU-unknown", borrower) == "it is withheld"


async def test_the_card_of_an_owner_that_did_not_agree_is_not_lent(world: SpotWorld) -> None:
    world.add_owner(annotations={})
    other = KubePod("team-a", "other", "uid-other")
    world.add_owner(other, card(2).uuid)
    await world.lendable(card(2).uuid)
    assert world.state() is CardState.WITHHELD
    world.api.rules = rules(namespaces=("team-a",)).to_json()
    await world.lendable()


async def test_a_pool_lends_no_cards_of_another_pool_on_the_same_node(world: SpotWorld) -> None:
    """Not even if the owner agrees: the pool that shares the card may be one that lends nothing."""
    await world.serve_shadow(pool="another")
    world.api.put_pod(pod_object(SHARE, RESOURCE, LOW_POWER))
    await world.knows(SHARE)
    await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    world.add_owner(OWNER, card(2).uuid)
    await world.lendable(card(2).uuid)
    await until(lambda: bool(world.lender.loans[CARD].owners))
    assert world.state() is CardState.WITHHELD and world.lender.rule(CARD) is None


async def test_an_owner_that_works_gets_its_card_back(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    held = await world.lend()
    world.cards.working[CARD] = {os.getpid(): 90}  # a process of no pod
    await until(lambda: world.state() is CardState.RECLAIMING)
    # Not before the kubelet has reported the borrower.
    await until(lambda: is_stopped(held))
    await until(lambda: world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
    await until(lambda: world.pod_condition(OWNER) == AWAKE)
    await until(lambda: world.node(SPOT_RESOURCE) == ("1", "0"))
    await until(lambda: world.notes("SpotEvicted") and world.notes("OwnerWoke"))
    (who, why), *_ = world.notes("SpotEvicted")
    assert who == "train" and CARD in why and "team-a/owner" in why
    with pytest.raises(grpc.aio.AioRpcError, match=r"reclaiming \(OwnerBack\)"):
        await world.kubelet.start_container(BORROWER, "main", SPOT_RESOURCE)
    await gone(world)
    await until(lambda: world.state() is CardState.BUSY)
    world.cards.working.clear()
    await world.lendable()


async def test_an_owner_that_loads_another_model_gets_its_card_back(world: SpotWorld) -> None:
    """Only its memory shows that: it launches nothing, and has no new process. What it needs beyond
    the reserve is free only when the borrower is gone."""
    world.cards.working[CARD] = {os.getpid(): 0}
    world.cards.holding[os.getpid()] = GIB
    world.add_owner()
    await world.lendable()
    with Victim(world) as victim:
        await world.lend()
        theirs = victim.processes[0].pid
        world.cards.working[CARD][theirs] = 100
        for gib in (1, 2):
            world.cards.holding[theirs] = gib * GIB
            await world.looked()
        assert world.state() is CardState.LENT
        world.cards.holding[os.getpid()] += GIB // 2
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_an_owner_that_works_little_may_fall_asleep_but_gets_a_lent_card_back(
    world: SpotWorld,
) -> None:
    """Work on any of its cards counts; how busy the borrower keeps the lent card does not."""
    world.api.rules = rules(max_utilisation_percent=5).to_json()
    other = card(2).uuid
    world.cards.working = {CARD: {os.getpid(): 5}, other: {os.getpid(): 5}}
    world.add_owner(OWNER, CARD, other)
    await world.lendable()
    await world.lendable(other)
    world.cards.working = {CARD: {os.getpid(): 0}, other: {os.getpid(): 0}}
    await world.looked()
    with Victim(world) as victim:
        await world.lend()
        borrowed = next(uuid for uuid in (CARD, other) if world.state(uuid) is CardState.LENT)
        unborrowed = next(iter({CARD, other} - {borrowed}))
        world.cards.working[borrowed][victim.processes[0].pid] = 100
        await world.looked()
        assert world.state(borrowed) is CardState.LENT
        world.cards.working[unborrowed] = {os.getpid(): 1}
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_an_owner_that_always_works_a_little_keeps_its_card(world: SpotWorld) -> None:
    """A borrower would lose the card within a second, again and again."""
    idle = card(2).uuid
    world.cards.working = {CARD: {os.getpid(): 1}, idle: {}}
    world.add_owner()
    world.add_owner(KubePod("team-a", "other", "uid-other"), idle)
    await world.lendable(idle)
    assert world.state() is CardState.BUSY


async def test_a_pod_that_did_not_agree_and_comes_to_hold_the_card_gets_it(
    world: SpotWorld,
) -> None:
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.add_owner(KubePod("team-c", "proud", "uid-proud"), annotations=None)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerAlive"))
    await until(lambda: world.metric("mizar_spot_evictions_total", reason="OwnerAlive") == 1)


async def test_a_card_without_an_owner_is_the_schedulers(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.kubelet.remove_pod(OWNER.uid)
    world.api.delete_pod(OWNER.namespace, OWNER.name)
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerGone"))
    await gone(world)
    await until(lambda: world.state() is CardState.WITHHELD)


async def test_a_card_that_fails_is_lent_no_more(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.cards.tell(CARD, 79)
    await until(lambda: world.pod_condition(BORROWER) == goes("DeviceLost"))


async def test_a_pool_that_lends_no_more_drains_its_cards(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    await world.lend()
    world.api.rules = "{damaged"
    await world.replanned()
    assert world.state() is CardState.LENT
    world.api.rules = ""
    await until(lambda: world.pod_condition(BORROWER) == goes("Drain"))
    await until(lambda: world.pod_condition(OWNER) == AWAKE)


async def test_a_shim_is_told_later_that_its_card_is_not_lent_any_more_if_it_cannot_be_now(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a container may hold a lease on its limits file."""
    await world.serve_shadow()
    limits = limits_of(await world.start_share(annotations=LOW_POWER))
    await until(lambda: bool(limits_file.read(limits).asleep))
    with monkeypatch.context() as leased:
        failed = Mock(side_effect=BlockingIOError)
        leased.setattr(limits_file, "set_borrowed", failed)
        world.api.rules = ""
        await until(lambda: failed.called)
    assert limits_file.read(limits).asleep
    await until(lambda: not limits_file.read(limits).asleep)


async def test_an_owner_of_two_cards_that_works_on_one_is_awake_on_both(world: SpotWorld) -> None:
    world.add_owner(OWNER, CARD, card(2).uuid)
    await world.lendable()
    await world.lendable(card(2).uuid)
    await world.lend()
    borrowed = next(uuid for uuid in (CARD, card(2).uuid) if world.state(uuid) is CardState.LENT)
    other = next(uuid for uuid in (CARD, card(2).uuid) if uuid != borrowed)
    await until(lambda: world.lender.unseen_by_slicer() == {borrowed, other})
    world.cards.working[other] = {os.getpid(): 90}
    await until(lambda: world.state(borrowed) is CardState.RECLAIMING)
    assert world.state(other) is CardState.BUSY


async def test_without_the_api_server_all_but_the_deletion_happens(world: SpotWorld) -> None:
    world.add_owner()
    await world.lendable()
    with Victim(world) as victim:
        held = await world.lend()
        world.api.down = True
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(victim.ended)
        assert is_stopped(held)
        await until(lambda: DEVICE not in world.kubelet.healthy(SPOT_RESOURCE))
        world.api.down = False
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


async def test_a_borrower_that_starts_before_the_next_plan_is_no_owner(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node agent plans late on a busy node; NVML shows the borrower's process before."""
    world.add_owner()
    await world.lendable()
    await world.plan_no_more(monkeypatch)
    await world.lend()
    with Victim(world) as victim:
        world.cards.working[CARD] = {victim.processes[0].pid: 100}
        await world.looked()
    assert world.state() is CardState.LENT


async def test_every_process_of_the_borrowers_containers_is_killed(world: SpotWorld) -> None:
    """Processes of the pod's other containers, of its sandbox and of other pods are spared."""
    world.add_owner()
    await world.lendable()
    with (
        Victim(world, 3) as victim,
        Victim(world, container=SIDECAR) as sidecar,
        Victim(world, container="0" * 64, files=sandbox()) as pause,
        Victim(world, pod="87654321" + UID[8:]) as other,
    ):
        await world.lend()
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(victim.ended)
        await until(lambda: world.metric("mizar_spot_reclaim_seconds_count") == 1)
        assert not (sidecar.ended() or pause.ended() or other.ended())
    assert [one.wait() for one in victim.processes] == [-signal.SIGKILL] * 3


@pytest.mark.parametrize("files", PRETENDS.values(), ids=PRETENDS)
async def test_no_process_saves_itself_by_its_name(world: SpotWorld, files: dict[str, str]) -> None:
    """A name may save a process in a container that is not known yet; in one that has the card,
    nothing does."""
    world.add_owner()
    await world.lendable()
    with (
        Victim(world, files=sandbox()) as known,
        Victim(world, container="0" * 64, files=files) as unknown,
    ):
        await world.lend()
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: known.ended() and unknown.ended())


@pytest.mark.parametrize(("kib", "spared"), [(1000, True), (8 << 20, False)])
def test_a_sandbox_is_known_where_its_program_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kib: int, spared: bool
) -> None:
    """The agent has no right to trace processes of other users, as a sandbox's process is."""
    monkeypatch.setattr(Path, "readlink", Mock(side_effect=PermissionError))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(sandbox(kib=kib)["status"])
    assert is_sandbox(PodProcess(7, "pause", ""), tmp_path) is spared


async def test_a_borrower_may_have_a_notice_and_a_grace(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The borrower goes on computing until the notice is over; the pool limits both. The clock is
    the test's: a busy machine may start the borrower's process again only after seconds."""
    now = 0.0
    monkeypatch.setattr(world.app.spot.reclaimer, "_clock", lambda: now)
    world.api.rules = rules(notice_seconds=20, grace_seconds=20).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        wants = {"mizar.share/spot-notice": "30", "mizar.share/spot-grace": "30"}
        held = await world.lend(wants)
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: victim.heard() == ["USR1"])
        found = limits_file.read(limits_of(held)).cards[0]
        assert (found.priority, found.memory_limit) == (PRIORITY_NOTICE, 11 * GIB)
        # With no share of its own, the borrower stops by itself when the agent dies.
        assert (found.compute_mode, found.core_share) == (COMPUTE_MODES["Soft"], 0)
        now += 20
        await until(lambda: victim.heard() == ["USR1", "TERM"])
        assert is_stopped(held)
        assert not victim.ended()
        now += 20
        # The operator evicts the pod by the condition, and the kubelet then ends the processes.
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
        assert victim.ended()
    assert victim.processes[0].wait() == -signal.SIGKILL
    await until(lambda: world.metric("mizar_spot_reclaim_seconds_sum") == 40)


async def test_a_notice_ends_nobody_who_does_not_expect_it(world: SpotWorld) -> None:
    """SIGUSR1 would end a shell, or the `tee` behind the program that saves its work; SIGTERM ends
    them later."""
    world.api.rules = rules(notice_seconds=1, grace_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world) as other, Victim(world, deaf=True) as victim:
        await world.lend({"mizar.share/spot-notice": "1", "mizar.share/spot-grace": "30"})
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: victim.heard() == ["USR1", "TERM"])
        await until(other.ended)
    assert other.processes[0].wait() == -signal.SIGTERM


async def test_a_borrower_with_a_notice_is_not_evicted_before_it_is_over(world: SpotWorld) -> None:
    """By then the eviction is counted."""
    world.api.rules = rules(notice_seconds=30).to_json()
    world.add_owner()
    await world.lendable()
    with Victim(world, deaf=True) as victim:
        await world.lend({"mizar.share/spot-notice": "30"})
        world.cards.working[CARD] = {os.getpid(): 90}
        await until(lambda: victim.heard() == ["USR1"])
        await until(lambda: world.pod_condition(OWNER) == AWAKE)
        await world.replanned()
        assert not world.must_go()
        victim.processes[0].kill()
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
        assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1
        assert victim.heard() == ["USR1"]


async def test_the_eviction_is_asked_for_at_once_and_after_it_is_counted(tmp_path: Path) -> None:
    registry, heard = CollectorRegistry(), asyncio.Queue[float | None]()

    def count() -> float | None:
        labels = {"node": "node-1", "reason": "OwnerBack"}
        return registry.get_sample_value("mizar_spot_evictions_total", labels)

    slots = cast(Slots, SimpleNamespace(all=lambda: []))
    metrics = SpotMetrics(registry, "node-1", lambda: [])
    told = reclaim.Reclaimer(
        slots, metrics, Mock(), Mock(), lambda: heard.put_nowait(count()), tmp_path
    )
    pod = PodIdentity("team-b", "train", UID)
    borrower = Borrower(pod, frozenset({"main"}), frozenset({CARD}), uids=frozenset({UID}))
    loan = CardLoan(CARD, CardState.RECLAIMING, SpotEvictionReason.OWNER_BACK)
    told.take_back(loan, borrower, Spot())
    assert not told.has_ended(pod.key)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == 1
    assert told.has_ended(pod.key)
    told.forget([])
    assert not told.has_ended(pod.key)
    await told.close()


async def test_a_borrower_whose_processes_cannot_be_ended_is_evicted_in_the_end(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel is an example: the eviction is counted, and the card is
    not reported free of it."""
    monkeypatch.setattr(reclaim, "LONG_S", 0.3)
    world.add_owner()
    await world.lendable()
    add_process_that_hangs(world)
    await world.lend()
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1
    assert world.metric("mizar_spot_reclaim_seconds_count") == 0


async def test_an_init_container_that_borrows_loses_the_card_too(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet's claims leave it out."""
    world.add_owner()
    await world.lendable()
    pod = KubePod(BORROWER.namespace, BORROWER.name, UID, init=frozenset({"prepare"}))
    world.api.put_pod(with_init_container(pod_object(BORROWER, SPOT_RESOURCE)))
    await world.knows(BORROWER)
    await world.kubelet.allocate(pod, "prepare", SPOT_RESOURCE, 1)
    await world.kubelet.start_container(pod, "prepare", SPOT_RESOURCE)
    # From here on, that the card was just allocated keeps it no longer.
    monkeypatch.setattr(lender, "ALLOCATING_FOR_S", 0.0)
    await world.replanned()
    assert world.state() is CardState.LENT
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))


@pytest.mark.parametrize(
    ("annotations", "state"), [({}, CardState.WITHHELD), (LOW_POWER, CardState.LENDABLE)]
)
async def test_a_pod_whose_init_container_shares_a_card_is_asked_too(
    world: SpotWorld,
    monkeypatch: pytest.MonkeyPatch,
    annotations: dict[str, str],
    state: CardState,
) -> None:
    """That the card is lent where it agrees shows that the others were idle for long enough."""
    await world.serve_shadow()
    other = KubePod("team-a", "other", "uid-other", init=frozenset({"prepare"}))
    world.api.put_pod(with_init_container(pod_object(other, RESOURCE, annotations)))
    await world.knows(other)
    await world.kubelet.allocate(other, "prepare", RESOURCE, 1)
    await world.kubelet.start_container(other, "prepare", RESOURCE)
    world.api.put_pod(pod_object(SHARE, RESOURCE, LOW_POWER))
    await world.knows(SHARE)
    await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    await world.replanned()
    await until(lambda: world.lender.loans[CARD].sleeps_since is not None)
    idle = world.lender.rule(CARD).idle_after_seconds
    monkeypatch.setattr(world.lender, "_clock", lambda: time.monotonic() + idle)
    world.lender.step()
    assert world.state() is state
