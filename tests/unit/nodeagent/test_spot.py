"""The agent lends cards, between a kubelet and an API server that behave like the real ones."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from prometheus_client import CollectorRegistry

from mizar_core.models import Spot
from mizar_core.names import SPOT_RESOURCE, SpotEvictionReason, spot_device_id
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import ProcessLoad
from mizar_nodeagent.config import Config
from mizar_nodeagent.container.slots import Owner, Slots
from mizar_nodeagent.container_processes import PodProcess, is_sandbox
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.kubelet import podresources
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.plugin import manager
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_MODES, COMPUTE_STOPPED, PRIORITY_NOTICE
from mizar_nodeagent.spot import assembly, lender, owner_polling, reclaim
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.detectors import card_processes
from mizar_nodeagent.spot.loan import CardState
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_events import PodIdentity
from support.waiting import PATIENCE_S, until, wait_for
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CARD, CONTAINER_ID, GIB, RESOURCE, UID, card, share_object
from unit.nodeagent.test_assembly import SHARE, World, limits_of, mounted

OWNER = KubePod("team-a", "owner", "uid-owner")
BORROWER = KubePod("team-b", "train", UID)
SIDECAR = "cd" * 32
DEVICE = spot_device_id(CARD)
RULES = SpotRules(rules=(SpotRule(pool="default", spot=Spot(enabled=True, idle_after_seconds=1)),))
LOW_POWER = {"mizar.share/low-power": "true"}


def asleep(reason: str) -> tuple[str, str, str]:
    return "mizar.share/active", "False", reason


def goes(reason: str) -> tuple[str, str, str]:
    return "DisruptionTarget", "True", reason


AWAKE = "mizar.share/active", "True", "CardKept"


def rules(**spot: Any) -> SpotRules:
    how = {"enabled": True, "idle_after_seconds": 1, **spot}
    return SpotRules(rules=(SpotRule(pool="default", spot=Spot(**how)),))


def pod_object(
    pod: KubePod, resource: str, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    body = share_object(pod.name, pod.namespace, resource)
    body["metadata"] |= {"uid": pod.uid, "annotations": annotations or {}}
    if pod is BORROWER:
        body["status"]["containerStatuses"] = [
            {"name": "main", "containerID": f"containerd://{CONTAINER_ID}"},
            {"name": "sidecar", "containerID": f"containerd://{SIDECAR}"},
        ]
    return body


def with_init_container(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with an init container `prepare`."""
    pod["spec"]["initContainers"] = [{"name": "prepare"}]
    return pod


class SpotWorld(World):
    """A node whose pool lends cards."""

    @property
    def config(self) -> Config:
        return super().config.model_copy(update={"namespace": "mizar"})

    @property
    def proc(self) -> Path:
        return self.folder / "proc"

    @property
    def lender(self) -> Any:
        return self.app.spot.lender

    def state(self, uuid: str = CARD) -> CardState | None:
        loan = self.lender.loans.get(uuid)
        return loan.state if loan else None

    def add_owner(
        self,
        pod: KubePod = OWNER,
        *cards: str,
        annotations: dict[str, str] | None = LOW_POWER,
    ) -> None:
        """Add a pod that holds whole cards."""
        self.api.put_pod(pod_object(pod, "nvidia.com/gpu", annotations))
        self.kubelet.add_pod(pod, main=cards or [CARD])
        self.app.poller.poll_soon()

    async def lendable(self, uuid: str = CARD) -> None:
        device = spot_device_id(uuid)
        await until(lambda: self.state(uuid) is CardState.LENDABLE)
        await until(lambda: device in self.kubelet.healthy(SPOT_RESOURCE))

    async def lend(self, annotations: dict[str, str] | None = None) -> Allocated:
        """The scheduler binds a spot pod, the kubelet admits and starts it."""
        self.api.put_pod(pod_object(BORROWER, SPOT_RESOURCE, annotations))
        await self.knows(BORROWER)
        await self.kubelet.allocate(BORROWER, "main", SPOT_RESOURCE, 1)
        held = await self.kubelet.start_container(BORROWER, "main", SPOT_RESOURCE)
        await until(lambda: self.state() is CardState.LENT)
        return held

    async def looked(self) -> None:
        """Wait until the agent has asked NVML several times about cards that it watches."""
        before = self.cards.asked
        await until(lambda: self.cards.asked > before + 5)

    def pod_condition(self, pod: KubePod) -> tuple[str, str, str]:
        """(type, status, reason) of the pod's last condition."""
        found = self.api.conditions.get((pod.namespace, pod.name))
        return (found["type"], found["status"], found["reason"]) if found else ("", "", "")

    def notes(self, reason: str) -> list[tuple[str, str]]:
        """Pod and text of each event of that reason."""
        return [
            (one["regarding"]["name"], one["note"])
            for one in self.api.events
            if one["reason"] == reason
        ]

    def metric(self, name: str, **labels: str) -> float:
        return self.app.registry.get_sample_value(name, {"node": "node-1", **labels}) or 0.0


HEARS = """
import os, signal, sys, time
def hear(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
signal.signal(signal.SIGUSR1, hear)
signal.signal(signal.SIGTERM, hear)
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


class Victim:
    """Processes of a container of the borrower, as /proc shows them on a node."""

    def __init__(
        self,
        world: SpotWorld,
        count: int = 1,
        pod: str = UID,
        container: str = CONTAINER_ID,
        files: Mapping[str, str] | None = None,
        deaf: bool = False,
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log = world.folder / f"heard-{pod[:8]}-{container[:4]}"
        command = [sys.executable, "-c", HEARS] if deaf else ["sleep", "600"]
        for _ in range(count):
            with self._log.open("wb") as log:
                process = subprocess.Popen(command, stdout=log)
            self.processes.append(process)
            show(world.proc, process.pid, f"0::/kubepods/pod{pod}/{container}\n", files)
        if deaf:
            wait_for("a process that hears", lambda: "ready" in self._log.read_text())

    def ended(self) -> bool:
        return all(one.poll() is not None for one in self.processes)

    def heard(self) -> list[str]:
        return [one.removeprefix("SIG") for one in self._log.read_text().split()[1:]]

    def __enter__(self) -> "Victim":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            one.kill()
            one.wait()


def show(proc: Path, pid: int, cgroup: str, files: Mapping[str, str] | None = None) -> None:
    """Show the process as one of that cgroup in a /proc of the test's own. `files`: by name, what
    it shows in other words than the real /proc."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    own = {"cgroup": cgroup, **(files or {})}
    for file in {"stat", "status", "comm"} - own.keys():
        (folder / file).symlink_to(f"/proc/{pid}/{file}")
    program = own.pop("exe", None) or Path(f"/proc/{pid}/exe").readlink()
    (folder / "exe").symlink_to(program)
    for file, text in own.items():
        (folder / file).write_text(text)


def sandbox(program: str = "/pause", kib: int = 1000, inner: str = "7\t1") -> dict[str, str]:
    """What a process of that name shows: a pod's sandbox, except for what is given."""
    status = f"Name:\tpause\nNSpid:\t{inner}\nVmSize:\t{kib:8} kB\n"
    return {"comm": "pause\n", "status": status, "exe": program}


@pytest.fixture
async def world(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SpotWorld]:
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(owner_polling, "EVERY_S", 0.1)
    monkeypatch.setattr(card_processes, "SAMPLED_S", 0.2)
    made = SpotWorld(tmp_path_factory.mktemp("w"))
    made.proc.mkdir()
    show(made.proc, os.getpid(), "0::/\n")
    monkeypatch.setattr(assembly, "PROC", made.proc)
    made.api.rules = RULES.to_json()
    async with made:
        yield made


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


async def test_a_card_of_which_nvml_tells_stays_lent_long_after_the_agent_has_started(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card_processes, "FIRST_S", 0.0)
    world.add_owner()
    await world.lendable()
    await world.lend()
    await world.looked()
    assert world.state() is CardState.LENT


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


def make_nvml_hang(world: SpotWorld, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until the event, no question about cards and their processes is answered."""
    answers = asyncio.Event()
    for name in ("read", "loads"):
        monkeypatch.setattr(world.cards, name, late(answers, getattr(world.cards, name)))
    return answers


def late(answers: asyncio.Event, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which hangs until then."""

    async def waiting(*given: Any) -> Any:
        await answers.wait()
        return await call(*given)

    return waiting


async def test_who_did_not_agree_lends_nothing(world: SpotWorld) -> None:
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
    assert not world.pod_condition(BORROWER)[0]


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
    assert not world.pod_condition(BORROWER)[0]


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
    assert not world.pod_condition(BORROWER)[0]


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
    assert not world.pod_condition(BORROWER)[0]


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


PRETENDS = {
    "another program": sandbox(program="/usr/bin/train"),
    "not the first process": sandbox(inner="7\t8"),
    "in the node's namespace": sandbox(inner="7"),
    "room for a card's memory": sandbox(kib=8 << 20),
}


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


async def test_who_has_a_notice_is_not_evicted_before_it_is_over(world: SpotWorld) -> None:
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
        assert not world.pod_condition(BORROWER)[0]
        victim.processes[0].kill()
        await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
        assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1
        assert victim.heard() == ["USR1"]


async def test_who_evicts_hears_of_it_at_once_and_after_it_is_counted(tmp_path: Path) -> None:
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
    told.take_back(CARD, borrower, SpotEvictionReason.OWNER_BACK, Spot(), [])
    assert not told.has_ended(pod.key)
    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == 1
    assert told.has_ended(pod.key)
    told.forget([])
    assert not told.has_ended(pod.key)
    await told.close()


async def test_who_cannot_be_ended_is_evicted_in_the_end(
    world: SpotWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel is an example: the eviction is counted, and the card is
    not reported free of it."""
    monkeypatch.setattr(reclaim, "LONG_S", 0.3)
    world.add_owner()
    await world.lendable()
    survives = world.proc / str(1 << 22)  # one more than the highest PID
    survives.mkdir()
    (survives / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n")
    (survives / "stat").write_text("1 (train) D 1")
    (survives / "comm").write_text("train\n")
    await world.lend()
    world.cards.working[CARD] = {os.getpid(): 90}
    await until(lambda: world.pod_condition(BORROWER) == goes("OwnerBack"))
    assert world.metric("mizar_spot_evictions_total", reason="OwnerBack") == 1
    assert world.metric("mizar_spot_reclaim_seconds_count") == 0


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


def is_stopped(held: Allocated) -> bool:
    """Whether the container's compute on its first card is stopped for good."""
    return limits_file.read(limits_of(held)).cards[0].compute_mode == COMPUTE_STOPPED


async def gone(world: SpotWorld) -> None:
    """The operator has evicted the borrower."""
    world.kubelet.remove_pod(BORROWER.uid)
    world.api.delete_pod(BORROWER.namespace, BORROWER.name)
    await until(lambda: world.state() not in (CardState.RECLAIMING, CardState.LENT))


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
    assert not world.pod_condition(BORROWER)[0]


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
