"""The node agent's metrics of containers, cards and shadow pods."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from prometheus_client import generate_latest

from mizar_core.models import Isolation
from mizar_nodeagent import container_utilization
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.audit.compare import ProcessWithoutShim
from mizar_nodeagent.card_health import Readings
from mizar_nodeagent.container_processes import ContainerProcess
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.regions.layout import Compute, Limits, LimitsLive, UsageCard, UsageHead
from support.waiting import until
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CARD, CONTAINER_ID, GIB, RESOURCE, SHADOW, card, share_object
from unit.nodeagent.test_assembly import SHARE, World, mounted, world

__all__ = ["world"]

CONTAINER = {
    "node": "node-1",
    "namespace": "team-a",
    "pod": "share",
    "container": "main",
    "device_uuid": CARD,
}
LIMITED = CONTAINER | {"memory": "Hard", "compute": "None", "enforcement": "Report"}
OF_SHADOW = {"node": "node-1", "namespace": SHADOW[0], "pod": SHADOW[1]}
OF_CARD = {"node": "node-1", "device_uuid": CARD}
ISOLATION = Isolation(compute="Hard", enforcement="Strict")


def value(world: World, name: str, labels: dict[str, str]) -> float | None:
    assert world.app is not None
    return world.app.registry.get_sample_value(name, labels)


def series(world: World, **labels: str) -> list[str]:
    """Names of the series with these labels."""
    assert world.app is not None
    return [
        one.name
        for family in world.app.registry.collect()
        for one in family.samples
        if labels.items() <= one.labels.items()
    ]


def repeated(world: World) -> list[str]:
    """The series that the page for Prometheus has more than once."""
    assert world.app is not None
    page = generate_latest(world.app.registry).decode()
    found = Counter(line.rpartition(" ")[0] for line in page.splitlines() if line[:1] != "#")
    return [one for one, count in found.items() if count > 1]


def put(file: Path, offset: int, number: int) -> None:
    """Write a word of 64 bits into a file of a container's slot."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(number.to_bytes(8, "little"))


def file_of(held: Allocated, name: str) -> Path:
    """The container's file /run/mizar/NAME on the node."""
    return Path(mounted(held)[f"/run/mizar/{name}"][0])


def write(held: Allocated, **words: int) -> None:
    """Words of the container's compute on its first card, as its shim writes them."""
    at = UsageHead.cards.offset + UsageCard.compute.offset
    for name, number in words.items():
        put(file_of(held, "usage"), at + getattr(Compute, name).offset, number)


async def shared(world: World, isolation: Isolation = ISOLATION) -> Allocated:
    await world.serve_shadow(isolation=isolation)
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    return held


async def test_what_a_container_may_and_does_use(world: World) -> None:
    held = await shared(world)
    write(held, charged_ns=3_000_000_000, waited_ns=500_000_000)
    assert value(world, "mizar_device_memory_limit_bytes", CONTAINER) == 8 * GIB
    assert value(world, "mizar_device_memory_used_bytes", CONTAINER) == 0
    assert value(world, "mizar_device_memory_refused_total", CONTAINER) == 0
    assert value(world, "mizar_device_compute_share_ratio", CONTAINER) == 0.5
    assert value(world, "mizar_device_compute_seconds_total", CONTAINER) == 3
    assert value(world, "mizar_device_compute_throttled_seconds_total", CONTAINER) == 0.5
    assert value(world, "mizar_device_processes_without_shim", CONTAINER) == 0
    how = {"memory": "Hard", "compute": "Hard", "enforcement": "Strict"}
    assert value(world, "mizar_device_isolation_info", CONTAINER | how) == 1


async def test_what_it_was_refused_and_what_is_not_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests beyond its limit, memory that its account leaves out, processes without the shim."""
    held = await shared(world)
    assert world.app is not None
    (owner,) = (slot.owner for slot in world.app.slots.all())
    assert owner is not None
    process = ContainerProcess(4711, "python", (1, 1), owner.pod_uid, CONTAINER_ID)
    past = ProcessWithoutShim(owner, CARD, process, GIB)
    monkeypatch.setattr(Auditor, "without_shim", [past, past, replace(past, uuid=card(2).uuid)])
    put(file_of(held, "usage"), UsageHead.cards.offset + UsageCard.refused.offset, 7)
    assert value(world, "mizar_device_memory_refused_total", CONTAINER) == 7
    assert value(world, "mizar_device_processes_without_shim", CONTAINER) == 2

    def told() -> bool:
        # The time slicer may just write what the last audit has found.
        at = Limits.live.offset + LimitsLive.unaccounted_bytes.offset
        put(file_of(held, "limits"), at, GIB)
        return value(world, "mizar_device_memory_unaccounted_bytes", CONTAINER) == GIB

    await until(told)


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's samples are taken all the time."""
    monkeypatch.setattr(container_utilization, "EVERY_S", 0.01)


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("backend", ["Shim", "None"])
async def test_its_part_of_the_cards_time_is_told_without_a_share_as_well(
    world: World, backend: str
) -> None:
    world.cards.used = {CARD: {}}
    await shared(world, Isolation.model_validate({"backend": backend}))
    body = share_object()
    identity = f"containerd://{CONTAINER_ID}"
    body["status"]["containerStatuses"] = [{"name": "main", "containerID": identity}]
    world.api.put_pod(body)

    def told() -> bool:
        return value(world, "mizar_device_utilization_ratio", CONTAINER) == 0

    await until(told)


async def test_when_it_last_worked(world: World) -> None:
    held = await shared(world)
    name = "mizar_device_last_work_timestamp_seconds"
    assert value(world, name, CONTAINER) is None
    write(held, wanted_at=time.monotonic_ns() - 60_000_000_000)
    assert value(world, name, CONTAINER) == pytest.approx(time.time() - 60, abs=10)
    write(held, wanted_at=2**63)  # a tenant may write any number; the future counts as now
    assert value(world, name, CONTAINER) == pytest.approx(time.time(), abs=10)


async def test_what_nobody_measures_is_not_told_as_nothing(world: World) -> None:
    await shared(world, Isolation())
    names = series(world, pod="share")
    assert "mizar_device_memory_used_bytes" in names
    assert not [one for one in names if "compute" in one or "work" in one]


@pytest.mark.parametrize(
    "isolation", [Isolation(backend="None"), Isolation(compute="Hard", may_opt_out=True)]
)
async def test_without_the_shim_there_is_no_limit_and_no_use(
    world: World, isolation: Isolation
) -> None:
    """Nothing counts what such a container uses, and no limit binds it: a use of 0 below a limit
    would show a card as free that the container may fill."""
    await world.serve_shadow(isolation=isolation)
    await world.start_share(annotations={"mizar.share/without-limits": "main"})
    await until(lambda: world.holders() == ["share"])
    assert series(world, pod="share") == ["mizar_device_isolation_info"]
    how = {"memory": "Hard", "compute": isolation.compute, "enforcement": "None"}
    assert value(world, "mizar_device_isolation_info", CONTAINER | how) == 1


async def test_two_slots_of_one_container_give_each_series_once(world: World) -> None:
    """Prometheus refuses a page that has a series twice. An init container's device is used again
    by main; and a pod that is made anew under its name gets its device while the kubelet still
    lists the one before. The newer slot counts."""
    old = KubePod("team-a", "share", "uid-share", init=frozenset({"prepare"}))
    await world.serve_shadow()
    world.api.put_pod(share_object())
    await world.knows(SHARE)
    first = await world.kubelet.allocate(old, "prepare", RESOURCE, 1)
    await world.kubelet.allocate(old, "main", RESOURCE, 1, reuse=first.ids)
    await world.kubelet.start_container(old, "prepare", RESOURCE)
    await world.kubelet.start_container(old, "main", RESOURCE)
    await until(lambda: world.holders() == ["share"])
    assert not repeated(world) and value(world, "mizar_device_isolation_info", LIMITED) == 1
    new = KubePod("team-a", "share", "uid-new")
    body = share_object()
    body["metadata"]["uid"] = "uid-new"
    world.api.put_pod(body)
    await world.knows(new)
    held = await world.kubelet.allocate(new, "main", RESOURCE, 1)
    await world.kubelet.start_container(new, "main", RESOURCE)
    write(held, wanted_at=time.monotonic_ns())
    await until(lambda: world.holders() == ["share", "share"])
    assert world.app is not None
    owned = [one for one in world.app.slots.all() if one.owner is not None]
    assert len({one.owner.container for one in owned}) == 2 and len(owned) == 3
    assert not repeated(world)
    assert value(world, "mizar_device_last_work_timestamp_seconds", CONTAINER) is not None


async def test_series_of_a_deleted_pod_go(world: World) -> None:
    await shared(world)
    assert series(world, pod="share") and value(world, "mizar_card_holders", OF_CARD) == 1
    world.kubelet.remove_pod("uid-share")
    world.api.delete_pod("team-a", "share")
    await until(lambda: world.holders() == [])
    assert series(world, pod="share") == []
    assert value(world, "mizar_card_holders", OF_CARD) == 0


async def test_a_shadow_pod_s_holders_and_idleness(world: World) -> None:
    await world.serve_shadow()
    idle = "mizar_shadow_pod_idle_seconds"
    await until(lambda: (value(world, idle, OF_SHADOW) or 0) > 0)
    assert value(world, "mizar_shadow_pod_holders", OF_SHADOW) == 0
    assert value(world, "mizar_shadow_pod_card_info", {**OF_SHADOW, "device_uuid": CARD}) == 1
    await world.start_share(count=2)
    await until(lambda: world.holders() == ["share", "share"])
    assert value(world, idle, OF_SHADOW) == 0
    assert value(world, "mizar_shadow_pod_holders", OF_SHADOW) == 1  # a container, two devices
    world.kubelet.remove_pod("uid-share")
    world.api.delete_pod("team-a", "share")
    world.api.delete_pod(*SHADOW)
    world.kubelet.remove_pod(f"uid-{SHADOW[1]}")
    await until(lambda: not series(world, pod=SHADOW[1]))


async def test_a_card(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.serve_shadow()
    assert world.app is not None
    inventory = world.app.agent.inventory
    monkeypatch.setattr(inventory, "readings", {CARD: Readings(used_bytes=GIB, busy_percent=40)})
    assert value(world, "mizar_card_info", {**OF_CARD, "model": card().model}) == 1
    assert value(world, "mizar_card_memory_bytes", OF_CARD) == 16 * GIB
    assert value(world, "mizar_card_memory_used_bytes", OF_CARD) == GIB
    assert value(world, "mizar_card_utilization_ratio", OF_CARD) == 0.4
    assert value(world, "mizar_card_healthy", OF_CARD) == 1
    other = {**OF_CARD, "device_uuid": card(2).uuid}
    assert value(world, "mizar_card_memory_used_bytes", other) is None
    world.cards.tell(CARD, 79)
    await until(lambda: value(world, "mizar_card_healthy", OF_CARD) == 0)
    assert value(world, "mizar_card_healthy", other) == 1


async def test_what_a_card_has_reported(world: World) -> None:
    """Also what leaves it healthy."""
    await world.serve_shadow()
    for xid in (63, 13, 63):
        world.cards.tell(CARD, xid)
    assert value(world, "mizar_card_xids_total", {**OF_CARD, "xid": "63"}) == 2
    assert value(world, "mizar_card_xids_total", {**OF_CARD, "xid": "13"}) == 1
    assert value(world, "mizar_card_healthy", OF_CARD) == 1


async def test_while_nvml_does_not_answer_cards_keep_their_health(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the agent that is not ready: an alert for each card would have healthy ones reset."""
    await world.serve_shadow()
    app = world.app
    assert app is not None
    world.cards.tell(CARD, 79)
    await until(lambda: value(world, "mizar_card_healthy", OF_CARD) == 0)
    monkeypatch.setattr(world.cards, "read", AsyncMock(side_effect=CardsUnknown("no driver")))
    await until(lambda: app.agent.state.snapshot.cards_problem)
    inventory = app.agent.inventory
    monkeypatch.setattr(inventory, "readings", {CARD: Readings(used_bytes=GIB, busy_percent=40)})
    assert list(app.unready()) == ["no driver"]
    assert value(world, "mizar_card_healthy", OF_CARD) == 0
    assert value(world, "mizar_card_healthy", {**OF_CARD, "device_uuid": card(2).uuid}) == 1
    assert value(world, "mizar_card_memory_used_bytes", OF_CARD) is None
    assert value(world, "mizar_card_utilization_ratio", OF_CARD) is None
