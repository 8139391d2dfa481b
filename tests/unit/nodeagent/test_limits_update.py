"""Limits of running containers follow what their shadow pod's annotation says, across the whole
agent."""

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from mizar_core.carve import CardLimit
from mizar_core.models import Isolation
from mizar_core.names import ANNOTATION_CARVE
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.limits_update import AT_ONCE, LimitsUpdater
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.event_loop_turns import ROUNDS
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import layout, limits_file
from mizar_nodeagent.regions.layout import COMPUTE_MODES, COMPUTE_STOPPED, MEMORY_MODES, LimitsCard
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import (
    CARD,
    GIB,
    RESOURCE,
    SHADOW,
    card,
    card_claim,
    device,
    new_slots,
    shadow,
    shadow_object,
    share,
    share_claim,
    share_object,
    snapshot,
)
from unit.nodeagent.test_assembly import SHARE, World, limits_of, mounted, until
from unit.nodeagent.test_assembly import world as world

NEXT = KubePod("team-a", "next", "uid-next")


def given(held: Allocated) -> LimitsCard:
    found: LimitsCard = limits_file.read(limits_of(held)).cards[0]
    return found


def _seen(world: World) -> Pod:
    """The shadow pod as the agent last saw it."""
    assert world.app is not None and world.app.agent.state.snapshot.pods is not None
    return world.app.agent.state.snapshot.pods[SHADOW]


def events(world: World, reason: str) -> list[tuple[str, str]]:
    """(pod, note) of the events with that reason."""
    return [
        (one["regarding"]["name"], one["note"])
        for one in world.api.events
        if one["reason"] == reason
    ]


async def running_share(world: World, pod: KubePod = SHARE) -> Allocated:
    """Start a share pod and wait until the agent knows that it runs: from then on events tell of
    changes."""
    held = await world.start_share(pod)
    await until(lambda: pod.name in world.holders())
    return held


def figures(world: World) -> list[tuple[Any, Any]]:
    """(memoryMiB, computePercent) of each device, by the ShadowPod's status."""
    devices = world.api.status(*SHADOW)["devices"]
    return [(one.get("memoryMiB"), one.get("computePercent")) for one in devices]


async def test_memory_and_compute_change_at_once(world: World) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    held = await running_share(world)
    await until(lambda: figures(world) == [(8192, 50)] * 2)
    for memory, compute, percent in ((2, "Soft", 50), (4, "None", None), (8, "Hard", 50)):
        isolation = Isolation(compute=compute)
        world.api.put_pod(shadow_object(memory=memory * GIB, isolation=isolation))
        await until(lambda memory=memory: given(held).memory_limit == memory * GIB)
        assert given(held).compute_mode == COMPUTE_MODES[compute]
        await until(
            lambda memory=memory, percent=percent: figures(world) == [(memory * 1024, percent)] * 2
        )
    assert world.ready() == ("True", "Serving")
    await until(lambda: len(events(world, "LimitsChanged")) == 3)
    pod, note = events(world, "LimitsChanged")[0]
    assert pod == "share"
    assert "memory 8192 MiB (Hard) → memory 2048 MiB (Hard)" in note
    assert "compute 50 % (Hard) → compute 50 % (Soft)" in note


async def test_scaling_and_oversubscription_change(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    how = Isolation(memory="Oversubscribe", compute="Weighted")
    world.api.put_pod(shadow_object(memory_scaling="1.5", core_scaling="0.5", isolation=how))
    await until(lambda: given(held).memory_limit == 12 * GIB)
    assert given(held).memory_mode == MEMORY_MODES["Oversubscribe"]
    assert given(held).core_share == 2500


async def test_a_restarted_container_and_a_new_one_have_the_new_limits(world: World) -> None:
    await world.serve_shadow()
    await world.start_share()
    world.api.put_pod(shadow_object(memory=2 * GIB))
    await until(lambda: figures(world)[0][0] == 2048)
    assert (
        given(await world.kubelet.start_container(SHARE, "main", RESOURCE)).memory_limit == 2 * GIB
    )
    assert given(await world.start_share(NEXT)).memory_limit == 2 * GIB


async def test_another_agent_goes_on_where_one_was_killed(world: World) -> None:
    """The annotation changed while no agent ran; one slot is half written."""
    await world.serve_shadow()
    one, two = await running_share(world), await running_share(world, NEXT)
    await world.stop_agent()
    world.api.put_pod(shadow_object(memory=2 * GIB))
    with limits_of(two).open("r+b") as file:
        os.pwrite(file.fileno(), (99).to_bytes(4, "little"), 16)  # an odd number: being written
    await world.start_agent()
    await until(lambda: limits_of(two).read_bytes()[16] % 2 == 0)
    await until(lambda: given(one).memory_limit == given(two).memory_limit == 2 * GIB)
    await until(lambda: [pod for pod, _ in events(world, "LimitsChanged")] == ["share"])


async def test_running_containers_have_the_times_that_the_next_agent_is_set_to(
    world: World,
) -> None:
    await world.serve_shadow()
    held = await running_share(world)
    written = limits_file.read(limits_of(held))
    assert (written.heartbeat_ms, written.owner_wait_ms) == (1000, 3000)
    await world.stop_agent()
    world.owner_wait = 7.5
    await world.start_agent()
    await until(lambda: limits_file.read(limits_of(held)).owner_wait_ms == 7500)
    assert not events(world, "LimitsChanged")


async def test_a_bug_with_one_slot_leaves_the_others_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.serve_shadow()
    one, two = await world.start_share(), await world.start_share(NEXT)
    broken, read = limits_of(one), limits_file.read

    def stumble(path: Path) -> Any:
        return read(path) if path != broken else 1 // 0

    with monkeypatch.context() as patched:
        patched.setattr(limits_file, "read", stumble)
        world.api.put_pod(shadow_object(memory=2 * GIB))
        await until(lambda: given(two).memory_limit == 2 * GIB)
    world.app.agent.wake()
    await until(lambda: given(one).memory_limit == 2 * GIB)


async def test_an_older_memory_does_not_bring_old_limits_back(world: World) -> None:
    """The agent has the checkpoint from before the change, as after a power cut: the annotation
    counts."""
    await world.serve_shadow()
    held = await world.start_share()
    path = world.config.state_dir / "checkpoint.json"
    await until(path.exists)
    await world.stop_agent()
    before = path.read_bytes()
    await world.start_agent()
    world.api.put_pod(shadow_object(memory=2 * GIB))
    await until(lambda: given(held).memory_limit == 2 * GIB)
    await world.stop_agent()
    path.write_bytes(before)
    seq = limits_file.read(limits_of(held)).seq
    await world.start_agent()
    await until(lambda: world.app is not None and world.app.agent.state.snapshot.pods is not None)
    await until(lambda: world.app.agent.state.carvings[SHADOW].carve.memory == 2 * GIB)
    assert limits_file.read(limits_of(held)).seq == seq


async def test_without_a_shim_nothing_can_change_and_nothing_starts_again(world: World) -> None:
    await world.serve_shadow(isolation=Isolation(backend="None"))
    held = await running_share(world)
    assert mounted(held) == {}
    world.api.put_pod(shadow_object(isolation=Isolation()))
    await until(lambda: events(world, "IsolationNotEnforced"))
    pod, note = events(world, "IsolationNotEnforced")[0]
    assert pod == "share" and "delete the pod" in note
    with pytest.raises(grpc.aio.AioRpcError, match="without Mizar's shim"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert given(await world.start_share(NEXT)).memory_limit == 8 * GIB


async def test_a_container_with_the_shim_keeps_its_limits_when_the_backend_is_none(
    world: World,
) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    held = await running_share(world)
    world.api.put_pod(shadow_object(isolation=Isolation(backend="None")))
    await until(lambda: given(held).compute_mode == COMPUTE_MODES["None"])
    assert given(held).memory_limit == 8 * GIB
    # An earlier event may tell of limits between the two.
    await until(
        lambda: any("keeps its memory limits" in note for _, note in events(world, "LimitsChanged"))
    )
    world.api.put_pod(shadow_object(isolation=Isolation(compute="Soft")))
    await until(lambda: given(held).compute_mode == COMPUTE_MODES["Soft"])


async def test_limits_that_end_while_no_agent_runs_are_told_by_the_next_one_alone(
    world: World,
) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    held = await running_share(world)
    await world.stop_agent()
    world.api.put_pod(shadow_object(isolation=Isolation(backend="None")))
    await world.start_agent()
    await until(lambda: given(held).compute_mode == COMPUTE_MODES["None"])
    await until(lambda: events(world, "LimitsChanged"))
    await world.stop_agent()
    await world.start_agent()
    # All events that were emitted earlier have been written when this one has.
    world.api.put_pod(shadow_object(isolation=Isolation(compute="Soft")))
    await until(lambda: len(events(world, "LimitsChanged")) > 1)
    (_, first), (_, second) = events(world, "LimitsChanged")
    assert "keeps its memory limits" in first
    assert "keeps its memory limits" not in second


@pytest.mark.parametrize(
    "carving", [{"isolation": Isolation(backend="MPS")}, {"core_scaling": "0.0001"}]
)
async def test_what_cannot_be_enforced_leaves_the_limits_as_they_are(
    world: World, carving: dict[str, Any]
) -> None:
    await world.serve_shadow()
    held = await running_share(world)
    world.api.put_pod(shadow_object(memory=GIB, **carving))
    await until(lambda: events(world, "IsolationNotEnforced"))
    assert "its limits stay as they are" in events(world, "IsolationNotEnforced")[0][1]
    assert given(held).memory_limit == 8 * GIB
    with pytest.raises(grpc.aio.AioRpcError):
        await world.start_share(NEXT)


async def test_another_shape_is_not_taken_on(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    other = shadow_object(cards=2, memory=GIB)
    world.api.put_pod(other)
    carve = other["metadata"]["annotations"][ANNOTATION_CARVE]
    await until(lambda: _seen(world).carve_json == carve)
    assert world.app is not None and world.app.agent.state.carvings[SHADOW].carve.cards == 1
    assert given(held).memory_limit == 8 * GIB and world.ready() == ("True", "Serving")
    # A change of the same shape takes effect as before.
    world.api.put_pod(shadow_object(memory=GIB))
    await until(lambda: given(held).memory_limit == GIB)


async def test_a_closed_shadow_pod_takes_nobody_new(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    (taken,) = held.ids
    world.api.put_pod(shadow_object(closed=True))
    await until(lambda: world.kubelet.healthy(RESOURCE) == {taken})
    await until(lambda: world.node() == ("2", "1"))
    assert world.ready() == ("True", "Serving")
    # Nor does any pod get the device that its holder leaves.
    world.kubelet.remove_pod("uid-share")
    world.api.delete_pod("team-a", "share")
    await until(lambda: world.kubelet.healthy(RESOURCE) == set())
    await until(lambda: world.node() == ("2", "0"))
    world.api.put_pod(shadow_object())
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    await until(lambda: world.node() == ("2", "2"))


async def test_a_pod_that_gets_a_device_gets_one_event(world: World) -> None:
    """However often its container starts, and whichever agent runs."""
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    await world.start_share(count=2)
    for _ in range(3):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    # An agent that ends drops the events that it has not written.
    await until(lambda: events(world, "DeviceGranted"))
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.kubelet.is_serving(RESOURCE))
    await world.kubelet.start_container(SHARE, "main", RESOURCE)
    await until(lambda: world.holders() == ["share", "share"])
    # All events that were emitted earlier have been written when this one has.
    world.api.put_pod(shadow_object(memory=GIB))
    await until(lambda: events(world, "LimitsChanged"))
    ((pod, note),) = events(world, "DeviceGranted")
    assert pod == "share"
    assert note == (
        f"container main has devices of shadow pod {SHADOW[1]}: card {CARD}: "
        "memory 16384 MiB (Hard), compute 100 % (Hard); it gets its cards by EnvVar"
    )


@pytest.mark.parametrize(
    ("memory", "count", "type", "said"),
    [
        (8 * GIB, 2, "Normal", "memory 16384 MiB (Hard), compute"),
        (
            20 * GIB,
            1,
            "Warning",
            "memory 8192 MiB (Hard) (less than the profile's 20 GiB: the card is small",
        ),
        (
            9 * GIB + (1 << 20),
            2,
            "Warning",
            "(less than 2 times the profile's 9217 MiB: the card is smaller)",
        ),
    ],
)
async def test_a_pod_that_gets_less_memory_than_its_profile_says_is_warned(
    world: World, memory: int, count: int, type: str, said: str
) -> None:
    await world.serve_shadow(memory=memory, isolation=Isolation(compute="Hard"))
    await world.start_share(count=count)
    await until(lambda: events(world, "DeviceGranted"))
    ((_, note),) = events(world, "DeviceGranted")
    assert said in note
    (event,) = [one for one in world.api.events if one["reason"] == "DeviceGranted"]
    assert (event["type"], event["action"]) == (type, "Share"), "the action of a normal one"


def test_of_two_shadow_pods_only_the_lost_ones_card_is_stopped(tmp_path: Path) -> None:
    """A container has a device of each; one of them ends."""
    slots = new_slots(tmp_path)
    other, far = "shadow-2-bbbbb", card(2).uuid
    ids = [device(0), device(0, ("team-a", other))]
    slot = slots.assign(
        slots.create(RESOURCE, ids, 0.0), Owner("team-a", "share", "uid-share", "main")
    )
    who = limits_file.ContainerIdentity("team-a", "share", "uid-share", "main", slot.name)
    both = [CardLimit(uuid, GIB, 5000, "Hard", "Hard") for uuid in (CARD, far)]
    limits_file.write(slot.limits, who, both, {})
    state, told = AgentState(), list[tuple[Any, ...]]()
    updater = LimitsUpdater(
        state, slots, lambda *_: None, lambda *words: told.append(words), lambda _: 0
    )
    claims = [card_claim(), card_claim(other, far), share_claim(*ids)]
    state.replan(snapshot(1.0, [shadow(), shadow(other), share()], claims))
    updater.update()
    assert not told
    state.replan(snapshot(2.0, [shadow(), shadow(other, ended=True), share()], claims))
    for _ in range(2):
        updater.update()
    modes = {one.uuid.decode(): one.compute_mode for one in limits_file.read(slot.limits).cards[:2]}
    assert modes[far] == COMPUTE_STOPPED != modes[CARD]
    ((owner, reason, sentence),) = told
    assert (owner, reason) == (slot.owner, "CardLost")
    assert sentence.startswith(f"shadow pod {other} lost card {far}: the shadow pod has ended")


def test_a_container_with_files_of_an_unserved_version_keeps_its_limits_and_gets_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example after a rollback of the agent."""
    slots = new_slots(tmp_path)
    slot = slots.assign(
        slots.create(RESOURCE, [device(0)], 0.0), Owner("team-a", "share", "uid-share", "main")
    )
    who = limits_file.ContainerIdentity("team-a", "share", "uid-share", "main", slot.name)
    limits_file.write(slot.limits, who, [CardLimit(CARD, GIB, 10000, "Hard", "None")], {})
    before = slot.limits.read_bytes()
    monkeypatch.setattr(layout, "SERVED", frozenset({layout.VERSION + 1}))
    state, told = AgentState(), list[tuple[Any, ...]]()
    state.replan(snapshot(1.0, [shadow(), share()], [card_claim(), share_claim(device(0))]))
    updater = LimitsUpdater(
        state, slots, lambda *_: None, lambda *words: told.append(words), lambda _: 0
    )
    for _ in range(2):
        updater.update()
    ((owner, reason, sentence),) = told
    assert (owner, reason) == (slot.owner, "IsolationNotEnforced")
    assert "is of version 1" in sentence
    assert slot.limits.read_bytes() == before


def test_containers_that_get_less_are_limited_before_those_that_get_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier agent changed one of two containers only; then the pool changed again."""
    slots = new_slots(tmp_path)
    for index, (name, memory) in enumerate((("more", 2 * GIB), ("less", 16 * GIB))):
        slot = slots.create(RESOURCE, [device(index)], float(index))
        slots.assign(slot, Owner("team-a", name, f"uid-{name}", "main"))
        who = limits_file.ContainerIdentity("team-a", name, f"uid-{name}", "main", slot.name)
        limits_file.write(slot.limits, who, [CardLimit(CARD, memory, 10000, "Hard", "None")], {})
    state = AgentState()
    pods = [shadow(), share("more"), share("less")]
    state.replan(snapshot(1.0, pods, [card_claim()]))
    written: list[str] = []
    write = limits_file.write

    def noted(path: Path, who: limits_file.ContainerIdentity, *others: Any) -> None:
        written.append(who.pod)
        write(path, who, *others)

    monkeypatch.setattr(limits_file, "write", noted)
    LimitsUpdater(state, slots, lambda *told: None, lambda *told: None, lambda _: 0).update()
    assert written == ["less", "more"]
    for slot in slots.all():
        assert limits_file.read(slot.limits).cards[0].memory_limit == 8 * GIB


async def test_the_kubelets_calls_are_answered_while_many_slots_are_compared(
    tmp_path: Path,
) -> None:
    """Containers that have ended keep their slots for a while, and Allocate would wait for all."""
    slots, turns = new_slots(tmp_path), [0]
    for index in range(2 * AT_ONCE):
        slots._put(Slot(f"ended-{index}", tmp_path, RESOURCE, frozenset([device(0)]), 0.0))
    last = slots.create(RESOURCE, [device(1)], 1.0)
    slots.assign(last, Owner("team-a", "share", "uid-share", "main"))
    state = AgentState()
    state.replan(snapshot(1.0, [shadow(), share()], [card_claim(), share_claim(device(1))]))

    async def be_called() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    calls = asyncio.create_task(be_called())
    updater = LimitsUpdater(state, slots, lambda *_: None, lambda *_: None, lambda _: 0)
    await updater.update_with_pauses()
    calls.cancel()
    assert turns[0] >= 2 * ROUNDS
    assert limits_file.read(last.limits).cards[0].memory_limit == 8 * GIB


async def test_a_pod_that_opted_out_of_limits_gets_an_event_once_opting_out_is_forbidden(
    world: World,
) -> None:
    """There is no event about limits that do not bind the container."""
    may = Isolation(may_opt_out=True)
    await world.serve_shadow(isolation=may)
    pod = share_object("share", "team-a")
    pod["metadata"]["annotations"] = {"mizar.share/without-limits": "other, main"}
    world.api.put_pod(pod)
    await world.knows(SHARE)
    await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    held = await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert Path(mounted(held)["/etc/ld.so.preload"][0]).read_bytes() == b""
    await running_share(world, NEXT)
    world.api.put_pod(shadow_object(memory=2 * GIB, isolation=may))
    await until(lambda: [pod for pod, _ in events(world, "LimitsChanged")] == ["next"])
    assert given(held).memory_limit == 2 * GIB
    assert not events(world, "IsolationNotEnforced")
    world.api.put_pod(shadow_object(memory=2 * GIB))
    await until(lambda: events(world, "IsolationNotEnforced"))
    ((name, note),) = events(world, "IsolationNotEnforced")
    assert name == "share" and "stays without limits until it restarts" in note
