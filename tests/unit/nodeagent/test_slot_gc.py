"""Slots over time, by the kubelet's own record: they are forgotten, or told again what they are
for."""

import asyncio
import base64
import errno
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container import slot_gc, slots
from mizar_nodeagent.container.slot_gc import FRESH_S, GRACE_S, SlotGarbageCollector
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import claims_by_slots, slots_in_use
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from unit.nodeagent.makers import OWNER, RESOURCE, device, new_slots, share, share_claim, snapshot

D0, D1 = device(0), device(1)
ASKED_AT = 100.0
LATER = GRACE_S + 10


class Node:
    """A node's slots, and the answers that say which of them are in use."""

    def __init__(self, folder: Path) -> None:
        self.plugin_dir = folder / "plugins"
        self.plugin_dir.mkdir()
        self.slots = new_slots(folder)
        self.state = AgentState()
        self.record()

    def say(self, pods: Iterable[Pod] | None, claims: Iterable[Claim] = ()) -> None:
        """Set the last answers of API server and kubelet."""
        self.state.snapshot = snapshot(ASKED_AT, pods, claims)

    def record(
        self,
        *slots: Slot,
        uid: str = "uid-share",
        ids: Iterable[str] = (D0,),
        others: Iterable[Path] = (),
    ) -> None:
        """Write the kubelet's record: it gave the slot's files, and others, to container `main`."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": "main",
                "ResourceName": RESOURCE,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": _answer(slot, others),
            }
            for slot in slots
        ]
        body = {"Data": {"PodDeviceEntries": entries}, "Checksum": 1}
        (self.plugin_dir / device_checkpoint.FILE).write_text(json.dumps(body))

    def collector(self, late: float = 0.0, now: float = LATER) -> SlotGarbageCollector:
        """A collector whose time is `now`, so long after the kubelet was asked."""
        return SlotGarbageCollector(
            self.state, self.slots, self.plugin_dir, lambda: ASKED_AT + late, lambda: now
        )

    async def collect(self, late: float = 0.0, now: float = LATER) -> list[Slot]:
        """Collect twice, so long after the kubelet was asked; returns the slots that are left."""
        collector = self.collector(late, now)
        await collector.collect()
        await collector.collect()
        return self.slots.all()


def _answer(slot: Slot, others: Iterable[Path]) -> str:
    mounts = [pb.Mount(host_path=str(one)) for one in (slot.limits, *others)]
    return base64.b64encode(
        pb.ContainerAllocateResponse(mounts=mounts).SerializeToString()
    ).decode()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_what_nobody_speaks_for_is_removed(node: Node) -> None:
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.say([share()])
    assert await node.collect() == []
    assert not slot.folder.exists()


async def test_what_the_kubelet_recorded_for_a_living_pod_stays(node: Node) -> None:
    """For example the slot of an init container, which holds nothing by podresources."""
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.record(slot)
    node.say([share()])
    assert await node.collect() == [slot]
    node.say([share(ended=True)])
    assert await node.collect() == []


async def test_what_a_pod_holds_stays(node: Node) -> None:
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.say([share()], [share_claim(D0)])
    assert await node.collect() == [slot]


async def test_what_an_agent_did_not_live_to_answer_goes(node: Node) -> None:
    """The kubelet asked the next agent for the same device, and recorded that agent's answer."""
    node.slots.create(RESOURCE, [D0], 1.0)
    answered = node.slots.create(RESOURCE, [D0], 2.0)
    other = node.slots.create(RESOURCE, [D1], 2.0)
    node.record(answered)
    node.say([share()], [share_claim(D0, D1)])
    assert await node.collect() == [answered, other]


async def test_a_slot_stays_whose_device_the_kubelet_has_forgotten_and_given_to_another_pod(
    node: Node,
) -> None:
    """Only the other pod's slot is in its record; the first one's container runs on."""
    first = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), OWNER)
    other = Owner("team-a", "next", "uid-next", "main")
    second = node.slots.create(RESOURCE, [D0], 2.0)
    node.record(second, uid="uid-next")
    pods = [share(), share("next")]
    node.say(pods, [share_claim(D0), share_claim(D0, pod="next")])
    assert await node.collect() == [first, second], "the other one has not started yet"
    second = node.slots.assign(second, other)
    for claims in ([share_claim(D0), share_claim(D0, pod="next")], [share_claim(D0)]):
        node.say(pods, claims)
        assert await node.collect() == [first, second]
    node.say(pods, [share_claim(D0, pod="next")])
    assert await node.collect() == [second]


async def test_a_slot_stays_whose_device_another_pod_was_given_that_has_not_started(
    node: Node,
) -> None:
    """The other pod's slot, which is in the record, has no owner yet."""
    first = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), OWNER)
    second = node.slots.create(RESOURCE, [D0], 2.0)
    node.record(second, uid="uid-next")
    node.say([share(), share("next")], [share_claim(D0), share_claim(D0, pod="next")])
    assert await node.collect() == [first, second]


async def test_a_full_disk_keeps_no_other_slot(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    lost = node.slots.create(RESOURCE, [D1], 1.0)
    node.slots.create(RESOURCE, [D1], 2.0)
    node.record(lost, ids=(D0,))
    node.say([share()])
    monkeypatch.setattr(slots, "write_atomically", is_full)
    assert await node.collect() == [lost]


async def test_a_young_slot_stays(node: Node) -> None:
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.say([])
    assert await node.collect(now=1.0 + GRACE_S) == [slot]
    assert await node.collect(now=1.1 + GRACE_S) == []


async def test_a_slot_stays_whose_container_started_after_all_that_tells_of_it(node: Node) -> None:
    """Neither the record, nor the claims, nor the pods that the round reads had the container."""
    slot = node.slots.assign(node.slots.create(RESOURCE, [D0], LATER), OWNER)
    collector = node.collector()
    for _ in range(2):
        node.say([])
        await collector.collect()
        node.say([share()], [share_claim(D0)])
        await collector.collect()
    assert node.slots.all() == [slot] and slot.folder.exists()
    node.say(None)
    for _ in range(3):
        await collector.collect()
    assert node.slots.all() == [slot], "nobody told anything"
    node.say([])
    await collector.collect()
    assert node.slots.all() == [slot]
    await collector.collect()
    assert node.slots.all() == []


async def test_a_round_that_learns_nothing_lies_between_no_two_others(node: Node) -> None:
    """A slot is removed if two rounds, one after the other, have seen that it is unused."""
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    collector = node.collector()
    for pods in ([], None, []):
        node.say(pods)
        await collector.collect()
    assert node.slots.all() == [slot]
    await collector.collect()
    assert node.slots.all() == []


async def test_a_slot_that_is_unused_for_the_first_time_keeps_no_other(node: Node) -> None:
    used, unused = (node.slots.create(RESOURCE, [one], 1.0) for one in (D0, D1))
    used = node.slots.assign(used, OWNER)
    collector = node.collector()
    node.say([share()], [share_claim(D0)])
    await collector.collect()
    assert node.slots.all() == [used, unused]
    node.say([])
    await collector.collect()
    assert node.slots.all() == [used]


async def test_a_slot_of_the_future_goes(node: Node) -> None:
    """The clock went back by more than any slot is kept: it stayed for as long."""
    slot = node.slots.create(RESOURCE, [D0], 1.0 + 86400)
    node.say([])
    assert await node.collect(now=1.0 + 86400 - GRACE_S) == [slot]
    assert await node.collect(now=1.0) == []


@pytest.mark.parametrize(
    ("owner", "pod", "keeps"),
    [
        (OWNER, share(uid=OWNER.pod_uid), True),
        (replace(OWNER, pod_uid=""), share(), True),
        (replace(OWNER, pod_uid="hash"), share(static_uid="hash"), True),
        (OWNER, share(uid="uid-of-another"), False),
        (OWNER, share(uid=OWNER.pod_uid, ended=True), False),
        (replace(OWNER, container="prepare"), share(uid=OWNER.pod_uid), False),
        (replace(OWNER, container="of-a-pod-before", pod_uid=""), share(), False),
        (None, share(), False),
    ],
)
def test_what_the_kubelet_has_forgotten_is_told_by_slots(
    node: Node, owner: Owner | None, pod: Pod, keeps: bool
) -> None:
    """Other slots, such as of other pods and of those that are gone, make no difference."""
    node.slots.create(RESOURCE, [D0], 0.0)
    for name in ("other", "gone"):
        node.slots.assign(node.slots.create(RESOURCE, [D0], 0.0), replace(OWNER, pod=name))
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    if owner:
        node.slots.assign(slot, owner)
    pod = replace(pod, containers=("prepare", "main"), init_containers=frozenset({"prepare"}))
    other = share("other")
    pods, forgotten = {pod.key: pod, other.key: other}, {pod.key, (pod.namespace, "gone")}
    assert list(claims_by_slots(node.slots.all(), pods, forgotten)) == (
        [share_claim(D0)] if keeps else []
    )
    assert list(claims_by_slots(node.slots.all(), {pod.key: pod}, ())) == []


def test_a_slot_that_forgot_its_devices_tells_of_none(node: Node) -> None:
    slot = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), OWNER)
    pod = share(uid=OWNER.pod_uid, containers=("main",))
    lost = replace(slot, ids=frozenset())
    assert list(claims_by_slots([lost, slot], {pod.key: pod}, {pod.key})) == [share_claim(D0)]


def test_each_container_is_told_once(node: Node) -> None:
    side = replace(OWNER, container="side")
    found = [
        node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), owner)
        for owner in (OWNER, OWNER, side)
    ]
    pod = share(uid=OWNER.pod_uid, containers=("main", "side"))
    claims = list(claims_by_slots(found, {pod.key: pod}, {pod.key}))
    assert claims == [share_claim(D0), replace(share_claim(D0), container="side")]


def test_of_two_slots_of_a_container_the_newer_one_is_in_use(node: Node) -> None:
    """The kubelet may call Allocate again for a container that it admits once more."""
    for at in (1.0, 2.0):
        slot = node.slots.assign(node.slots.create(RESOURCE, [D0], at), OWNER)
    node.say([share()], [share_claim(D0)])
    assert slots_in_use(node.slots.all(), node.state.snapshot) == [slot]


async def test_a_young_slot_whose_container_has_started_goes_with_its_pod(node: Node) -> None:
    """The kubelet records an allocation before it starts the container."""
    slot = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), OWNER)
    node.say([share()], [share_claim(D0)])
    assert await node.collect(now=2.0) == [slot]
    node.say([])
    assert await node.collect(now=2.0) == []


async def test_a_young_slot_of_an_earlier_boot_goes(node: Node) -> None:
    """Its containers ended with the node; the clock may have gone back as well."""
    node.slots.boot = "before"
    old = node.slots.create(RESOURCE, [D0], 1.0)
    used = node.slots.create(RESOURCE, [D0], 1.0)
    node.record(used)
    again = Slots(node.slots.root, node.slots.shim, "now")
    again.load(1.0)
    node.slots = again
    young = again.create(RESOURCE, [D0], 1.0)
    node.say([share()])
    assert {one.name for one in await node.collect(now=0.0)} == {used.name, young.name}
    assert not old.folder.exists()


@pytest.mark.parametrize(("late", "left"), [(FRESH_S, 0), (FRESH_S + 0.1, 1)])
async def test_an_old_answer_of_the_kubelet_says_nothing(
    node: Node, late: float, left: int
) -> None:
    node.slots.create(RESOURCE, [D0], 1.0)
    node.say([])
    assert len(await node.collect(late)) == left


async def test_before_the_api_server_has_told_its_pods_nothing_goes(node: Node) -> None:
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.say(None)
    assert await node.collect() == [slot]


async def test_without_the_kubelets_record_nothing_goes(node: Node) -> None:
    slot = node.slots.create(RESOURCE, [D0], 1.0)
    node.say([])
    (node.plugin_dir / device_checkpoint.FILE).unlink()
    with pytest.raises(KubeletAway):
        await node.collect()
    assert node.slots.all() == [slot]


class TestLearning:
    """The kubelet's record names the pod by its UID, and the very slot."""

    async def test_a_slot_that_forgot_its_devices_is_told_them(self, node: Node) -> None:
        slot = replace(node.slots.create(RESOURCE, [D0, D1], 1.0), ids=frozenset(), resource="")
        node.slots._slots[slot.name] = slot
        node.record(slot, ids=[D0, D1])
        node.say([share()])
        (found,) = await node.collect()
        assert (found.resource, found.ids, found.owner) == (RESOURCE, {D0, D1}, None)

    async def test_an_owner_is_put_right(self, node: Node) -> None:
        """Two pods had the devices one after the other; podresources gives only names."""
        wrong = Owner("team-a", "share", "uid-of-the-last", "other")
        slot = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), wrong)
        node.record(slot)
        node.say([share(), share("another")])
        (found,) = await node.collect()
        assert found.owner == Owner("team-a", "share", "uid-share", "main")

    async def test_a_static_pod_is_known_by_the_kubelets_uid(self, node: Node) -> None:
        slot = node.slots.assign(node.slots.create(RESOURCE, [D0], 1.0), Owner("a", "b", "c", "d"))
        node.record(slot, uid="hash")
        node.say([share(static_uid="hash")])
        (found,) = await node.collect()
        assert found.owner == Owner("team-a", "share", "uid-share", "main")

    async def test_a_container_that_was_not_checked_yet_owns_nothing(self, node: Node) -> None:
        slot = node.slots.create(RESOURCE, [D0], 1.0)
        node.record(slot)
        node.say([share()])
        assert await node.collect() == [slot]
        assert slot.owner is None


async def test_old_versions_of_the_shim_go_unless_a_container_mounts_them(node: Node) -> None:
    """Versions from agents that gave all containers one file."""
    library = node.slots.shim.library
    old, mounted = (library.with_name(f"libmizar-{one}.so") for one in ("old", "mounted"))
    for path in (old, mounted):
        path.write_bytes(b"an earlier shim")
    node.record(node.slots.create(RESOURCE, [D0], 1.0), others=[mounted])
    node.say([share()])
    await node.collect()
    assert {*library.parent.glob("libmizar-*.so")} == {library, mounted}


async def test_a_round_that_fails_is_not_the_last(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ends: list[Exception] = [KubeletAway("away"), OSError("full"), EOFError()]

    async def collect(self: SlotGarbageCollector) -> None:
        done.append("tidied")
        raise ends.pop(0)

    async def sleep(seconds: float) -> None:
        assert seconds == slot_gc.EVERY_S
        done.append("slept")

    monkeypatch.setattr(SlotGarbageCollector, "collect", collect)
    monkeypatch.setattr(slot_gc.asyncio, "sleep", sleep)
    with pytest.raises(EOFError):
        await SlotGarbageCollector(node.state, node.slots, node.plugin_dir).run()
    assert done == ["slept", "tidied"] * 3


async def test_calls_are_answered_between_two_removals(node: Node) -> None:
    for _ in range(3):
        node.slots.create(RESOURCE, [D0], 0.0)
    node.say([])
    node.record()
    left = []

    async def look() -> None:
        while node.slots.all():
            left.append(len(node.slots.all()))
            await asyncio.sleep(0)

    await asyncio.gather(look(), node.collect())
    assert set(left) == {3, 2, 1}
