"""For tests: a node whose pool lends cards, where the agent is between a kubelet and an API server
that behave like the real ones."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mizar_core.models import Spot
from mizar_core.names import SPOT_RESOURCE, spot_device_id
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent import agent_loop
from mizar_nodeagent.config import Config
from mizar_nodeagent.kubelet import podresources
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_STOPPED
from mizar_nodeagent.spot import assembly, owner_polling, rule_source
from mizar_nodeagent.spot.detectors import card_processes
from mizar_nodeagent.spot.loan import CardState
from support.waiting import PATIENCE_S, until, wait_for
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CARD, CONTAINER_ID, UID, share_object
from unit.nodeagent.test_assembly import LOOK_S, World, limits_of

OWNER = KubePod("team-a", "owner", "uid-owner")
BORROWER = KubePod("team-b", "train", UID)
SIDECAR = "cd" * 32
DEVICE = spot_device_id(CARD)
RULES = SpotRules(rules=(SpotRule(pool="default", spot=Spot(enabled=True, idle_after_seconds=1)),))
IDLE_S = 0.1
"""Seconds that owners of tests are idle before their cards are lent; a pool cannot say less than a
second, for which almost every test would wait."""
LOW_POWER = {"mizar.share/low-power": "true"}


def asleep(reason: str) -> tuple[str, str, str]:
    return "mizar.share/active", "False", reason


def goes(reason: str) -> tuple[str, str, str]:
    return "DisruptionTarget", "True", reason


AWAKE = "mizar.share/active", "True", "CardKept"


def rules(**spot: Any) -> SpotRules:
    how = {"enabled": True, "idle_after_seconds": 1, **spot}
    return SpotRules(rules=(SpotRule(pool="default", spot=Spot(**how)),))


def lend_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent lend cards after IDLE_S instead of the second that its rules say."""
    monkeypatch.setattr(rule_source, "SpotRules", _SoonerRules)


class _SoonerRules(SpotRules):
    @classmethod
    def from_json(cls, text: str) -> SpotRules:
        read = SpotRules.from_json(text)
        return read.model_copy(update={"rules": tuple(map(_sooner, read.rules))})


def _sooner(rule: SpotRule) -> SpotRule:
    spot = rule.spot.model_copy(update={"idle_after_seconds": IDLE_S})
    return rule.model_copy(update={"spot": spot})


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

    async def lend(self, annotations: dict[str, str] | None = None, cards: int = 1) -> Allocated:
        """The scheduler binds a spot pod that asks for so many cards, the kubelet admits and starts
        it."""
        self.api.put_pod(pod_object(BORROWER, SPOT_RESOURCE, annotations))
        await self.knows(BORROWER)
        await self.kubelet.allocate(BORROWER, "main", SPOT_RESOURCE, cards)
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

    def must_go(self) -> bool:
        """Whether the borrower has the condition by which it is evicted."""
        return self.pod_condition(BORROWER)[0] == "DisruptionTarget"

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
    monkeypatch.setattr(agent_loop, "READ_CARDS_S", LOOK_S)
    lend_sooner(monkeypatch)
    made = SpotWorld(tmp_path_factory.mktemp("w"))
    made.proc.mkdir()
    show(made.proc, os.getpid(), "0::/\n")
    monkeypatch.setattr(assembly, "PROC", made.proc)
    made.api.rules = RULES.to_json()
    async with made:
        yield made


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


PRETENDS = {
    "another program": sandbox(program="/usr/bin/train"),
    "not the first process": sandbox(inner="7\t8"),
    "in the node's namespace": sandbox(inner="7"),
    "room for a card's memory": sandbox(kib=8 << 20),
}


def is_stopped(held: Allocated) -> bool:
    """Whether the container's compute on its first card is stopped for good."""
    return limits_file.read(limits_of(held)).cards[0].compute_mode == COMPUTE_STOPPED


async def gone(world: SpotWorld) -> None:
    """The operator has evicted the borrower."""
    world.kubelet.remove_pod(BORROWER.uid)
    world.api.delete_pod(BORROWER.namespace, BORROWER.name)
    await until(lambda: world.state() not in (CardState.RECLAIMING, CardState.LENT))


def add_process_that_hangs(world: SpotWorld) -> None:
    """Give the borrower's container a process that no signal ends."""
    folder = world.proc / str(1 << 22)  # one more than the highest PID
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n")
    (folder / "stat").write_text("1 (train) D 1")
    (folder / "comm").write_text("train\n")
