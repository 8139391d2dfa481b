"""Each container's slot has the right pod and the right limits, however many containers start at
once and whatever their pods consist of."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import Limits
from support.effort import EFFORT
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import GIB, card, shadow_object
from unit.nodeagent.test_assembly import World, limits_of, until
from unit.nodeagent.test_assembly import world as world

pytestmark = pytest.mark.timeout(600)
FIFTY = "team-a.mizar.share/gpu.50"
PODS = 200 if EFFORT >= 3 else 40
"""Pods; 200 take a machine of two cores some 20 s."""
CARDS = 4
MEMORY = 16 * GIB // 50


async def serve(world: World, resource: str, devices: int, shadows: int, cards: int = 1) -> None:
    """Serve shadow pods, each of which holds the next cards."""
    for number in range(shadows):
        name = f"shadow-{devices}-{number}"
        world.api.put_shadow("team-a", name, f"owner-{name}")
        world.api.put_pod(shadow_object(name, resource=resource, devices=devices, cards=cards))
        held = [card(1 + number * cards + one).uuid for one in range(cards)]
        world.kubelet.add_pod(KubePod("team-a", name, f"uid-{name}"), pause=held)
    world.app.poller.poll_soon()
    await until(lambda: len(world.kubelet.healthy(resource)) == shadows * devices)


def pod_object(pod: KubePod, resource: str) -> dict[str, Any]:
    """The pod as the API server has it before the kubelet has admitted it."""
    return {
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}],
        },
        "status": {"phase": "Pending"},
    }


async def admit(world: World, pods: Iterable[KubePod]) -> dict[str, Allocated]:
    """Admit pods one after the other, as the kubelet does; returns what each got, by its UID."""
    made = list(pods)
    for pod in made:
        world.api.put_pod(pod_object(pod, FIFTY))
    await until(lambda: all(uid_of(world, (one.namespace, one.name)) == one.uid for one in made))
    return {pod.uid: await world.kubelet.allocate(pod, "main", FIFTY, 1) for pod in made}


def uid_of(world: World, key: Key) -> str:
    pod = dict(world.app.pods.items()).get(key)
    return pod.uid if pod else ""


async def start(world: World, pods: Iterable[KubePod]) -> None:
    """Start all containers at once, in any order, as the kubelet does."""
    order = list(pods)
    random.shuffle(order)
    await asyncio.gather(*(world.kubelet.start_container(one, "main", FIFTY) for one in order))


def check(held: Allocated, pod: KubePod, container: str = "main", memory: int = MEMORY) -> Limits:
    """Assert that the slot that the kubelet mounts into the container names its owner and its
    limits."""
    found = limits_file.read(limits_of(held))
    said = (found.pod_namespace, found.pod_name, found.pod_uid, found.container)
    assert [one.decode() for one in said] == [pod.namespace, pod.name, pod.uid, container]
    assert sum(one.memory_limit for one in found.cards[: found.card_count]) // (1 << 20) == (
        memory // (1 << 20)
    )
    return found


async def test_equal_pods_at_once(world: World) -> None:
    """Then half of the pods are deleted by force and made anew under their names, at once."""
    await serve(world, FIFTY, 50, CARDS)
    pods = [KubePod("team-a", f"share-{number}", f"uid-{number}") for number in range(PODS)]
    held = await admit(world, pods)
    await start(world, pods)
    for pod in pods:
        check(held[pod.uid], pod)
    assert len({limits_of(one) for one in held.values()}) == PODS
    assert len({one for it in held.values() for one in it.ids}) == PODS

    half = pods[::2]
    again = [replace(pod, uid=f"{pod.uid}-again") for pod in half]
    for pod in half:
        world.kubelet.remove_pod(pod.uid)
        world.api.delete_pod(pod.namespace, pod.name)
    held |= await admit(world, again)
    await start(world, again)
    for pod in again + pods[1::2]:
        check(held[pod.uid], pod)
    for pod in half:
        # The old container's slot may still be mounted in a running process, and no other pod's
        # limits are in it. During a run that takes long, slots are collected.
        if limits_of(held[pod.uid]).exists():
            check(held[pod.uid], pod)


@dataclass(frozen=True)
class Container:
    """`uses`: name of the init container that had its devices before."""

    name: str
    devices: int = 1
    uses: str = ""
    init: bool = False


SHAPES = {
    "one container": [Container("main")],
    "several containers": [Container("one"), Container("two", 2), Container("three")],
    "several devices": [Container("main", 3)],
    "an init container": [Container("prepare", init=True), Container("main", uses="prepare")],
    "two init containers": [
        Container("first", init=True),
        Container("second", uses="first", init=True),
        Container("main", uses="second"),
    ],
    # A sidecar is an init container that goes on: no other container gets its device.
    "a sidecar": [Container("proxy"), Container("main", 2)],
    "a sidecar and an init container": [
        Container("prepare", 2, init=True),
        Container("proxy"),
        Container("main", 2, uses="prepare"),
    ],
}


@pytest.mark.parametrize("static", [False, True], ids=["", "static"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_pods_of_any_shape(world: World, shape: list[Container], static: bool) -> None:
    """A static pod has another UID in the kubelet than in the API server."""
    await serve(world, FIFTY, 50, CARDS)
    pods = []
    for number in range(3):
        uid = f"uid-{number}"
        inits = frozenset(one.name for one in shape if one.init)
        pod = KubePod("team-a", f"share-{number}", f"{uid}-hash" if static else uid, init=inits)
        body = pod_object(pod, FIFTY)
        body["metadata"]["uid"] = uid
        if static:
            notes = {f"kubernetes.io/config.{one}": pod.uid for one in ("hash", "mirror")}
            body["metadata"]["annotations"] = notes
        world.api.put_pod(body)
        pods.append((pod, replace(pod, uid=uid)))
    await until(lambda: all(uid_of(world, (it.namespace, it.name)) == it.uid for _, it in pods))
    held: dict[tuple[str, str], Allocated] = {}
    for pod, _ in pods:
        for one in shape:
            reuse = held[pod.name, one.uses].ids if one.uses else ()
            held[pod.name, one.name] = await world.kubelet.allocate(
                pod, one.name, FIFTY, one.devices, reuse=reuse
            )
    for one in shape:  # all pods have come to the same container
        await asyncio.gather(
            *(world.kubelet.start_container(pod, one.name, FIFTY) for pod, _ in pods)
        )
    for pod, known in pods:
        for one in shape:
            check(held[pod.name, one.name], known, one.name, one.devices * MEMORY)
    assert len({limits_of(one) for one in held.values()}) == len(held)


@pytest.mark.parametrize(
    ("devices", "cards", "shadows"),
    [(4, 2, 1), (2, 1, 2)],
    ids=["two cards of one shadow pod", "cards of two shadow pods"],
)
async def test_a_container_over_two_cards(
    world: World, devices: int, cards: int, shadows: int
) -> None:
    """It takes all devices, and has half of each card for each of its devices there."""
    resource = f"team-a.mizar.share/gpu.{devices}"
    await serve(world, resource, devices, shadows, cards)
    pod = KubePod("team-a", "share", "uid-share")
    world.api.put_pod(pod_object(pod, resource))
    await until(lambda: uid_of(world, ("team-a", "share")) == pod.uid)
    held = await world.kubelet.allocate(pod, "main", resource, 4)
    await world.kubelet.start_container(pod, "main", resource)
    found = check(held, pod, memory=2 * 16 * GIB)
    limits = {one.uuid.decode(): one.memory_limit for one in found.cards[: found.card_count]}
    assert limits == {card(1).uuid: 16 * GIB, card(2).uuid: 16 * GIB}
    assert held.answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",") == sorted(limits)
    assert {DeviceID.parse(one).shadow for one in held.ids} == {
        f"shadow-{devices}-{one}" for one in range(shadows)
    }
