"""An agent that ends leaves on its node only what containers use."""

import asyncio
import fcntl
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mizar_nodeagent import shutdown_cleanup
from mizar_nodeagent.cuda_context.costs import CONTEXTS
from mizar_nodeagent.kubelet import device_checkpoint, podresources
from mizar_nodeagent.overrides.source import KEPT
from mizar_nodeagent.regions.layout import Limits
from mizar_nodeagent.single_instance import InstanceLock
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_kubelet import KubePod
from unit.nodeagent.makers import CARD, RESOURCE, SHADOW, share_object
from unit.nodeagent.test_assembly import SHADOW_POD, SHARE, World, limits_of


@pytest.fixture
async def world(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A world in which slots are old enough for removal at once."""
    monkeypatch.setattr(shutdown_cleanup, "ALLOCATING_FOR_S", 0.0)
    monkeypatch.setattr(shutdown_cleanup, "WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    async with World(tmp_path_factory.mktemp("w")) as made:
        yield made


def left(world: World) -> set[str]:
    """The files in the agent's state folder, without those in slots."""
    folder = world.config.state_dir
    return {str(path.relative_to(folder)) for path in folder.glob("*")} | {
        str(path.relative_to(folder)) for path in folder.glob("slots/*")
    }


def sockets(world: World) -> list[Path]:
    return list(world.config.plugin_dir.glob("mizar-*"))


async def used(world: World) -> Path:
    """The slot of a share pod that runs."""
    await world.serve_shadow()
    slot = limits_of(await world.start_share()).parent
    await until(lambda: world.holders() == ["share"])
    return slot


async def end_share(world: World) -> None:
    world.kubelet.remove_pod(SHARE.uid)
    world.api.delete_pod(SHARE.namespace, SHARE.name)
    await until(lambda: world.holders() == [])


async def end_shadow(world: World) -> None:
    world.kubelet.remove_pod(SHADOW_POD.uid)
    world.api.delete_pod(*SHADOW)
    await until(lambda: not world.app.pods.values())


async def test_nothing_is_left_where_nobody_shares(world: World) -> None:
    """The API server answers no more: an uninstall deletes the agent's rights before the agent."""
    slot = await used(world)
    assert slot.is_dir() and sockets(world)
    await end_share(world)
    await end_shadow(world)
    world.api.down = True
    await world.stop_agent()
    assert left(world) == set()
    assert sockets(world) == []


def lasting(slot: Path) -> dict[str, bytes]:
    """What is in the slot's files, but for what the agent and the container write all the while."""
    found = {path.name: path.read_bytes() for path in slot.iterdir() if path.name != "usage"}
    live, limits = Limits.live, found["limits"]
    return found | {"limits": limits[: live.offset] + limits[live.offset + live.size :]}


async def test_what_a_container_uses_stays_as_it_is(world: World) -> None:
    slot = await used(world)
    before = lasting(slot)
    await world.stop_agent()
    reserved = {"checkpoint.reserve-1", "checkpoint.reserve-2"}
    shared = {"checkpoint.json", CONTEXTS, "lib", "slots"}
    assert left(world) == {*shared, *reserved, f"slots/{slot.name}"}
    assert lasting(slot) == before and (slot / "usage").is_file()
    assert [path.suffix for path in (world.config.state_dir / "lib").iterdir()] == [".so"]


async def test_slots_that_nobody_uses_go_from_among_those_in_use(world: World) -> None:
    first = await used(world)
    second = limits_of(await world.start_share(KubePod("team-a", "next", "uid-next"))).parent
    await until(lambda: sorted(world.holders()) == ["next", "share"])
    world.kubelet.remove_pod(SHARE.uid)
    world.api.delete_pod(SHARE.namespace, SHARE.name)
    await until(lambda: world.holders() == ["next"])
    await until(lambda: (SHARE.namespace, SHARE.name) not in world.app.pods)
    await world.stop_agent()
    assert not first.exists()
    assert sorted(one.name for one in second.iterdir()) == [
        "ld.so.preload",
        "libmizar.so",
        "limits",
        "slot.json",
        "usage",
    ]


async def test_a_slot_that_the_kubelet_has_not_recorded_yet_stays(world: World) -> None:
    """It is about to start the container of a pod that asks for the slot's resource."""
    await world.serve_shadow()
    world.api.put_pod(share_object(SHARE.name, SHARE.namespace, admitted=False))
    await world.knows(SHARE)
    slot = limits_of(await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)).parent
    world.kubelet.allocated.clear()
    world.kubelet._write_checkpoint()
    await world.stop_agent()
    assert slot.is_dir()


async def test_a_slot_that_was_just_made_stays_whosoever_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_cleanup, "ALLOCATING_FOR_S", PATIENCE_S)
    await world.serve_shadow()
    slot = limits_of(await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)).parent
    world.kubelet.remove_pod(SHARE.uid)
    await world.stop_agent()
    assert slot.is_dir()


async def test_the_slot_of_an_init_container_stays_with_its_pod(world: World) -> None:
    """When the container has ended, only the kubelet's record knows the slot."""
    await world.serve_shadow()
    pod = KubePod("team-a", "share", "uid-share", frozenset({"first"}))
    world.api.put_pod(share_object(SHARE.name, SHARE.namespace))
    await world.knows(SHARE)
    slot = limits_of(await world.kubelet.allocate(pod, "first", RESOURCE, 1)).parent
    await world.replanned()
    await world.stop_agent()
    assert slot.is_dir()


@pytest.mark.parametrize("silent", ["kubelet", "record", "pods"])
async def test_slots_stay_while_nobody_tells(
    world: World, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = await used(world)
    await end_share(world)
    if silent == "kubelet":
        await world.kubelet.stop()
    if silent == "record":
        (world.config.plugin_dir / device_checkpoint.FILE).write_text("{")
    if silent == "pods":
        monkeypatch.setattr(world.app.pods, "problem", lambda: "nothing heard from the API server")
    await world.stop_agent()
    assert slot.is_dir()


async def test_what_was_promised_stays_while_there_is_a_shadow_pod(world: World) -> None:
    await world.serve_shadow()
    await world.stop_agent()
    assert "checkpoint.json" in left(world)
    assert CARD in (world.config.state_dir / "checkpoint.json").read_text()


@pytest.mark.parametrize(("settings", "stay"), [('{"ignoredXids": [79]}', True), ("{}", False)])
async def test_settings_of_this_node_stay(world: World, settings: str, stay: bool) -> None:
    """An upgrade that brings overrides which cannot be used must not undo them."""
    await used(world)
    await end_share(world)
    await end_shadow(world)
    (world.config.state_dir / KEPT).write_text(settings)
    await world.stop_agent()
    assert (KEPT in left(world)) == stay


async def test_what_others_put_into_the_folder_stays(world: World) -> None:
    mine = world.config.state_dir / "slots" / "mine"
    mine.mkdir()
    other = world.config.state_dir / "other"
    other.mkdir()
    await world.stop_agent()
    assert mine.is_dir() and other.is_dir()


async def test_the_next_agent_serves_after_a_cleanup(world: World) -> None:
    await used(world)
    await end_share(world)
    await end_shadow(world)
    await world.stop_agent()
    assert left(world) == set()
    await world.start_agent()
    assert (await used(world)).is_dir()


class TestInstanceLock:
    async def test_the_next_waits_for_the_end_of_the_last(self, tmp_path: Path) -> None:
        first = await InstanceLock.acquire(tmp_path)
        (tmp_path / "slots").mkdir()
        second = asyncio.create_task(InstanceLock.acquire(tmp_path))
        done, _ = await asyncio.wait({second}, timeout=0.5)
        assert not done
        first.release()
        (await second).release()
        assert (tmp_path / "agent.lock").exists()

    async def test_the_file_goes_with_the_last(self, tmp_path: Path) -> None:
        (await InstanceLock.acquire(tmp_path)).release()
        assert list(tmp_path.iterdir()) == []

    async def test_a_file_that_goes_while_it_is_being_locked_is_not_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the next one would find a file that no process has locked."""
        lock, path = fcntl.flock, tmp_path / "agent.lock"
        opened = []

        def after_the_last_has_gone(descriptor: int, how: int) -> None:
            if not opened:
                path.unlink()
            opened.append(descriptor)
            lock(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", after_the_last_has_gone)
        held = await InstanceLock.acquire(tmp_path)
        assert len(opened) == 2
        with path.open() as again, pytest.raises(BlockingIOError):
            lock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.release()

    async def test_a_folder_that_is_gone_is_no_trouble(self, tmp_path: Path) -> None:
        held = await InstanceLock.acquire(tmp_path / "state")
        shutil.rmtree(tmp_path / "state")
        held.release()


async def test_a_fault_of_a_card_is_remembered_where_nobody_shares(world: World) -> None:
    """NVML reports it once, and the agent may start again at once, as in an upgrade."""
    inventory = world.app.agent.inventory
    await until(lambda: inventory.problem is None)
    world.cards.tell(CARD, 48)
    await until(lambda: "XID 48" in inventory.cards()[CARD].problem)
    await world.replanned()
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.app.agent.inventory.problem is None)
    assert "XID 48" in world.app.agent.inventory.cards()[CARD].problem
