"""The kubelet in a simulation: it admits one pod after the other, allocates devices, starts
containers, restarts, and may lose its record."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from mizar_core.names import PHYSICAL_RESOURCE, SPOT_RESOURCE
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.kubelet.device_checkpoint import FILE
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from simulation.node.api import Api, now
from simulation.node.dra import Driver, with_cards

MAIN = "main"

Place = tuple[str, str]
"""A pod's UID, and the name of one of its containers."""


@dataclass(frozen=True)
class Container:
    """A container and the number of devices that it requests. `init`: it ends before the next one
    starts, and the kubelet gives its devices to later ones again. `sidecar`: it starts before those
    that come later, and runs on."""

    name: str = MAIN
    count: int = 1
    init: bool = False
    sidecar: bool = False


def devices_of(containers: Sequence[Container]) -> int:
    """How many devices a pod with these containers requests."""
    most = kept = 0
    for one in containers:
        most = max(most, kept + one.count)
        kept += one.count * (not one.init)
    return max(most, kept)


class AgentGone(Exception):
    """The agent ended before it answered."""


@dataclass
class Held:
    """What a container was given, as the kubelet records it."""

    pod: Pod
    resource: str
    ids: frozenset[str]
    answer: pb.ContainerAllocateResponse
    container: Container

    @property
    def place(self) -> Place:
        return self.pod.uid, self.container.name

    @property
    def name(self) -> str:
        """The pod and its container, for people."""
        return f"{self.pod.name}/{self.container.name}"

    @property
    def folder(self) -> Path | None:
        """The slot."""
        found = [one.host_path for one in self.answer.mounts if one.host_path.endswith("/limits")]
        return Path(found[0]).parent if found else None

    @property
    def cards(self) -> frozenset[str]:
        """UUIDs of the container's cards."""
        return frozenset(self.answer.envs["NVIDIA_VISIBLE_DEVICES"].split(","))


@dataclass
class Kubelet:
    """`pods`: those that were admitted, by UID. `containers`: of each pod, in order, if it requests
    devices. `held`: what containers were given. `recorded`: those that the kubelet has in its
    record. `running`: those that have started, `started`: also before. `done`: init containers that
    have ended. `partly`: UIDs of pods of which some containers run, and others need devices anew.
    `cards`: whole cards, by the holder's UID. `devices`: by resource, as the last list said.
    `agent`: calls the agent, None while there is none."""

    api: Api
    random: Random
    folder: Path
    tell: Callable[[str], None]
    looked: Callable[[], None]
    broken: Callable[[str], None]
    pods: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, tuple[Container, ...]] = field(default_factory=dict)
    held: dict[Place, Held] = field(default_factory=dict)
    recorded: set[Place] = field(default_factory=set)
    running: set[Place] = field(default_factory=set)
    started: set[Place] = field(default_factory=set)
    done: set[Place] = field(default_factory=set)
    partly: set[str] = field(default_factory=set)
    cards: dict[str, frozenset[str]] = field(default_factory=dict)
    unclaimed: set[str] = field(default_factory=set)
    devices: dict[str, dict[str, bool]] = field(default_factory=dict)
    being_allocated: dict[str, set[str]] = field(default_factory=dict)
    in_use: dict[str, set[str]] = field(default_factory=dict)
    agent: Any = None
    up: bool = True
    generation: int = 0
    started_at: float = 0.0
    slow: float = 0.05
    known_pods: set[str] | None = None
    pending: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = asyncio.Lock()
        self.plugin_dir = self.folder / "device-plugins"
        self.plugin_dir.mkdir(parents=True)
        self.write_record()

    # ---- its life ----

    def stop(self) -> None:
        """The process dies. Containers run on."""
        self.up = False
        for task in self.pending.values():
            task.cancel()
        self.pending.clear()
        self.lock = asyncio.Lock()
        self.being_allocated = {}
        self.devices = {one: {} for one in self.devices}

    def start(self, lost_record: bool) -> None:
        """A new process. It learns of its pods one after the other."""
        self.up, self.started_at = True, now()
        self.generation += 1
        self.known_pods = set()
        if lost_record:
            self.recorded.clear()
            self.unclaimed |= self.cards.keys()
            self._admit_again()
            self.write_record()
        self.count_again()
        for uid in sorted(self.pods.keys() - self.partly):
            self._resume(uid)

    def _admit_again(self) -> None:
        """Pods without a record get new devices, except for containers that run."""
        for place in self.held.keys() - self.running:
            del self.held[place]
            uid, _ = place
            if any(one == uid for one, _ in self.running):
                self.partly.add(uid)
            else:
                self.pods.pop(uid, None)
        self.partly &= self.pods.keys()

    def learn(self) -> None:
        """It learns of one more pod."""
        if self.known_pods is None or self.api.is_away or not self.up:
            return
        left = sorted(self.pods.keys() - self.known_pods)
        if left:
            self.known_pods.add(self.random.choice(left))
        else:
            self.known_pods = None
        self.admit_new()

    def admit_new(self) -> None:
        """Begin to admit the pods of the API server that are new to it."""
        if not self.up or self.api.is_away:
            return
        for pod in sorted(self.api.pods.values(), key=lambda one: one.uid):
            known = pod.uid in self.pods and pod.uid not in self.partly
            new = not known and pod.uid not in self.pending
            if new and not (pod.ended or pod.terminating):
                self.pending[pod.uid] = asyncio.ensure_future(self._admit(pod))

    # ---- pods ----

    async def _admit(self, pod: Pod) -> None:
        try:
            async with self.lock:
                await asyncio.sleep(self.slow * self.random.random())
                if self.api.by_uid(pod.uid) is None:
                    return
                done = await self._allocate(pod)
            if done:
                self.pods[pod.uid] = pod
                self.partly.discard(pod.uid)
                self.api.change(pod.uid, admitted=True)
                await self._start(pod)
        finally:
            self.pending.pop(pod.uid, None)

    async def _allocate(self, pod: Pod) -> bool:
        """Give the pod's containers their devices; False if it fails for good."""
        if pod.shadow or not pod.requests:
            return True  # node.py gave it cards when it was bound
        again = set[str]()
        for one in self.containers[pod.uid]:
            place = pod.uid, one.name
            if place not in self.held and not await self._give(pod, one, again):
                return False
            ids = self.held[place].ids if place in self.recorded else frozenset[str]()
            again = again | ids if one.init else again - ids
        return True

    async def _give(self, pod: Pod, container: Container, again: set[str]) -> bool:
        """Give a container its devices, first those that an init container of the pod has had
        (`again`); False if it fails for good."""
        ((resource, _),) = pod.requests
        self._free_the_dead()
        had = self.random.sample(sorted(again), min(len(again), container.count))
        free = sorted(
            one
            for one, healthy in self.devices.get(resource, {}).items()
            if healthy and one not in self.in_use.get(resource, set())
        )
        count = container.count - len(had)
        if len(free) < count:
            return self._fail(pod, f"{count} of {resource} wanted, {len(free)} free")
        self.random.shuffle(free)
        try:
            ids = had + (await self._chosen(resource, free, had, count) if count else [])
            self.in_use.setdefault(resource, set()).update(ids)
            self.being_allocated.setdefault(resource, set()).update(ids)
            answer = await self._ask("allocate", resource, ids)
        except AgentGone as error:
            self.count_again()
            return self._fail(pod, str(error))
        finally:
            self.being_allocated.pop(resource, None)
        await asyncio.sleep(self.random.choice((0.0005, 0.005, 0.05)))
        held = Held(pod, resource, frozenset(ids), answer, container)
        which = pod.name if len(self.containers[pod.uid]) == 1 else held.name
        self.tell(f"{which} is given {sorted(ids)}")
        self.held[held.place] = held
        self.recorded.add(held.place)
        self.count_again()
        self.write_record()
        self.looked()
        return True

    async def _chosen(
        self, resource: str, free: list[str], had: list[str], count: int
    ) -> list[str]:
        named = await self._ask("preferred", resource, free + had, had, count + len(had))
        wanted = [one for one in named if one in free]
        return (wanted + [one for one in free if one not in wanted])[:count]

    async def _start(self, pod: Pod) -> None:
        """Start the containers that do not run: init containers and sidecars one after the other,
        then all others."""
        containers = self.containers.get(pod.uid, ())
        for one in containers:
            if one.init or one.sidecar:
                await self._start_one(pod, one)
        others = (one for one in containers if not (one.init or one.sidecar))
        await asyncio.gather(*(self._start_one(pod, one) for one in others))

    async def _start_one(self, pod: Pod, container: Container) -> None:
        """Start the container, as soon as the agent lets it; one that has started before, also
        without the agent. An init container is waited for."""
        place = pod.uid, container.name
        if place not in self.running and place not in self.done:
            await self._prepare(pod, place)
            if pod.uid not in self.pods:
                return
            self.running.add(place)
            self.started.add(place)
            self.looked()
        if container.init and place not in self.done:
            await asyncio.sleep(self.random.choice((0.05, 1.0, 5.0)))
            self.running.discard(place)
            self.done.add(place)

    async def _prepare(self, pod: Pod, place: Place) -> None:
        held = self.held.get(place)
        while held is not None and pod.uid in self.pods:
            try:
                if self.agent is not None or place not in self.started:
                    await self._ask("prestart", held.resource, sorted(held.ids))
                return
            except AgentGone as error:
                self.tell(f"{pod.name} does not start: {error}")
                await asyncio.sleep(self.random.choice((1.0, 5.0)))

    def restart_container(self, place: Place) -> None:
        """The container has ended by itself, and is started again."""
        uid, _ = place
        if uid not in self.pending:
            self.running.discard(place)
            if self.up:
                self._resume(uid)

    def _resume(self, uid: str) -> None:
        """Start the pod's containers that do not run: never, if the kubelet does not know their
        devices any more."""
        places = {(uid, one.name) for one in self.containers.get(uid, ())}
        missing = places - self.running - self.done
        if uid in self.pending or not missing:
            return
        if missing & self.held.keys() - self.recorded:
            self.tell(f"{self.pods[uid].name} never starts again")
            self._stop(uid)
            self.api.change(uid, ended=True)
            return
        self.pending[uid] = asyncio.ensure_future(self._restart(uid))

    async def _restart(self, uid: str) -> None:
        try:
            await self._start(self.pods[uid])
        finally:
            self.pending.pop(uid, None)

    async def _ask(self, call: str, *args: Any) -> Any:
        if self.agent is None:
            raise AgentGone("the plugin is not there")
        return await self.agent.call(call, *args)

    def _fail(self, pod: Pod, why: str) -> bool:
        self.tell(f"{pod.name} is not admitted: {why}")
        self._stop(pod.uid)
        self.api.change(pod.uid, ended=True)
        return False

    def _stop(self, uid: str) -> None:
        """The pod's containers end."""
        self.running -= {place for place in self.running if place[0] == uid}
        self.done -= {place for place in self.done if place[0] == uid}

    def end(self, uid: str) -> None:
        """The pod's containers have ended: all that it had is free."""
        self.pods.pop(uid, None)
        self._stop(uid)
        self.partly.discard(uid)
        self.containers.pop(uid, None)
        self.cards.pop(uid, None)
        self.unclaimed.discard(uid)
        if task := self.pending.pop(uid, None):
            task.cancel()

    def _free_the_dead(self) -> None:
        living = self.pods.keys() | self.pending.keys()
        dead = {place for place in self.held if place[0] not in living}
        for place in dead:
            del self.held[place]
        if dead:
            self.recorded -= dead
            self.count_again()

    def count_again(self) -> None:
        """Forget what is being allocated: only what is recorded counts."""
        self.in_use = {}
        for place in self.recorded:
            held = self.held[place]
            self.in_use.setdefault(held.resource, set()).update(held.ids)

    # ---- its peers ----

    def receive(self, resource: str, devices: Sequence[Device]) -> None:
        """A plugin's list."""
        if not self.up:
            return
        listed = {one.id: one.healthy for one in devices}
        if gone := self.being_allocated.get(resource, set()) - listed.keys():
            self.broken(f"{sorted(gone)} left the list while being allocated")
        used = {
            one
            for place in self.recorded
            if place[0] in self.pods and self.held[place].resource == resource
            for one in self.held[place].ids
        }
        if gone := used & self.devices.get(resource, {}).keys() - listed.keys():
            self.broken(f"{sorted(gone)} left the list while held")
        self.devices[resource] = listed

    def disconnect(self) -> None:
        """The agent's streams have ended."""
        self.agent = None
        self.devices = {
            resource: dict.fromkeys(devices, False) for resource, devices in self.devices.items()
        }

    def healthy(self, resource: str) -> frozenset[str]:
        return frozenset(one for one, ok in self.devices.get(resource, {}).items() if ok)

    def claims(self, asked_at: float) -> Claims:
        """The answer of podresources' List."""
        self._free_the_dead()
        found = []
        for uid, pod in sorted(self.pods.items()):
            if self.known_pods is not None and uid not in self.known_pods:
                continue
            if uid in self.cards and uid not in self.unclaimed:
                ids = self.cards[uid]
                found.append(Claim(pod.namespace, pod.name, MAIN, PHYSICAL_RESOURCE, ids))
            for one in self.containers.get(uid, ()):
                if not one.init and (uid, one.name) in self.recorded:
                    held = self.held[uid, one.name]
                    found.append(Claim(*pod.key, one.name, held.resource, held.ids))
        return Claims(tuple(found), asked_at)

    def write_record(self) -> None:
        """Write its checkpoint file."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": name,
                "ResourceName": held.resource,
                "DeviceIDs": {"-1": sorted(held.ids)},
                "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
            }
            for (uid, name), held in sorted(self.held.items(), key=lambda one: one[0])
            if held.place in self.recorded
        ]
        body = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.plugin_dir / FILE).write_text(json.dumps(body))


class Podresources:
    """Has PodResources' interface. `healthy_cards`: those that NVIDIA's plugin reports as healthy.
    `driver`: NVIDIA's DRA driver, if it allocates the cards, and `dra`: what the agent knows of
    it."""

    def __init__(
        self,
        kubelet: Kubelet,
        healthy_cards: Callable[[], frozenset[str]],
        driver: Driver | None = None,
        dra: AllocatedDraCards | None = None,
    ) -> None:
        self._driver = driver
        self._dra = dra
        self.started_at = self.restarted_at = float("-inf")
        self._kubelet = kubelet
        self._healthy_cards = healthy_cards
        self._seen: int | None = None

    async def list(self, urgent: bool = False) -> Claims:
        """As PodResources.list. The answer may be older than its arrival."""
        asked_at = now()
        driver, dra = self._driver, self._dra
        if driver is None or dra is None:
            found: Claims = await self._call(lambda: self._kubelet.claims(asked_at))
            return found
        rest, devices = await self._call(lambda: driver.named(self._kubelet.claims(asked_at)))
        return await with_cards(rest, devices, dra)

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """As PodResources.allocatable."""

        cards = self._healthy_cards

        def answer() -> dict[str, frozenset[str]]:
            kubelet = self._kubelet
            found = {one: kubelet.healthy(one) for one in kubelet.devices}
            return found | {
                PHYSICAL_RESOURCE: self._dra.usable.get(PHYSICAL_RESOURCE, frozenset())
                if self._dra
                else cards()
            }

        healthy: Mapping[str, frozenset[str]] = await self._call(answer)
        return healthy

    async def close(self) -> None:
        """As PodResources.close."""

    async def _call(self, answer: Callable[[], Any]) -> Any:
        kubelet = self._kubelet
        generation = kubelet.generation
        if not kubelet.up:
            raise KubeletAway("its socket is not there")
        if self._seen is None:
            self.started_at = kubelet.started_at
        elif self._seen != generation:
            self.restarted_at = now()
        self._seen = generation
        await asyncio.sleep(kubelet.slow * kubelet.random.random() / 2)
        found = answer()
        await asyncio.sleep(kubelet.slow * kubelet.random.random() / 2)
        if not kubelet.up or kubelet.generation != generation:
            raise KubeletAway("it was restarted")
        return found


class Plugins:
    """Has the parts of PluginManager that the agent uses: sends lists to the kubelet, late and in
    order."""

    def __init__(self, kubelet: Kubelet, spawn: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        self._kubelet = kubelet
        self.lists: dict[str, tuple[Device, ...]] = {}
        self._sent: dict[str, tuple[Device, ...]] = {}
        self._registered = -1
        self._changed = asyncio.Event()
        spawn(self._run())

    def apply(self, lists: Mapping[str, tuple[Device, ...]], advertised: object = None) -> None:
        """As PluginManager.apply."""
        gone = set[str]()
        if SPOT_RESOURCE not in lists:
            gone = self.lists.keys() - lists.keys() - {SPOT_RESOURCE}
        before, self.lists = self.lists, {**self.lists, **lists, **dict.fromkeys(gone, ())}
        if self.lists != before:
            self._changed.set()

    async def _run(self) -> None:
        kubelet = self._kubelet
        while True:
            await wait_until_set(self._changed, within=0.3)
            self._changed.clear()
            if not kubelet.up:
                continue
            if self._registered != kubelet.generation:
                await asyncio.sleep(kubelet.random.choice((0.1, 0.5)))
                self._registered, self._sent = kubelet.generation, {}
                if not kubelet.up:
                    continue
            for resource, devices in sorted(self.lists.items()):
                if self._sent.get(resource) != devices:
                    await asyncio.sleep(kubelet.slow * kubelet.random.random() / 4)
                    if self._registered != kubelet.generation or not kubelet.up:
                        break
                    self._sent[resource] = devices
                    kubelet.receive(resource, devices)
