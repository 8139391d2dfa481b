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
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.kubelet.device_checkpoint import FILE
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from simulation.node.api import Api, now

MAIN = "main"


class AgentGone(Exception):
    """The agent ended before it answered."""


@dataclass
class Held:
    """What a container was given, as the kubelet records it."""

    pod: Pod
    resource: str
    ids: frozenset[str]
    answer: pb.ContainerAllocateResponse

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
    """`pods`: those that were admitted, by UID. `held`: of each, what its container was given.
    `recorded`: UIDs of those that the kubelet has in its record. `running`: UIDs of pods whose
    container has started. `cards`: whole cards, by the holder's UID. `devices`: by resource, as the
    last list said. `agent`: calls the agent, None while there is none."""

    api: Api
    random: Random
    folder: Path
    tell: Callable[[str], None]
    looked: Callable[[], None]
    broken: Callable[[str], None]
    pods: dict[str, Pod] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
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
        for uid in sorted(self.pods.keys() - self.running):
            self.restart_container(uid)

    def _admit_again(self) -> None:
        """Pods without a record get new devices, except those whose containers run."""
        for uid in self.held.keys() - self.running:
            del self.held[uid]
            self.pods.pop(uid, None)

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
            new = pod.uid not in self.pods and pod.uid not in self.pending
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
                self.api.change(pod.uid, admitted=True)
                await self._start(pod)
        finally:
            self.pending.pop(pod.uid, None)

    async def _allocate(self, pod: Pod) -> bool:
        """Give the pod its devices; False if it fails for good."""
        if pod.shadow or not pod.requests:
            return True  # node.py gave it cards when it was bound
        ((resource, count),) = pod.requests
        self._free_the_dead()
        free = sorted(
            one
            for one, healthy in self.devices.get(resource, {}).items()
            if healthy and one not in self.in_use.get(resource, set())
        )
        if len(free) < count:
            return self._fail(pod, f"{count} of {resource} wanted, {len(free)} free")
        self.random.shuffle(free)
        try:
            ids = await self._chosen(resource, free, count)
            self.in_use.setdefault(resource, set()).update(ids)
            self.being_allocated.setdefault(resource, set()).update(ids)
            answer = await self._ask("allocate", resource, ids)
        except AgentGone as error:
            self.count_again()
            return self._fail(pod, str(error))
        finally:
            self.being_allocated.pop(resource, None)
        await asyncio.sleep(self.random.choice((0.0005, 0.005, 0.05)))
        held = Held(pod, resource, frozenset(ids), answer)
        self.tell(f"{pod.name} is given {sorted(ids)}")
        self.held[pod.uid] = held
        self.recorded.add(pod.uid)
        self.count_again()
        self.write_record()
        self.looked()
        return True

    async def _chosen(self, resource: str, free: list[str], count: int) -> list[str]:
        named = await self._ask("preferred", resource, free, [], count)
        wanted = [one for one in named if one in free]
        return (wanted + [one for one in free if one not in wanted])[:count]

    async def _start(self, pod: Pod) -> None:
        """Start the container, as soon as the agent lets it; one that has started before, also
        without the agent."""
        held = self.held.get(pod.uid)
        while held is not None and pod.uid in self.pods:
            try:
                if self.agent is not None or pod.uid not in self.started:
                    await self._ask("prestart", held.resource, sorted(held.ids))
                break
            except AgentGone as error:
                self.tell(f"{pod.name} does not start: {error}")
                await asyncio.sleep(self.random.choice((1.0, 5.0)))
        if pod.uid in self.pods:
            self.running.add(pod.uid)
            self.started.add(pod.uid)
            self.looked()

    def restart_container(self, uid: str) -> None:
        """The container has ended by itself, and is started again: never, if the kubelet does not
        know its devices any more."""
        self.running.discard(uid)
        if self.up and uid not in self.pending:
            if uid in self.held and uid not in self.recorded:
                self.tell(f"{self.pods[uid].name} never starts again")
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
        self.api.change(pod.uid, ended=True)
        return False

    def end(self, uid: str) -> None:
        """The pod's container has ended: all that it had is free."""
        self.pods.pop(uid, None)
        self.running.discard(uid)
        self.cards.pop(uid, None)
        self.unclaimed.discard(uid)
        if task := self.pending.pop(uid, None):
            task.cancel()

    def _free_the_dead(self) -> None:
        dead = self.held.keys() - self.pods.keys() - self.pending.keys()
        for uid in dead:
            del self.held[uid]
        if dead:
            self.recorded -= dead
            self.count_again()

    def count_again(self) -> None:
        """Forget what is being allocated: only what is recorded counts."""
        self.in_use = {}
        for uid in self.recorded:
            held = self.held[uid]
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
            for uid in self.recorded & self.pods.keys()
            if self.held[uid].resource == resource
            for one in self.held[uid].ids
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
            if uid in self.recorded:
                held = self.held[uid]
                found.append(Claim(pod.namespace, pod.name, MAIN, held.resource, held.ids))
        return Claims(tuple(found), asked_at)

    def write_record(self) -> None:
        """Write its checkpoint file."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": MAIN,
                "ResourceName": held.resource,
                "DeviceIDs": {"-1": sorted(held.ids)},
                "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
            }
            for uid, held in sorted(self.held.items())
            if uid in self.recorded
        ]
        body = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.plugin_dir / FILE).write_text(json.dumps(body))


class Podresources:
    """Has PodResources' interface. `broken`: cards that NVIDIA's plugin reports as unhealthy."""

    def __init__(self, kubelet: Kubelet, healthy_cards: Callable[[], frozenset[str]]) -> None:
        self.started_at = self.restarted_at = float("-inf")
        self._kubelet = kubelet
        self._healthy_cards = healthy_cards
        self._seen: int | None = None

    async def list(self, urgent: bool = False) -> Claims:
        """As PodResources.list. The answer may be older than its arrival."""
        asked_at = now()
        found: Claims = await self._call(lambda: self._kubelet.claims(asked_at))
        return found

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """As PodResources.allocatable."""

        def answer() -> dict[str, frozenset[str]]:
            kubelet = self._kubelet
            found = {one: kubelet.healthy(one) for one in kubelet.devices}
            return found | {PHYSICAL_RESOURCE: self._healthy_cards()}

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
