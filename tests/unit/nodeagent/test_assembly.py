"""The whole agent between a kubelet, an API server and cards that behave like the real ones."""

import asyncio
import errno
import itertools
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock, Mock, patch

import aiohttp
import grpc
import pytest
from aiohttp.test_utils import TestServer

from mizar_core.models import ComputeMode, Isolation
from mizar_core.names import gives_way
from mizar_kube import probes
from mizar_nodeagent import agent_base, agent_checkpoint, agent_loop, card_health
from mizar_nodeagent.app import App
from mizar_nodeagent.assembly import assemble
from mizar_nodeagent.card_health import Readings
from mizar_nodeagent.cards import Card, ProcessLoad
from mizar_nodeagent.config import CardAccess, Config
from mizar_nodeagent.container import access_choice, missed_containers, shim_install, spare_slots
from mizar_nodeagent.errors import CardsUnknown, ConfigRefused, RegionDamaged
from mizar_nodeagent.kubelet import podresources, poller
from mizar_nodeagent.mig import Instance
from mizar_nodeagent.planning import plan
from mizar_nodeagent.planning.snapshot import GracePeriods
from mizar_nodeagent.proto import nri_pb2 as pb
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_MODES, MEMORY_MODES, STATE_READY, LimitsLive
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_api import FakeApi, serving
from unit.nodeagent.fake_kubelet import Admission, Allocated, FakeKubelet, KubePod
from unit.nodeagent.fake_runtime import running
from unit.nodeagent.makers import (
    CARD,
    GIB,
    RESOURCE,
    SHADOW,
    cards,
    device,
    shadow_object,
    share_object,
)

SHADOW_POD = KubePod("team-a", SHADOW[1], f"uid-{SHADOW[1]}")
SHARE = KubePod("team-a", "share", "uid-share")
FOR_EVER_S = 3600.0
LOOK_S = 0.1
"""Seconds between two looks at the cards, for which many tests wait; otherwise it is two."""
FEW_SPARES = 2
"""Slots that an agent makes ahead. The usual 16, of a MiB each, took a quarter of the time of tests
of whole agents; test_slots.py has them."""
QUICK = GracePeriods(lowered=0.05, blocked=0.05, leaving=0.2, taken=0.05, gone=0.0, withdraw=0.01)


CONTEXT_BYTES = 310 << 20


class Cards:
    """Four cards; `tell` reports a fault. `overlooked`: those that NVML missed at its start, and
    lists only to those who expect them. `working`: percent of a card's time by PID. `holding`:
    bytes of memory by PID. `free`: bytes that are free on each card."""

    def __init__(self) -> None:
        self.present = cards()
        self.overlooked: set[str] = set()
        self.working: dict[str, dict[int, int]] = {}
        self.used: dict[str, dict[int, float]] = {}
        self.holding: dict[int, int] = {}
        self.free = 12 << 30
        self.asked = 0  # how often what processes do
        self.numbers = {uuid: number for number, uuid in enumerate(self.present)}
        self.tell: Callable[[str, int], None] = lambda uuid, xid: None

    async def read(self, expected: Collection[str] = ()) -> dict[str, Card]:
        self.overlooked -= set(expected)
        return {uuid: card for uuid, card in self.present.items() if uuid not in self.overlooked}

    async def minors(self, uuids: Collection[str]) -> dict[str, int]:
        return {uuid: self.numbers[uuid] for uuid in uuids if uuid in self.present}

    async def workers(self, uuids: Collection[str]) -> dict[str, dict[int, int]]:
        return {}

    async def context_bytes(self, uuid: str) -> int:
        return CONTEXT_BYTES

    async def loads(self, uuids: Collection[str]) -> dict[str, dict[int, ProcessLoad]]:
        self.asked += 1
        return {
            uuid: {
                pid: ProcessLoad(percent, self.holding.get(pid, 0))
                for pid, percent in self.working.get(uuid, {}).items()
            }
            for uuid in uuids
        }

    async def utilization(self, uuid: str) -> dict[int, float] | None:
        return self.used.get(uuid)

    async def free_bytes(self, uuid: str) -> int:
        return self.free

    async def faults(self, tell: Callable[[str, int], None]) -> None:
        self.tell = tell
        await asyncio.Event().wait()


class World:
    """A node with everything on it; kubelet and agent run while it is used as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = FakeApi()
        self.kubelet = FakeKubelet(folder / "kubelet")
        self.cards = Cards()
        self.access = CardAccess()
        self.ignored_xids: tuple[int, ...] = ()
        self.owner_wait = 3.0
        self.app: App | None = None
        (folder / "libmizar.so").write_bytes(b"shim")
        self._running: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.kubelet.start()
        await self.start_agent()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_agent()
        await self.kubelet.stop()
        assert not self.kubelet.crashed

    @property
    def config(self) -> Config:
        return Config(
            node_name="node-1",
            kubelet_dir=self.folder / "kubelet",
            plugin_dir=self.folder / "kubelet" / "device-plugins",
            state_dir=self.folder / "state",
            shim_path=self.folder / "libmizar.so",
            metrics_port=0,
            card_access=self.access,
            ignored_xids=self.ignored_xids,
            owner_wait_seconds=self.owner_wait,
        )

    async def start_agent(self) -> None:
        self._stack.enter_context(patch.object(spare_slots, "SPARES", FEW_SPARES))
        client = await self._stack.enter_async_context(serving(self.api))
        started = asyncio.Event()

        async def run() -> None:
            async with assemble(self.config, client, self.cards, QUICK) as app:
                self.app = app
                started.set()
                await app.run()

        self._running = asyncio.create_task(run())
        await started.wait()

    async def stop_agent(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        # The kubelet notices by the stream's end: until then it would ask the old socket.
        await until(lambda: not self.kubelet.is_serving(RESOURCE))
        await self._stack.aclose()

    async def replanned(self) -> None:
        """Wait until the agent has polled the kubelet once more and made a plan."""
        app, since = self.app, time.monotonic()
        app.poller.poll_soon()
        await until(lambda: app.poller.age < time.monotonic() - since)
        await self.planned()

    async def planned(self) -> None:
        """Wait until the agent has made another plan."""
        app, since = self.app, time.monotonic()
        app.agent.wake()
        await until(lambda: app.agent.idle_for < time.monotonic() - since)

    async def plan_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the agent rest for ever after the next plan, as on a busy node it rests for long."""
        resting = asyncio.Event()

        def rest_for_ever(*_: object) -> float:
            resting.set()
            return FOR_EVER_S

        monkeypatch.setattr(agent_loop, "rest_after", rest_for_ever)
        self.app.agent.wake()
        await until(resting.is_set)

    def add_shadow(self, **carving: Any) -> None:
        """A shadow pod bound to the node, which the kubelet has given a card."""
        self.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
        self.api.put_pod(shadow_object(**carving))
        self.kubelet.add_pod(
            SHADOW_POD, pause=sorted(cards(*range(1, 1 + carving.get("cards", 1))))
        )

    async def serve_shadow(self, **carving: Any) -> None:
        self.add_shadow(**carving)
        await until(lambda: self.ready() == ("True", "Serving"))

    def ready(self) -> tuple[str, str]:
        return self.condition("Ready")

    def condition(self, type: str) -> tuple[str, str]:
        return self.api.condition(*SHADOW, type)

    def draining(self) -> tuple[str, str]:
        return self.api.condition(*SHADOW, "Draining")

    def holders(self) -> list[str]:
        """Names of the pods that hold a device, by ShadowPod.status."""
        devices = self.api.status(*SHADOW).get("devices", ())
        return [one["holder"]["name"] for one in devices if "holder" in one]

    def holds(self, pod: KubePod, card: str) -> bool:
        """Whether the pod holds a device on the card, by ShadowPod.status."""
        devices = self.api.status(*SHADOW).get("devices", ())
        held = [one["holder"]["name"] for one in devices if one["card"] == card and "holder" in one]
        return pod.name in held

    def node(self, resource: str = RESOURCE) -> tuple[str | None, str | None]:
        """(capacity, allocatable) in the node's status."""
        status = self.api.node["status"]
        return status["capacity"].get(resource), status["allocatable"].get(resource)

    def event_reasons(self) -> list[str]:
        return [event["reason"] for event in self.api.events]

    async def knows(self, pod: KubePod) -> None:
        """Wait until the agent's watch has reported the pod, unless the API server is away. Of a
        pod that starts before, the agent knows neither the UID nor the annotations."""
        if not self.api.down:
            await until(lambda: pod.uid in {one.uid for one in self.app.pods.values()})

    async def start_share(
        self, pod: KubePod = SHARE, count: int = 1, annotations: dict[str, str] | None = None
    ) -> Allocated:
        """The scheduler binds a share pod, the kubelet admits and starts it."""
        body = share_object(pod.name, pod.namespace, count=count)
        if annotations is not None:
            body["metadata"]["annotations"] = annotations
        self.api.put_pod(body)
        await self.knows(pod)
        await self.kubelet.allocate(pod, "main", RESOURCE, count)
        return await self.kubelet.start_container(pod, "main", RESOURCE)


def mounted(held: Allocated) -> dict[str, tuple[str, bool]]:
    return {one.container_path: (one.host_path, one.read_only) for one in held.answer.mounts}


def limits_of(held: Allocated) -> Path:
    return Path(mounted(held)["/run/mizar/limits"][0])


def _live(held: Allocated) -> LimitsLive:
    return limits_file.read(limits_of(held)).live[0]


@pytest.fixture
async def world(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A world whose agent acts on events only, never because time has passed; it learns what has
    become of cards at its next look at them."""
    monkeypatch.setattr(agent_loop, "READ_CARDS_S", LOOK_S)
    monkeypatch.setattr(poller, "IDLE_INTERVAL_S", FOR_EVER_S)
    monkeypatch.setattr(agent_loop, "REPLAN_S", FOR_EVER_S)
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    async with World(tmp_path_factory.mktemp("w")) as made:
        yield made


async def test_a_shadow_pod_becomes_devices(world: World) -> None:
    await world.serve_shadow()
    assert world.kubelet.healthy(RESOURCE) == {device(0), device(1)}
    assert world.node() == ("2", "2")
    status = world.api.status(*SHADOW)
    assert status["node"] == "node-1" and status["usage"] == "0/2"
    assert status["cards"] == [
        {"uuid": CARD, "model": "NVIDIA A100-SXM4-40GB", "memoryMiB": 16384, "index": 0}
    ]
    assert status["idleSince"]
    assert "phase" not in status


async def test_the_kubelet_is_told_of_numa_nodes_and_given_devices_of_one(world: World) -> None:
    """Four cards, near two NUMA nodes in turns, with a device each."""
    for number, (uuid, card) in enumerate(sorted(world.cards.present.items())):
        world.cards.present[uuid] = replace(card, numa=(number % 2,))
    resource = "team-a.mizar.share/gpu.4"
    known = world.app.agent.inventory.cards
    await until(lambda: any(card.numa for card in known().values()))
    await world.serve_shadow(devices=4, cards=4, resource=resource)
    told = {device(index): [index % 2] for index in range(4)}
    await until(lambda: world.kubelet.numa.get(resource) == told)
    world.api.put_pod(share_object(resource=resource, count=2))
    held = await world.kubelet.allocate(SHARE, "main", resource, 2)
    assert sorted(held.ids) == [device(0), device(2)]


async def test_cards_that_the_kubelet_tells_late_are_served_quickly(world: World) -> None:
    world.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
    world.api.put_pod(shadow_object())
    await until(lambda: world.ready() == ("False", "CardsUnknown"))
    world.kubelet.add_pod(SHADOW_POD, pause=[CARD])
    await until(lambda: world.ready() == ("True", "Serving"))


async def test_a_share_pod_gets_card_slot_and_limits(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    (given,) = held.ids
    index = given.rpartition("-")[2]
    key = "mizar.k8s.io/container-devices-from.main"
    assert json.loads(held.answer.annotations[key]) == {
        f"_/{SHADOW[1]}/main": {"*": [f"{SHADOW[1]}-{index}"]}
    }
    assert held.answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARD
    mounts = mounted(held)
    assert {path: read_only for path, (_, read_only) in mounts.items()} == {
        "/run/mizar/libmizar.so": True,
        "/run/mizar/limits": True,
        "/run/mizar/usage": False,
        "/etc/ld.so.preload": True,
    }
    assert Path(mounts["/etc/ld.so.preload"][0]).read_text() == "/run/mizar/libmizar.so\n"
    assert Path(mounts["/run/mizar/libmizar.so"][0]).read_bytes() == b"shim"
    region = limits_file.read(limits_of(held))
    assert (region.pod_namespace, region.pod_name) == (b"team-a", b"share")
    assert (region.pod_uid, region.container) == (b"uid-share", b"main")
    assert region.cards[0].memory_limit == 8 * GIB
    await until(lambda: world.holders() == ["share"])
    assert world.api.condition(*SHADOW, "PodInUsing") == ("True", "Held")
    assert "idleSince" not in world.api.status(*SHADOW)


async def test_a_pod_that_starts_before_the_next_plan_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its UID its processes are found, whatever becomes of the API server."""
    await world.serve_shadow()
    assert world.app is not None
    late = KubePod("team-a", "late", "uid-late")
    await world.plan_no_more(monkeypatch)
    held = await world.start_share(late)
    assert limits_file.read(limits_of(held)).pod_uid == b"uid-late"


async def test_a_container_restart_keeps_its_slot(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    before = limits_file.read(limits_of(held)).seq
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert limits_file.read(limits_of(held)).seq == before


async def test_devices_of_a_deleted_pod_are_free_at_once_and_used_again(world: World) -> None:
    await world.serve_shadow()
    await world.start_share(count=2)
    await until(lambda: world.holders() == ["share", "share"])
    world.kubelet.remove_pod("uid-share")
    world.api.delete_pod("team-a", "share")
    await until(lambda: world.holders() == [])
    assert world.api.status(*SHADOW)["idleSince"]
    held = await world.start_share(KubePod("team-a", "next", "uid-next"), count=2)
    assert limits_file.read(limits_of(held)).pod_name == b"next"


async def test_a_device_that_the_kubelet_forgot_is_not_given_to_a_second_pod(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet calls two devices free: that of a pod that has ended since the agent's last plan,
    and one that it gave away while podresources was listed."""
    await world.serve_shadow()
    await world.start_share()
    ended = await world.start_share(KubePod("team-a", "ended", "uid-ended"))
    world.kubelet.remove_pod(SHARE.uid)
    world.api.delete_pod("team-a", "share")
    await until(lambda: world.holders() == ["ended"])
    await world.plan_no_more(monkeypatch)
    world.kubelet.ends_meanwhile = "uid-ended"
    first = await world.kubelet.allocate(KubePod("team-a", "one", "uid-one"), "main", RESOURCE, 1)
    second = await world.kubelet.allocate(KubePod("team-a", "two", "uid-two"), "main", RESOURCE, 1)
    assert first.ids != second.ids == ended.ids


async def share_a_device(world: World, *names: str) -> list[KubePod]:
    """The kubelet has admitted pods of these names with the same device."""
    pods = [KubePod("team-a", name, f"uid-{name}") for name in names]
    ids: list[str] = []
    for pod in pods:
        world.api.put_pod(share_object(pod.name))
        await world.knows(pod)
        ids = (await world.kubelet.allocate(pod, "main", RESOURCE, 1, reuse=ids)).ids
    return pods


async def refused(world: World, pod: KubePod) -> str:
    """What the kubelet hears when it starts the pod's container."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await world.kubelet.start_container(pod, "main", RESOURCE)
    assert not has_limits(world.kubelet.allocated[pod.uid, "main", RESOURCE])
    return str(error.value.details())


async def test_of_two_pods_with_one_device_one_gives_way_and_the_other_starts(
    world: World,
) -> None:
    """Invariant 1; the operator looks for the words."""
    await world.serve_shadow()
    one, two = await share_a_device(world, "one", "two")
    for pod in (one, two):
        why = await refused(world, pod)
        assert re.match(r"DeviceGivenTwice: the kubelet gave \S+ to 2 containers: ", why)
        assert gives_way("team-a", "two") in why and gives_way("team-a", "one") not in why
    await until(lambda: "DeviceGivenTwice" in world.event_reasons())
    told = [one for one in world.api.events if one["reason"] == "DeviceGivenTwice"]
    assert {event["regarding"]["name"] for event in told} == {"two"}
    world.kubelet.remove_pod(two.uid)
    world.api.delete_pod("team-a", "two")
    held = await world.kubelet.start_container(one, "main", RESOURCE)
    assert limits_file.read(limits_of(held)).pod_name == b"one"


async def test_a_pod_that_has_started_keeps_a_device_that_is_given_again(world: World) -> None:
    """Also after the agent's restart; and the other one starts as soon as it has ended."""
    await world.serve_shadow()
    running = await world.start_share(KubePod("team-a", "two", "uid-two"))
    one = KubePod("team-a", "one", "uid-one")
    world.api.put_pod(share_object("one"))
    await world.knows(one)
    await world.kubelet.allocate(one, "main", RESOURCE, 1, reuse=running.ids)
    assert gives_way("team-a", "one") in await refused(world, one)
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.kubelet.is_serving(RESOURCE))
    await world.knows(one)
    assert gives_way("team-a", "one") in await refused(world, one)
    ended = share_object("two")
    ended["status"]["phase"] = "Succeeded"
    world.api.put_pod(ended)  # the kubelet may name it for a while
    await until(lambda: world.app.pods.get("two", "team-a").ended)
    held = await world.kubelet.start_container(one, "main", RESOURCE)
    assert limits_file.read(limits_of(held)).pod_name == b"one"


async def test_a_device_of_a_pods_two_is_not_given_to_another_as_well(world: World) -> None:
    """The pods' sets of devices differ."""
    await world.serve_shadow()
    both = await world.start_share(KubePod("team-a", "two", "uid-two"), count=2)
    one = KubePod("team-a", "one", "uid-one")
    world.api.put_pod(share_object("one"))
    await world.knows(one)
    await world.kubelet.allocate(one, "main", RESOURCE, 1, reuse=sorted(both.ids))
    assert gives_way("team-a", "one") in await refused(world, one)
    await world.kubelet.start_container(KubePod("team-a", "two", "uid-two"), "main", RESOURCE)


async def test_a_device_that_another_pods_init_container_has_is_not_given_again(
    world: World,
) -> None:
    """The claims do not name init containers."""
    await world.serve_shadow()
    body = share_object("two")
    body["spec"]["initContainers"] = [{"name": "prepare", "resources": {"limits": {RESOURCE: "1"}}}]
    body["spec"]["containers"] = [{"name": "main"}]
    world.api.put_pod(body)
    two = KubePod("team-a", "two", "uid-two", init=frozenset({"prepare"}))
    await world.knows(two)
    held = await world.kubelet.allocate(two, "prepare", RESOURCE, 1)
    await world.kubelet.start_container(two, "prepare", RESOURCE)
    one = KubePod("team-a", "one", "uid-one")
    world.api.put_pod(share_object("one"))
    await world.knows(one)
    await world.kubelet.allocate(one, "main", RESOURCE, 1, reuse=held.ids)
    assert gives_way("team-a", "one") in await refused(world, one)


async def test_two_containers_of_a_pod_with_one_device_do_not_start(world: World) -> None:
    await world.serve_shadow()
    (pod,) = await share_a_device(world, "one")
    held = world.kubelet.allocated[pod.uid, "main", RESOURCE]
    await world.kubelet.allocate(pod, "side", RESOURCE, 1, reuse=held.ids)
    assert gives_way("team-a", "one") in await refused(world, pod)


async def test_an_init_containers_device_is_used_again_by_main(world: World) -> None:
    await world.serve_shadow()
    pod = KubePod("team-a", "share", "uid-share", init=frozenset({"prepare"}))
    body = share_object()
    body["spec"]["initContainers"] = [{"name": "prepare", "resources": {"limits": {RESOURCE: "1"}}}]
    world.api.put_pod(body)
    await world.knows(SHARE)
    first = await world.kubelet.allocate(pod, "prepare", RESOURCE, 1)
    second = await world.kubelet.allocate(pod, "main", RESOURCE, 1, reuse=first.ids)
    await world.kubelet.start_container(pod, "prepare", RESOURCE)
    await world.kubelet.start_container(pod, "main", RESOURCE)
    assert limits_of(first) != limits_of(second)
    for held in (first, second):
        assert limits_file.read(limits_of(held)).cards[0].memory_limit == 8 * GIB


async def test_an_init_container_alone_is_known_by_the_kubelets_record(world: World) -> None:
    await world.serve_shadow()
    pod = KubePod("team-a", "share", "uid-share", init=frozenset({"prepare"}))
    world.api.put_pod(share_object())
    await world.knows(SHARE)
    held = await world.kubelet.allocate(pod, "prepare", RESOURCE, 1)
    await world.kubelet.start_container(pod, "prepare", RESOURCE)
    assert limits_file.read(limits_of(held)).container == b"prepare"


def has_limits(held: Allocated) -> bool:
    try:
        return bool(limits_file.read(limits_of(held)).card_count)
    except RegionDamaged:
        return False


async def test_a_foreign_pod_does_not_start(world: World) -> None:
    await world.serve_shadow()
    foreign = KubePod("team-b", "thief", "uid-thief")
    with pytest.raises(grpc.aio.AioRpcError, match="are for pods of team-a, not of team-b"):
        await world.start_share(foreign)
    held = world.kubelet.allocated["uid-thief", "main", RESOURCE]
    assert not has_limits(held)
    await until(lambda: "IsolationNotEnforced" in world.event_reasons())


async def test_a_pod_that_asks_for_one_card_does_not_start_on_two(world: World) -> None:
    """The pod asks for two devices on one card; the kubelet has only devices of two cards."""
    await world.serve_shadow(cards=2)
    body = share_object(count=2)
    body["metadata"]["annotations"] = {"mizar.share/same-card": "true"}
    world.api.put_pod(body)
    await world.knows(SHARE)
    held = await world.kubelet.allocate(SHARE, "main", RESOURCE, 2)
    refused = "2 devices are on 2 cards, .*: the operator replaces a pod that has a controller, at"
    with pytest.raises(grpc.aio.AioRpcError, match=refused):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert not has_limits(held)
    await until(lambda: "SeveralCards" in world.event_reasons())


async def test_a_container_of_a_pool_of_one_card_does_not_start_on_two(world: World) -> None:
    """The kubelet passes on what the operator looks for."""
    await world.serve_shadow(cards=2, same_card=True)
    with pytest.raises(grpc.aio.AioRpcError, match=r"SeveralCards: sameCard of pool .* one card"):
        await world.start_share(count=2)
    await until(lambda: "SeveralCards" in world.event_reasons())


async def test_a_pod_may_accept_several_cards_where_its_pool_does_not(world: World) -> None:
    await world.serve_shadow(cards=2, same_card=True)
    held = await world.start_share(count=2, annotations={"mizar.share/same-card": "false"})
    assert limits_file.read(limits_of(held)).card_count == 2


async def test_what_runs_on_two_cards_starts_again_when_its_pool_demands_one(world: World) -> None:
    await world.serve_shadow(cards=2)
    await world.start_share(count=2)
    world.api.put_pod(shadow_object(cards=2, same_card=True))
    await until(lambda: world.app.agent.state.carvings[SHADOW].carve.same_card)
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert "SeveralCards" not in world.event_reasons()


async def test_a_pod_that_asks_for_one_card_and_has_one_starts(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share(count=2, annotations={"mizar.share/same-card": "true"})
    assert limits_file.read(limits_of(held)).cards[0].memory_limit == 16 * GIB
    assert limits_file.read(limits_of(held)).cards[0].context_bytes == CONTEXT_BYTES


@pytest.mark.parametrize("compute", ["Hard", "Soft", "Weighted"])
async def test_a_share_of_the_cards_time_reaches_the_limits(
    world: World, compute: ComputeMode
) -> None:
    isolation = Isolation(compute=compute, memory="Oversubscribe", backend="Shim")
    await world.serve_shadow(isolation=isolation)
    held = await world.start_share()
    given = limits_file.read(limits_of(held)).cards[0]
    assert (given.compute_mode, given.core_share) == (COMPUTE_MODES[compute], 5000)
    assert given.memory_mode == MEMORY_MODES["Oversubscribe"]
    assert given.priority == 1 << 31
    # Alone, a Soft container may have the other half as well, which shows that the time slicer
    # runs.
    spare = 5000 if compute == "Soft" else 0
    await until(lambda: _live(held).beat > 0 and _live(held).spare_share == spare)


async def test_a_pods_priority_reaches_the_limits(world: World) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Soft"))
    body = share_object()
    body["spec"]["priority"] = 1000
    world.api.put_pod(body)
    await world.knows(SHARE)
    await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    held = await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert limits_file.read(limits_of(held)).cards[0].priority == (1 << 31) + 1000


@pytest.mark.parametrize("isolation", [Isolation(backend="MPS")])
async def test_what_is_not_enforced_does_not_start(world: World, isolation: Isolation) -> None:
    await world.serve_shadow(isolation=isolation)
    with pytest.raises(grpc.aio.AioRpcError, match="isolation"):
        await world.start_share()
    await until(lambda: "IsolationNotEnforced" in world.event_reasons())
    (event,) = (one for one in world.api.events if one["reason"] == "IsolationNotEnforced")
    assert event["regarding"]["name"] == "share"


async def test_without_isolation_there_is_no_shim(world: World) -> None:
    await world.serve_shadow(isolation=Isolation(backend="None"))
    held = await world.start_share()
    assert mounted(held) == {}
    assert held.answer.envs["NVIDIA_VISIBLE_DEVICES"] == CARD


async def test_an_unknown_device_fails_the_pod_with_a_sentence(world: World) -> None:
    await world.serve_shadow()
    world.kubelet.devices[RESOURCE]["team-a/shadow-2-zzzzz-0"] = True
    with pytest.raises(Admission, match="shadow-2-zzzzz-0 is no device of"):
        await world.kubelet.allocate(SHARE, "main", RESOURCE, 3)


async def test_a_broken_card_takes_its_devices_away(world: World) -> None:
    await world.serve_shadow()
    world.cards.tell(CARD, 13)
    world.cards.tell(CARD, 79)
    await until(lambda: world.kubelet.devices[RESOURCE] == {device(0): False, device(1): False})
    await until(lambda: world.node() == ("2", "0"))
    await until(lambda: world.api.condition(*SHADOW, "Healthy") == ("False", "CardFailed"))
    await until(lambda: "DeviceUnhealthy" in world.event_reasons())


async def test_the_health_of_a_card_that_nobody_holds_is_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what no driver reports as a fault, such as a dead link. A divided card is well."""
    caplog.set_level("INFO")
    monkeypatch.setattr(agent_loop, "READ_CARDS_S", 0.01)
    signs = tuple(replace(one, after=0.0, calm=0.0) for one in card_health.SIGNS)
    monkeypatch.setattr(card_health, "SIGNS", signs)
    well = Card("GPU-linked", 1 << 30, "A100", readings=Readings(links=(True, True)))
    world.cards.present |= {
        "GPU-linked": well,
        "GPU-divided": Card("GPU-divided", 1 << 30, "A100", divided=True),
    }

    def health() -> list[tuple[str, str, str]]:
        lines = [line for line in logged(caplog) if line["event"].startswith("a card is ")]
        return [(one["event"], one["card"], one.get("problem", "")) for one in lines]

    await until(lambda: "GPU-linked" in world.app.agent.inventory.cards())
    world.cards.present["GPU-linked"] = replace(well, readings=Readings(links=(True, False)))
    dead = ("a card is unhealthy", "GPU-linked", "one of its NVLinks is down")
    await until(lambda: health() == [dead])
    world.cards.present["GPU-linked"] = well
    await until(lambda: health() == [dead, ("a card is healthy again", "GPU-linked", "")])


async def test_nvml_that_hangs_is_told_until_it_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve_shadow()
    answers = asyncio.Event()
    read = world.cards.read

    async def late(expected: Collection[str]) -> dict[str, Card]:
        await answers.wait()
        return await read(expected)

    monkeypatch.setattr(agent_loop, "CARDS_WITHIN_S", 0.05)
    monkeypatch.setattr(agent_loop, "READ_CARDS_S", 0.05)
    monkeypatch.setattr(world.cards, "read", late)
    hangs = "NVML has not answered for 0.05 s"
    await until(lambda: hangs in world.app.unready())
    assert world.ready() == ("True", "Serving")
    answers.set()
    await until(lambda: hangs not in world.app.unready())


async def test_a_drain_ends_drained(world: World) -> None:
    await world.serve_shadow()
    world.api.put_pod(shadow_object(drain="2026-01-01T00:00:00Z"))
    await until(lambda: world.draining() == ("True", "Drained"))
    assert world.node() == ("2", "0")
    assert world.kubelet.devices[RESOURCE] == {device(0): False, device(1): False}
    world.api.put_pod(shadow_object())
    await until(lambda: world.ready() == ("True", "Serving"))
    assert world.node() == ("2", "2")


async def test_a_drain_that_cannot_be_saved_is_not_promised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent would read the file from before the drain, and offer the devices again, while
    the operator deletes the shadow pod."""
    await world.serve_shadow()
    await until(lambda: (world.folder / "state" / "checkpoint.json").exists())
    for file in (world.folder / "state").glob("checkpoint.reserve-*"):
        file.unlink()
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
        world.api.put_pod(shadow_object(drain="2026-01-01T00:00:00Z"))
        await until(lambda: world.ready() == ("False", "Drained"))
        assert world.draining() == ("Unknown", "InProgress")
        await world.planned()
        assert world.draining() == ("Unknown", "InProgress")
    await world.planned()
    await until(lambda: world.draining() == ("True", "Drained"))
    saved = json.loads((world.folder / "state" / "checkpoint.json").read_bytes())
    assert [one["stage"] for one in saved["carvings"]] == ["Drained"]


async def test_a_drain_is_completed_on_a_full_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve_shadow()
    await until(lambda: (world.folder / "state" / "checkpoint.json").exists())
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
    world.api.put_pod(shadow_object(drain="2026-01-01T00:00:00Z"))
    await until(lambda: world.draining() == ("True", "Drained"))
    saved = json.loads((world.folder / "state" / "checkpoint.json").read_bytes())
    assert [one["stage"] for one in saved["carvings"]] == ["Drained"]


async def test_room_for_a_full_disk_is_reserved_before_the_first_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full as soon as the agent has its files there."""
    await world.stop_agent()
    for file in (world.folder / "state").glob("checkpoint.*"):
        file.unlink()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
    await world.start_agent()
    await world.serve_shadow()
    path = world.folder / "state" / "checkpoint.json"
    await until(lambda: path.exists() and CARD in path.read_text())


async def test_a_drain_of_what_is_held_is_called_off(world: World) -> None:
    await world.serve_shadow()
    await world.start_share()
    world.api.put_pod(shadow_object(drain="2026-01-01T00:00:00Z"))
    await until(lambda: world.draining() == ("False", "InUse"))
    await until(lambda: len(world.kubelet.healthy(RESOURCE)) == 2)


async def test_a_reaped_shadow_pod_leaves_nothing(world: World) -> None:
    await world.serve_shadow()
    world.api.delete_pod(*SHADOW)
    world.kubelet.remove_pod(SHADOW_POD.uid)
    await until(lambda: world.kubelet.devices[RESOURCE] == {})
    await until(lambda: world.node() == ("0", "0"))


async def test_a_lost_shadow_pods_container_does_not_start_again(world: World) -> None:
    await world.serve_shadow()
    await world.start_share()
    world.api.delete_pod(*SHADOW)
    world.kubelet.remove_pod(SHADOW_POD.uid)
    await until(lambda: world.kubelet.devices[RESOURCE] == {device(0): False, device(1): False})
    with pytest.raises(grpc.aio.AioRpcError, match=r"shadow pod of .* has been deleted"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)


async def test_a_kubelet_restart_loses_nothing(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await world.kubelet.restart()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    other = await world.start_share(KubePod("team-a", "next", "uid-next"))
    assert set(other.ids) == {device(0), device(1)} - set(held.ids)
    await until(lambda: sorted(world.holders()) == ["next", "share"])
    assert world.ready() == ("True", "Serving")


@pytest.mark.parametrize("agent", ["runs on", "restarts too"])
async def test_devices_that_a_kubelet_without_its_record_has_forgotten_stay_their_containers(
    world: World, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """Invariant 1: containers run on, and the kubelet calls their devices free. After the damage of
    its record, it gives none to a container that runs."""
    monkeypatch.setattr(poller, "STARTS_S", 0.05)
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    await world.kubelet.stop()
    world.kubelet.allocated.clear()
    world.kubelet._write_checkpoint()
    if agent == "restarts too":
        await world.stop_agent()
        await world.start_agent()
    await world.kubelet.start()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})

    async def is_believed() -> bool:
        world.api.put_pod(share_object())  # the agent hears of the API server
        world.app.poller.poll_soon()
        await asyncio.sleep(0.01)
        return world.app.poller.kubelet is not None

    since = world.kubelet.asked
    while not await is_believed() or world.kubelet.asked < since + 3:
        pass
    await world.replanned()
    assert world.holders() == ["share"]
    other = KubePod("team-a", "next", "uid-next")
    world.api.put_pod(share_object("next"))
    await world.knows(other)
    await world.kubelet.allocate(other, "main", RESOURCE, 1, reuse=held.ids)
    assert gives_way("team-a", "next") in await refused(world, other)
    world.kubelet.remove_pod(SHARE.uid)
    world.api.delete_pod("team-a", "share")
    await until(lambda: "share" not in world.holders())
    await world.kubelet.start_container(other, "main", RESOURCE)


async def test_an_agent_restart_loses_nothing(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    other = await world.start_share(KubePod("team-a", "next", "uid-next"))
    assert set(other.ids) == {device(0), device(1)} - set(held.ids)
    await until(lambda: sorted(world.holders()) == ["next", "share"])


async def test_an_agent_that_starts_without_a_kubelet_leaves_the_holders_it_was_told(
    world: World,
) -> None:
    """Otherwise the shadow pod seems idle, and loses the protection of one in use."""
    await world.serve_shadow()
    await world.start_share()
    await until(lambda: world.holders() == ["share"])
    await world.stop_agent()
    await world.kubelet.stop()
    await world.start_agent()
    await until(lambda: world.app.agent.state.snapshot.pods)
    await world.planned()
    await until(lambda: world.node() == ("2", "0"))
    assert world.holders() == ["share"]
    assert world.condition("PodInUsing") == ("True", "Held")
    await world.kubelet.start()
    other = KubePod("team-a", "next", "uid-next")
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    await world.start_share(other)
    await until(lambda: sorted(world.holders()) == ["next", "share"])


async def test_an_agent_that_ends_says_so_to_the_scheduler(world: World) -> None:
    await world.serve_shadow()
    assert world.api.node["status"]["allocatable"][RESOURCE] == "2"
    await world.stop_agent()
    assert world.api.node["status"]["allocatable"][RESOURCE] == "0"
    assert world.api.node["status"]["capacity"][RESOURCE] == "2"
    await world.start_agent()
    await until(lambda: world.api.node["status"]["allocatable"][RESOURCE] == "2")


async def test_an_agent_that_has_lost_its_state_finds_it_again(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await world.stop_agent()
    (world.folder / "state" / "checkpoint.json").write_text("{ damaged")
    for path in limits_of(held).parent.iterdir():
        path.unlink()
    limits_of(held).parent.rmdir()
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    # The container starts again with the paths that the kubelet remembers.
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    region = limits_file.read(limits_of(held))
    assert (region.state, region.pod_name) == (STATE_READY, b"share")


@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
async def test_a_card_that_was_missing_at_the_agents_start_is_served_once_it_is_back(
    world: World, checkpoint: str
) -> None:
    """Which card to expect is known by the checkpoint, or by the kubelet."""
    await world.serve_shadow()
    await world.stop_agent()
    if checkpoint == "lost":
        (world.folder / "state" / "checkpoint.json").unlink()
    world.cards.overlooked = {CARD}
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})


async def test_an_agent_serves_from_its_checkpoint_while_the_api_server_is_away(
    world: World,
) -> None:
    await world.serve_shadow()
    await world.start_share()
    await world.stop_agent()
    world.api.down = True
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    await world.kubelet.start_container(SHARE, "main", RESOURCE)


async def test_device_nodes_follow_the_driver(world: World) -> None:
    """A card drops out and comes back behind the others: the numbers that the agent has seen, and
    may have kept, then belong to other cards. The agent gives a new container the right number, and
    no container starts again with a wrong one."""
    await world.stop_agent()
    world.access = CardAccess(strategy="Mounts")
    await world.start_agent()
    await world.serve_shadow()
    first = await world.start_share()
    assert "/dev/nvidia0" in {one.host_path for one in first.answer.devices}
    world.cards.numbers |= {CARD: 1, sorted(cards())[1]: 0}
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    second = await world.start_share(KubePod("team-a", "next", "uid-next"))
    nodes = {one.host_path for one in second.answer.devices}
    assert "/dev/nvidia1" in nodes and "/dev/nvidia0" not in nodes
    with pytest.raises(grpc.aio.AioRpcError, match="renumbered its cards"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    await until(lambda: "CardRenumbered" in world.event_reasons())


MIG = "MIG-00000000-0000-0000-0000-000000000001"


def mig_device(unread: str = "") -> Card:
    """A MIG device of the node's first card, or what NVML tells while it does not answer for it."""
    whole = cards()[CARD]
    found = replace(whole, uuid=MIG, instance=Instance(CARD, 1, 0))
    return Card(MIG, 0, "", unread=unread) if unread else found


def let_one_look(world: World, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until the event, only the next look at the cards is answered."""
    look_again, looks, read = asyncio.Event(), itertools.count(), world.cards.read

    async def once(expected: Collection[str] = ()) -> dict[str, Card]:
        if next(looks):
            await look_again.wait()
        return await read(expected)

    monkeypatch.setattr(world.cards, "read", once)
    return look_again


async def test_a_mig_device_of_unknown_place_is_given_to_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint does not keep where on its card a MIG device is. Without the device nodes that
    belong to its place, a container would start all the same and find no device, and the kubelet
    would repeat the answer at each of its starts."""
    await world.stop_agent()
    (world.folder / "minors").write_text("gpu0/gi1/access 21\ngpu0/gi1/ci0/access 22\n")
    world.access = CardAccess(strategy="Mounts", mig_minors=world.folder / "minors")
    world.cards.present[MIG], world.cards.numbers[MIG] = mig_device(), 0
    await world.start_agent()
    world.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
    world.api.put_pod(shadow_object())
    world.kubelet.add_pod(SHADOW_POD, pause=[MIG])
    await until(lambda: world.ready() == ("True", "Serving"))
    await world.stop_agent()
    world.cards.present[MIG] = mig_device(unread="busy")
    # At its second look, the agent would declare the device unhealthy, which refuses pods before.
    look_again = let_one_look(world, monkeypatch)
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    before = set((world.folder / "state" / "slots").iterdir())
    with pytest.raises(Admission, match=f"where MIG device {MIG} is"):
        await world.start_share()
    assert set((world.folder / "state" / "slots").iterdir()) == before
    world.cards.present[MIG] = mig_device()
    look_again.set()
    await until(lambda: world.app.agent.inventory.instance_of(MIG) is not None)
    held = await world.start_share(KubePod("team-a", "next", "uid-next"))
    nodes = {one.host_path for one in held.answer.devices}
    assert nodes >= {"/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{one}" for one in (21, 22))}


async def test_that_a_mig_devices_card_has_failed_is_told_by_one_agent(world: World) -> None:
    """A checkpoint does not keep of which card it is a part."""
    world.cards.present[MIG], world.cards.numbers[MIG] = mig_device(), 0
    world.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
    world.api.put_pod(shadow_object())
    world.kubelet.add_pod(SHADOW_POD, pause=[MIG])
    await until(lambda: world.ready() == ("True", "Serving"))
    world.cards.tell(CARD, 79)
    await until(lambda: "DeviceUnhealthy" in world.event_reasons())
    await world.stop_agent()
    world.api.events.clear()
    await world.start_agent()
    await until(lambda: world.app.agent.inventory.instance_of(MIG) is not None)
    for _ in range(2):
        await world.replanned()
    assert world.app.agent.inventory.cards()[MIG].problem
    assert "DeviceUnhealthy" not in world.event_reasons()


async def test_a_bug_in_planning_for_one_shadow_pod_leaves_the_agent_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve_shadow()
    with monkeypatch.context() as patched:
        patched.setattr(plan, "step", lambda *_: 1 // 0)
        world.app.agent.wake()
        await until(lambda: world.ready() == ("False", "PlanningFailed"))
        await until(lambda: world.kubelet.devices[RESOURCE] == {device(0): False, device(1): False})
        await until(lambda: "PlanningFailed" in world.event_reasons())
    name, labels = "mizar_planning_errors_total", {"kind": "ShadowPod"}
    assert world.app.registry.get_sample_value(name, labels) == 1
    world.app.agent.wake()
    await until(lambda: world.ready() == ("True", "Serving"))
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})


async def test_a_bug_in_planning_that_lasts_is_counted_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MizarPlanningFailed looks for an increase, and Prometheus sees none if the first scrape comes
    after the first plan."""

    def counted() -> float | None:
        labels = {"kind": "ShadowPod"}
        return world.app.registry.get_sample_value("mizar_planning_errors_total", labels)

    await world.serve_shadow()
    await world.stop_agent()
    monkeypatch.setattr(plan, "step", lambda *_: 1 // 0)
    await world.start_agent()
    await until(lambda: counted() == 1)
    await world.planned()
    await world.planned()
    assert counted() == 1
    monkeypatch.setattr(world.app.agent, "_clock", lambda: time.monotonic() + 301)
    await world.planned()
    assert counted() == 2


async def test_a_fault_survives_the_agent_and_ends_with_the_boot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_base, "boot_id", lambda: "this")
    await world.stop_agent()
    await world.start_agent()
    await world.serve_shadow()
    world.cards.tell(CARD, 79)
    await until(lambda: world.condition("Healthy") == ("False", "CardFailed"))
    await world.stop_agent()
    await world.start_agent()
    await world.replanned()
    assert world.condition("Healthy") == ("False", "CardFailed")
    assert not world.kubelet.healthy(RESOURCE)
    await world.stop_agent()
    monkeypatch.setattr(agent_base, "boot_id", lambda: "next")
    await world.start_agent()
    await until(lambda: world.condition("Healthy") == ("True", "CardsWell"))
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})


async def test_a_card_that_is_in_no_cdi_file_is_waited_for(world: World) -> None:
    await world.stop_agent()
    file = world.folder / "cdi" / "nvidia.json"
    file.parent.mkdir()
    world.access = CardAccess(strategy="CDI", cdi_dirs=(file.parent,))
    file.write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "GPU-old"}]}')
    await world.start_agent()
    await world.serve_shadow()
    with pytest.raises(grpc.aio.AioRpcError, match=f"{CARD} is in no CDI file"):
        await world.start_share()
    file.write_text(file.read_text().replace("GPU-old", CARD))
    await world.kubelet.start_container(SHARE, "main", RESOURCE)


async def test_an_agent_does_not_start_with_the_folder_above_the_device_nodes(
    tmp_path: Path,
) -> None:
    found = World(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    found.access = CardAccess(dev_root=tmp_path)
    async with serving(found.api) as client:
        with pytest.raises(
            ConfigRefused, match="must be the folder that has the device nodes in it"
        ):
            async with assemble(found.config, client, found.cards, QUICK):
                pass


async def test_an_error_that_the_node_ignores_leaves_the_card_well(world: World) -> None:
    await world.stop_agent()
    world.ignored_xids = (48,)
    await world.start_agent()
    await world.serve_shadow()
    world.cards.tell(CARD, 48)
    await world.replanned()
    assert world.kubelet.healthy(RESOURCE) == {device(0), device(1)}
    world.cards.tell(CARD, 79)
    await until(lambda: world.condition("Healthy") == ("False", "CardFailed"))


async def test_a_dead_link_survives_the_agent_and_ends_with_the_boot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link goes down while no agent looks."""
    signs = tuple(replace(one, after=0.0) for one in card_health.SIGNS)
    monkeypatch.setattr(card_health, "SIGNS", signs)
    monkeypatch.setattr(agent_base, "boot_id", lambda: "this")
    await world.stop_agent()
    well = world.cards.present[CARD]
    world.cards.present[CARD] = replace(well, readings=Readings(links=(True, True)))
    await world.start_agent()
    await world.serve_shadow()
    for _ in range(2):
        await world.stop_agent()
        world.cards.present[CARD] = replace(well, readings=Readings(links=(True, False)))
        await world.start_agent()
        await until(lambda: world.condition("Healthy") == ("False", "CardFailed"))
        await world.replanned()
        # The list goes another way than the condition, and may come later.
        await until(lambda: not world.kubelet.healthy(RESOURCE))
    await world.stop_agent()
    monkeypatch.setattr(agent_base, "boot_id", lambda: "next")
    await world.start_agent()
    await until(lambda: world.condition("Healthy") == ("True", "CardsWell"))


async def test_after_a_reboot_the_kubelet_confirms_before_anybody_gets_a_device(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await world.stop_agent()
    monkeypatch.setattr(agent_base, "boot_id", lambda: "next")
    monkeypatch.setattr(poller, "STARTS_S", 0.0)  # its answers are believed as soon as it runs
    world.kubelet.remove_pod(SHADOW_POD.uid)  # until the kubelet has admitted its pods again
    await world.start_agent()
    await until(lambda: world.ready() == ("False", "Unconfirmed"))
    await until(lambda: world.app.plugins.connected().get(RESOURCE))
    assert world.kubelet.devices[RESOURCE] == {device(0): False, device(1): False}
    with pytest.raises(grpc.aio.AioRpcError, match="the node was restarted"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    world.kubelet.add_pod(SHADOW_POD, pause=[CARD])
    await until(lambda: world.ready() == ("True", "Serving"))
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert limits_file.read(limits_of(held)).state == STATE_READY


async def test_a_drain_survives_the_agent(world: World) -> None:
    await world.serve_shadow()
    world.api.put_pod(shadow_object(drain="2026-01-01T00:00:00Z"))
    await until(lambda: world.draining() == ("True", "Drained"))
    await world.stop_agent()
    seen: list[set[str]] = []
    receive = world.kubelet._receive
    world.kubelet._receive = lambda resource, answer: (  # type: ignore[method-assign]
        receive(resource, answer),
        seen.append(world.kubelet.healthy(resource)),
    )[0]
    written = len(world.api.writes)
    await world.start_agent()
    await until(lambda: seen and len(world.api.writes) > written)
    await world.replanned()
    assert not any(seen)


async def test_nothing_is_written_twice(world: World) -> None:
    await world.serve_shadow()
    before = len(world.api.writes)
    for _ in range(3):
        await world.replanned()
    assert len(world.api.writes) == before


async def test_the_kubelets_figures_are_never_exceeded(world: World) -> None:
    await world.serve_shadow()
    for path, body in world.api.writes:
        if path.startswith("/api/v1/nodes/"):
            assert body["status"]["allocatable"] == {RESOURCE: "2"}


async def test_figures_and_probes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.serve_shadow()
    await world.start_share()
    await until(lambda: world.holders() == ["share"])
    app = world.app
    async with (
        TestServer(probes.application(app.registry, app.unwell, app.unready)) as server,
        aiohttp.ClientSession(server.make_url("")) as session,
    ):
        text = await (await session.get("/metrics")).text()
        for probe in ("/healthz", "/readyz"):
            assert (await session.get(probe)).status == 200
        # The agent reads the cards again and again, so that the problem must be theirs.
        monkeypatch.setattr(world.cards, "read", AsyncMock(side_effect=CardsUnknown("no driver")))
        await until(lambda: app.agent.inventory.problem)
        answer = await session.get("/readyz")
        assert (answer.status, await answer.text()) == (500, "no driver\n")
        assert (await session.get("/healthz")).status == 200
    labels = f'container="main",device_uuid="{CARD}",namespace="team-a",node="node-1",pod="share"'
    assert f"mizar_device_memory_limit_bytes{{{labels}}} 8.589934592e+09" in text
    assert f"mizar_device_memory_used_bytes{{{labels}}} 0.0" in text
    assert "mizar_device_compute_seconds_total{" not in text  # without a share nothing measures it
    assert f"mizar_device_memsets_total{{{labels}}} 0.0" in text
    directed = labels.replace(",namespace", ',direction="host_to_device",namespace')
    assert f"mizar_device_copies_total{{{directed}}} 0.0" in text
    assert f"mizar_device_copied_bytes_total{{{directed}}} 0.0" in text
    assert 'mizar_build_info{component="nodeagent"' in text
    assert 'mizar_deviceplugin_answer_seconds_count{call="allocate"} 1.0' in text


async def test_a_mount_from_which_some_cannot_load_the_shim(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As that of /var on Container-Optimized OS."""
    await world.stop_agent()
    look = os.statvfs

    def noexec(path: Path) -> SimpleNamespace:
        assert path == world.folder / "state"
        return SimpleNamespace(f_flag=look(path).f_flag | os.ST_NOEXEC)

    with monkeypatch.context() as patched:
        patched.setattr(shim_install.os, "statvfs", noexec)
        await world.start_agent()
        remark = shim_install.mount_remark(world.folder / "state")
    assert "(hostUsers: false)" in remark and "set nodeagent.stateDir of the chart" in remark
    assert remark in [line.get("error") for line in logged(caplog)]
    assert not shim_install.mount_remark(world.folder / "state")
    await until(lambda: not list(world.app.unready()))  # others keep to their limits


async def test_a_share_pod_can_be_followed_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.serve_shadow()
    held = await world.start_share()
    slot, device = limits_of(held).parent.name, sorted(held.ids)
    lines = [one for one in logged(caplog) if one.get("call") in ("allocate", "prestart")]
    allocated, written, started = lines
    for line in lines:
        assert (line["resource"], line["device"]) == (RESOURCE, device)
    assert [one["event"] for one in lines] == ["answered", "limits written", "answered"]
    assert (allocated["call"], allocated["slot"]) == ("allocate", slot)
    assert (written["slot"], written["memory_mib"]) == (slot, {CARD: 8192})
    for line in (written, started):
        found = (line["call"], line["namespace"], line["pod"], line["container"])
        assert found == ("prestart", "team-a", "share", "main")


async def test_what_is_refused_is_logged_with_its_pod(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.serve_shadow()
    with pytest.raises(grpc.aio.AioRpcError):
        await world.start_share(KubePod("team-b", "thief", "uid-thief"))
    line = next(one for one in logged(caplog) if one["event"] == "refused")
    assert (line["namespace"], line["pod"], line["call"]) == ("team-b", "thief", "prestart")
    assert "not of team-b" in str(line["error"])


def test_short_paths() -> None:
    assert (
        len(os.fspath(Path("/var/lib/kubelet/device-plugins/mizar-01234567-89abcdef.sock"))) < 108
    )


async def test_a_loop_that_ends_as_if_it_was_cancelled_ends_the_agent(world: World) -> None:
    """A loop that waits for a closed gRPC channel ends like that, and nothing else would show
    it."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ExceptionGroup) as found:
        await replace(world.app, loops=(cancelled, asyncio.Event().wait)).run()
    assert "ended as if cancelled" in str(found.value.exceptions[0])


async def test_an_api_server_that_is_away_is_no_reason_for_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would take the devices away for a moment. A watch that hangs, however, is a
    reason."""
    pods = world.app.pods
    monkeypatch.setattr(pods, "age", lambda: 3600.0)
    assert not list(world.app.unwell())
    monkeypatch.setattr(pods, "since_attempt", lambda: 601.0)
    assert list(world.app.unwell()) == ["pods: the API server was not asked for 601 s"]


async def test_by_nri_nothing_starts_while_the_runtime_does_not_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card comes when the container is made; until the runtime is connected, the kubelet
    waits."""
    monkeypatch.setattr(access_choice, "CONNECTED_WITHIN_S", 0.01)
    await world.stop_agent()
    socket = world.folder / "nri.sock"
    world.access = CardAccess(strategy="NRI", nri_socket=socket, nri_gives="EnvVar")
    await world.start_agent()
    await world.serve_shadow()
    app = world.app
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await world.start_share()
    assert "is not connected to Mizar" in (found.value.details() or "")
    assert any("no container gets its card" in problem for problem in app.unready())

    async with running(socket) as runtime:
        connection = await runtime.connection()
        held = await world.kubelet.start_container(SHARE, "main", RESOURCE)
        assert not held.answer.envs
        assert not list(app.unready())
        adjust = await connection.create(*to_be_made(held, "NVIDIA_VISIBLE_DEVICES=all"))
        assert {one.key: one.value for one in adjust.env} == {"NVIDIA_VISIBLE_DEVICES": CARD}

        await runtime.stop()
        await until(
            lambda: any("no container gets its card" in problem for problem in app.unready())
        )
        assert not list(app.unwell()), "a restart of the agent would not help"
        with pytest.raises(grpc.aio.AioRpcError):
            await world.kubelet.start_container(SHARE, "main", RESOURCE)


def to_be_made(held: Allocated, *env: str) -> tuple[pb.PodSandbox, pb.Container]:
    """The share pod's container as the runtime shows it before it makes the container."""
    mounts = [
        pb.Mount(destination=inside, source=outside, options=["ro"] if read_only else [])
        for inside, (outside, read_only) in mounted(held).items()
    ]
    annotations = dict(held.answer.annotations)
    container = pb.Container(name="main", annotations=annotations, env=env, mounts=mounts)
    return pb.PodSandbox(namespace=SHARE.namespace, name=SHARE.name, uid=SHARE.uid), container


async def test_a_container_about_which_the_agent_was_not_asked_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime gave up on the agent, which was too slow, and lists the container when the agent
    connects again."""
    searched = Mock(return_value={})
    monkeypatch.setattr(missed_containers, "_kill_all", searched)
    await world.stop_agent()
    socket = world.folder / "nri.sock"
    world.access = CardAccess(strategy="NRI", nri_socket=socket, nri_gives="EnvVar")
    async with running(socket) as runtime:
        await world.start_agent()
        connection = await runtime.connection()
        await world.serve_shadow()
        pod, container = to_be_made(await world.start_share())
        pod.id = container.pod_sandbox_id = "p"
        container.id, container.state = "c", pb.CONTAINER_CREATED
        connection.writer.close()
        await runtime.connection(pb.SynchronizeRequest(pods=[pod], containers=[container]))
        await until(lambda: searched.called)
    (uids, containers, _), _ = searched.call_args
    assert (uids, containers) == ({SHARE.uid}, {"c"})
    await until(lambda: "NoCardAccess" in world.event_reasons())


async def test_what_came_by_nri_does_not_start_without(world: World) -> None:
    """The kubelet answers from its cache, and the cached answer has no card."""
    await world.stop_agent()
    socket = world.folder / "nri.sock"
    world.access = CardAccess(strategy="NRI", nri_socket=socket, nri_gives="EnvVar")
    async with running(socket) as runtime:
        await world.start_agent()
        await runtime.connection()
        await world.serve_shadow()
        await world.start_share()
        await world.stop_agent()
    world.access = CardAccess()
    await world.start_agent()
    await until(lambda: world.kubelet.is_serving(RESOURCE))
    with pytest.raises(grpc.aio.AioRpcError) as found:
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert "got cards by NRI" in (found.value.details() or "")
    await until(lambda: "NoCardAccess" in world.event_reasons())


async def test_auto_is_settled_before_anybody_is_answered(world: World) -> None:
    await world.stop_agent()
    socket = world.folder / "nri.sock"
    world.access = CardAccess(
        strategy="Auto",
        nri_socket=socket,
        cdi_dirs=(world.folder / "cdi",),
        nvidia_runtime_config=world.folder / "config.toml",
    )
    (world.folder / "cdi").mkdir()
    cards = {"kind": "nvidia.com/gpu", "devices": [{"name": CARD}]}
    (world.folder / "cdi" / "nvidia.json").write_text(json.dumps(cards))
    world.api.node["status"]["nodeInfo"] = {"containerRuntimeVersion": "containerd://2.2.9"}
    await world.start_agent()
    await world.serve_shadow()
    held = await world.start_share()
    assert [one.name for one in held.answer.cdi_devices] == [f"nvidia.com/gpu={CARD}"]
    async with running(socket) as runtime:
        connection = await runtime.connection()
        assert world.app.access.describe() == "NRI, which gives CDI"
        # An older one takes its place, which would drop the CDI devices that NRI gives.
        connection.writer.close()
        await runtime.connection(version="v2.0.7")
        assert world.app.access.describe() == "CDI"


async def test_a_tenant_that_filled_the_disk_keeps_no_new_agent_from_starting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no agent runs, nothing removes what it adds to its usage file."""
    await world.serve_shadow()
    usage = limits_of(await world.start_share()).parent / "usage"
    await world.stop_agent()
    size = usage.stat().st_size
    with usage.open("ab") as file:
        file.write(bytes(1 << 20))
    os.setxattr(usage, "user.filler", b"as large as the file system permits")
    (world.folder / "libmizar.so").write_bytes(b"the next version's shim")
    write = shim_install.write_atomically

    def write_if_there_is_room(*given: Any) -> None:
        if usage.stat().st_size > size or os.listxattr(usage):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*given)

    monkeypatch.setattr(shim_install, "write_atomically", write_if_there_is_room)
    agent_base.restore(world.config, AsyncMock(), world.cards, QUICK)
    assert usage.stat().st_size == size
