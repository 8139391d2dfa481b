"""The simulated node: its parts, what users, the scheduler, the operator and administrators do to
them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from mizar_core.carve import Carve
from mizar_core.device_ids import DeviceID
from mizar_core.models import Isolation, Spot
from mizar_core.names import SPOT_RESOURCE, ConditionType, EventReason
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent.kubelet import allocated_dra_cards
from mizar_nodeagent.planning.shadow_status import ConditionState
from mizar_nodeagent.planning.snapshot import Counts
from mizar_nodeagent.pods import Key, Pod
from simulation.node.api import Api, now
from simulation.node.cards import Cards
from simulation.node.disk import Disk
from simulation.node.dra import Driver
from simulation.node.kubelet import MAIN, Container, Kubelet, devices_of

START = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = "team-a"
RESOURCES = {2: "team-a.mizar.share/gpu.2", 4: "team-a.mizar.share/gpu.4"}
CARDS = {2: 1, 4: 2}
IDLE_S = 10
OWNER_PID = 4_000_000_001
"""A process of the node that works on cards: it counts as each owner's."""
POOLS = ("default", "other")


def carve(devices: int, **changes: object) -> Carve:
    """A profile's carve."""
    made = Carve(
        resource=RESOURCES[devices],
        devices=devices,
        cards=CARDS[devices],
        pool="default",
        quota="gpus",
    )
    return made.model_copy(update=changes)


@dataclass
class World:
    """See the module. `skew`: how many seconds the node's clock is wrong. `promised`: UIDs of the
    shadow pods that the operator is about to delete, since the agent said that they are drained.
    `asked`: uses of the resources that users wait for. `working`: UIDs of owners that work.
    `dra`: NVIDIA's DRA driver allocates the cards, not its device plugin. `lending`: the pools that
    lend cards, with their rules."""

    random: Random
    folder: Path
    tell: Callable[[str], None]
    broken: Callable[[str], None]
    looked: Callable[[], None]
    mig: bool = False
    names_nodes: bool = False
    dra: bool = False
    lag: float = 0.1
    pace: float = 0.2
    skew: float = 0.0
    promised: dict[str, float] = field(default_factory=dict)
    asked: list[Pod] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    working: set[str] = field(default_factory=set)
    lending: dict[str, SpotRule] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        self.api = Api()
        self.disk = Disk(self.random)
        self.cards = Cards(self.random, self.mig)
        self.kubelet = Kubelet(
            self.api, self.random, self.folder / "kubelet", self.tell, self.looked, self.broken
        )
        self.proc = self.folder / "proc"
        owner = self.proc / str(OWNER_PID)
        owner.mkdir(parents=True)
        (owner / "cgroup").write_text("0::/system.slice/owner.service\n")
        (owner / "stat").write_text(f"{OWNER_PID} (owner) R 2 1 1" + " 0" * 40)
        self.shim = self.folder / "libmizar.so"
        self.shim.write_bytes(b"shim")
        self.state_dir = self.folder / "state"
        self.driver = (
            Driver(self.cards, self.state_dir / allocated_dra_cards.FILE) if self.dra else None
        )

    def wall(self) -> float:
        """Seconds since the epoch by the node's clock."""
        return START.timestamp() + now() + self.skew

    def time(self) -> datetime:
        """The time of day by the node's clock."""
        return START + timedelta(seconds=now() + self.skew)

    def healthy_cards(self) -> frozenset[str]:
        """The cards that NVIDIA's plugin reports as healthy."""
        return frozenset(self.cards.minor)

    def next(self) -> int:
        """A new number."""
        self.serial += 1
        return self.serial

    # ---- the machinery around the agent ----

    async def run(self) -> None:
        """Scheduler, kubelet, operator and controllers, each now and then."""
        while True:
            await asyncio.sleep(self.pace * (0.2 + self.random.random()))
            if self.driver is not None and self.random.random() < 0.3:
                self.driver.look(self.api.pods)
            self.schedule()
            self.kubelet.learn()
            self.kubelet.admit_new()
            self.operate()
            self.tidy()
            if self.random.random() < 0.03:
                self.publish_counts()
            self.looked()

    def publish_counts(self) -> None:
        """The kubelet writes its own counts to the node's status."""
        if not self.kubelet.up or self.api.is_away:
            return
        for resource, devices in self.kubelet.devices.items():
            healthy = sum(devices.values())
            self.api.node[resource] = Counts(len(devices), healthy)

    def schedule(self) -> None:
        """The scheduler binds the pods that fit."""
        if self.api.is_away:
            return
        for pod in list(self.asked):
            if pod.shadow or not pod.requests:
                self._bind_whole(pod)
                continue
            ((resource, count),) = pod.requests
            used = sum(one.requested(resource) for one in self.api.pods.values() if not one.ended)
            if used + count <= self.api.node.get(resource, Counts(0, 0)).allocatable:
                self.asked.remove(pod)
                self.api.put(pod)

    def _bind_whole(self, pod: Pod) -> None:
        """NVIDIA's plugin gives a pod cards that nobody has, or its DRA driver devices that no
        claim has."""
        if not self.kubelet.up:
            return
        count = pod.carve.cards if pod.shadow else 1
        if self.driver is not None:
            self._bind_claimed(pod, count, self.driver)
            return
        kubelet = self.kubelet
        taken = {
            uuid
            for uid, cards in kubelet.cards.items()
            for uuid in cards
            if uid not in kubelet.unclaimed
        }
        free = sorted(self.healthy_cards() - taken)
        if len(free) >= count:
            self.asked.remove(pod)
            self.api.put(pod)
            kubelet.cards[pod.uid] = frozenset(self.random.sample(free, count))
            self.tell(f"{pod.name} gets {sorted(kubelet.cards[pod.uid])}")

    def _bind_claimed(self, pod: Pod, count: int, driver: Driver) -> None:
        free = driver.free(self.api.pods)
        if self.api.is_away or len(free) < count:
            return
        names = tuple(self.random.sample(free, count))
        self.asked.remove(pod)
        self.api.put(pod)
        driver.claims[pod.key] = names
        self.kubelet.cards[pod.uid] = frozenset(driver.devices[one] for one in names)
        self.tell(f"{pod.name} gets {sorted(self.kubelet.cards[pod.uid])} as {sorted(names)}")

    def operate(self) -> None:
        """The operator deletes what the agent says is drained, or calls the drain off."""
        if self.api.is_away:
            return
        for pod in self.shadows():
            report = self.api.reports.get(pod.owner_uid)
            if report is None:
                continue
            if report.conditions[0].reason == EventReason.CARD_LOST:
                self.tell(f"{pod.name} is deleted, lost")
                self.end(pod.uid)
                continue
            state = self.draining(pod)
            if not pod.drain or state is None:
                continue
            if pod.uid in self.promised:
                if now() >= self.promised[pod.uid]:
                    del self.promised[pod.uid]
                    self.tell(f"{pod.name} is deleted, drained")
                    self.end(pod.uid)
            elif (state.status, state.reason) == ("True", "Drained"):
                if self.random.random() < 0.2:
                    self.api.change(pod.uid, drain="")
                    self.tell(f"the drain of {pod.name} is called off")
                else:
                    self.tell(f"{pod.name} is promised")
                    self.promised[pod.uid] = now() + self.random.choice((0.5, 5.0, 20.0))
                    self.looked()
            elif state.reason == "InUse" and self.random.random() < 0.3:
                self.api.change(pod.uid, drain="")

    def draining(self, pod: Pod) -> ConditionState | None:
        """The condition of a shadow pod that says how far its drain is."""
        if (report := self.api.reports.get(pod.owner_uid)) is None:
            return None
        found = (one for one in report.conditions if one.type == ConditionType.DRAINING)
        return next(found, None)

    def ask_drain(self, pod: Pod) -> None:
        """The operator asks for a drain, unless one is under way."""
        state = self.draining(pod)
        if state is not None and state.status == "False" and not pod.drain:
            self.tell(f"{pod.name} is to be drained")
            self.api.change(pod.uid, drain=f"t{self.next()}")

    def tidy(self) -> None:
        """Controllers delete pods that have failed, and evict those that lost their cards."""
        if self.api.is_away:
            return
        for pod in list(self.api.pods.values()):
            held = [one for one in self.kubelet.held.values() if one.pod.uid == pod.uid]
            ids = (each for one in held if one.resource != SPOT_RESOURCE for each in one.ids)
            lost = any(key_of(one) not in self.api.pods for one in ids)
            likely = 0.2 if pod.ended or pod.uid in self.evicted else 0.05 * lost
            if self.random.random() < likely:
                self.end(pod.uid)

    # ---- what users and others do ----

    def shadows(self) -> list[Pod]:
        """The shadow pods on the node."""
        found = (pod for pod in self.api.pods.values() if pod.shadow and not pod.ended)
        return sorted(found, key=lambda one: one.key)

    def shares(self) -> list[Pod]:
        """The share and spot pods on the node that have not ended."""
        found = (pod for pod in self.api.pods.values() if pod.requests and not pod.ended)
        return sorted(found, key=lambda one: one.key)

    def ask_shadow(self, devices: int) -> None:
        """The operator creates a shadow pod."""
        number = self.next()
        name = f"shadow-{devices}-a{number}"
        self.asked.append(
            Pod(
                TENANT,
                name,
                f"uid-{name}",
                shadow=True,
                carve_json=carve(devices, pool=self.random.choice(POOLS)).to_json(),
                owner_uid=f"owner-{name}",
            )
        )

    def ask_share(
        self, devices: int, containers: tuple[Container, ...], low_power: bool = False
    ) -> None:
        """A user creates a share pod; now and then it has the name of one before."""
        number = self.next()
        name = f"share-{self.random.choice((number, 'same'))}"
        if any(pod.name == name for pod in (*self.api.pods.values(), *self.asked)):
            name = f"share-{number}"
        uid = f"uid-{number}"
        self.kubelet.containers[uid] = containers
        self.asked.append(
            Pod(
                TENANT,
                name,
                uid,
                requests=((RESOURCES[devices], devices_of(containers)),),
                containers=tuple(one.name for one in containers),
                init_containers=frozenset(one.name for one in containers if one.init),
                low_power=low_power,
            )
        )

    def ask_whole(self, low_power: bool) -> None:
        """A user creates a pod with a whole card."""
        number = self.next()
        self.asked.append(Pod(TENANT, f"whole-{number}", f"uid-{number}", low_power=low_power))

    def ask_spot(self) -> None:
        """A user creates a spot pod."""
        number = self.next()
        self.kubelet.containers[f"uid-{number}"] = (Container(),)
        self.asked.append(
            Pod(
                "team-s",
                f"spot-{number}",
                f"uid-{number}",
                requests=((SPOT_RESOURCE, 1),),
                containers=(MAIN,),
            )
        )

    def end(self, uid: str) -> None:
        """The pod is deleted, or ends, at once."""
        self.working.discard(uid)
        self.evicted.discard(uid)
        self.promised.pop(uid, None)
        self.api.remove(uid)
        self.kubelet.end(uid)

    def recarve(self, pod: Pod) -> None:
        """The quota's settings change under a shadow pod."""
        new = self.random.choice(
            (
                {"memory": 2 << 30},
                {"memory": None},
                {"isolation": Isolation(compute="Hard")},
                {"closed": True},
                {"closed": False},
                {"core_scaling": "2"},
            )
        )
        self.api.change(pod.uid, carve_json=pod.carve.model_copy(update=new).to_json())

    def lend(self, pool: str, model: str = "", namespace: str = "") -> None:
        """The pool lends its cards: only those of a model, and those of a namespace's pods also if
        they have not agreed."""
        named = (namespace,) if namespace else ()
        spot = Spot(enabled=True, idle_after_seconds=IDLE_S, namespaces=named)
        models = (model,) if model else ()
        self.lending[pool] = SpotRule(pool=pool, spot=spot, card_models=models)

    def spot_rules(self) -> SpotRules:
        """What the operator has written for the agents."""
        return SpotRules(rules=tuple(self.lending[one] for one in sorted(self.lending)))


def key_of(device: str) -> Key:
    """The shadow pod of a device."""
    one = DeviceID.parse(device)
    return one.namespace, one.shadow
