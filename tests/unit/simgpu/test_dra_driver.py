"""The stand-in for NVIDIA's DRA driver, with a kubelet that a test makes of grpc and an API server
that is a dictionary."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import yaml

import simgpu
from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import NotFound, Unavailable
from mizar_kube.kinds import Kind, Ref
from simgpu import dra_driver
from simgpu.dra_devices import Device, Publisher, devices
from simgpu.dra_driver import Claims, cdi_file, keep_published, serving
from simgpu.machine import Machine
from simgpu.proto import dra_pb2 as api
from simgpu.proto import dra_pb2_grpc as rpc
from simgpu.proto import plugin_registration_pb2 as registration_api
from simgpu.proto import plugin_registration_pb2_grpc as registration_rpc

Object = dict[str, Any]
Names = list[list[str]]
Numbers = list[int]
CARDS = tuple(Device(minor, f"GPU-{minor}", "NVIDIA A100", 1024, 0, None) for minor in range(2))
CLAIM = api.Claim(namespace="team", name="wanted", uid="123")


def claim(*names: str, uid: str = "123", driver: str = "gpu.nvidia.com") -> Object:
    """A claim with these devices."""
    results = [
        {"driver": driver, "pool": "node-1", "device": name, "request": f"r{number}"}
        for number, name in enumerate(names)
    ]
    allocation = {"devices": {"results": results}}
    return {"metadata": {"uid": uid}, "status": {"allocation": allocation} if names else {}}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with simgpu.create(tmp_path / "machine", cards=2, memory_mib=1024) as machine:
        yield machine


def test_a_card_is_described_as_nvidias_driver_does(machine: Machine) -> None:
    first, second = devices(machine)
    described = first.published()
    assert (described["name"], second.name) == ("gpu-0", "gpu-1")
    assert described["capacity"] == {"memory": {"value": "1024Mi"}}
    attributes = described["attributes"]
    assert attributes["uuid"] == {"string": machine.cards[0].uuid}
    assert attributes["type"] == {"string": "gpu"}
    assert attributes["productName"] == {"string": "NVIDIA A100-SXM4-40GB"}
    assert attributes["driverVersion"] == {"version": "580.65.6"}
    assert attributes["cudaDriverVersion"] == {"version": "13.0.0"}
    assert attributes["cudaComputeCapability"] == {"version": "8.0.0"}
    assert "taints" not in described


def test_a_card_with_an_error_is_tainted_and_a_lost_one_left_out(machine: Machine) -> None:
    first, second = (one.uuid for one in machine.cards)
    machine.set_health(first, 79)
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    assert [one.published().get("taints") for one in devices(machine)] == [[taint], None]
    machine.remove(first)
    assert [one.uuid for one in devices(machine)] == [second]
    machine.restore(first)
    assert [one.xid for one in devices(machine)] == [0, 0]


def test_a_name_follows_the_minor_number(machine: Machine) -> None:
    first, second = (one.uuid for one in machine.cards)
    machine.renumber(second)
    assert [(one.name, one.uuid, *one.nodes) for one in devices(machine)] == [
        ("gpu-0", second, "nvidia0"),
        ("gpu-1", first, "nvidia1"),
    ]


def test_the_instances_of_a_divided_card_are_offered_in_its_place(machine: Machine) -> None:
    first, second = (one.uuid for one in machine.cards)
    (instance,) = machine.divide(second, "1g.1gb")
    whole, part = devices(machine)
    assert (whole.uuid, part.uuid) == (first, instance)
    assert (part.name, part.published()["name"]) == ("gpu-1-mig-19-1-1",) * 2
    attributes = part.published()["attributes"]
    words = {name: attributes[name]["string"] for name in ("type", "profile", "parentUUID")}
    assert words == {"type": "mig", "profile": "1g.1gb", "parentUUID": second}
    assert attributes["productName"] == {"string": "NVIDIA A100-SXM4-40GB"}
    assert part.published()["capacity"] == {"memory": {"value": "972Mi"}}
    assert part.nodes == ("nvidia1", "nvidia-caps/nvidia-cap147", "nvidia-caps/nvidia-cap148")
    machine.divide(second)
    assert [one.uuid for one in devices(machine)] == [first, second]


def test_a_numa_node_is_told(machine: Machine) -> None:
    machine.set_numa(machine.cards[0].uuid, 1)
    attributes = devices(machine)[0].published()["attributes"]
    assert attributes["resource.kubernetes.io/numaNode"] == {"int": 1}


@dataclass
class ApiServer:
    """ResourceSlices by name, in which it writes capacities in its own way, and one node."""

    slices: dict[str, Object] = field(default_factory=dict)
    selectors: list[str] = field(default_factory=list)
    versions: int = 0
    away: int = 0
    """How many calls are not answered from now on."""

    async def list(self, kind: Kind, field_selector: str) -> Listing:
        if self.away:
            self.away -= 1
            raise Unavailable("no answer")
        self.selectors.append(field_selector)
        return Listing(list(self.slices.values()), "1")

    async def get(self, ref: Ref) -> Object:
        return {"metadata": {"name": ref.name, "uid": "node's"}}

    async def request(self, method: str, path: str, body: Object) -> Object:
        if method == "POST":
            name = f"{body['metadata']['generateName']}{len(self.slices)}"
            body = {**body, "metadata": {**body["metadata"], "name": name}}
        self.versions += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.versions)}
        devices = [{**one, "capacity": "normal"} for one in body["spec"]["devices"]]
        made = {**body, "metadata": metadata, "spec": {**body["spec"], "devices": devices}}
        self.slices[metadata["name"]] = made
        return made

    async def delete(self, ref: Ref) -> None:
        if self.slices.pop(ref.name, None) is None:
            raise NotFound("no such slice")

    def offered(self) -> Names:
        """The names of the devices in each slice."""
        specs = [one["spec"] for one in self.slices.values()]
        return [[device["name"] for device in spec["devices"]] for spec in specs]

    def generations(self) -> Numbers:
        return [one["spec"]["pool"]["generation"] for one in self.slices.values()]


@pytest.fixture
def api_server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def publisher(api_server: ApiServer) -> Publisher:
    return Publisher(cast(KubeClient, api_server), "node-1")


async def test_a_node_has_one_slice(api_server: ApiServer, publisher: Publisher) -> None:
    await publisher.publish(CARDS)
    ((name, made),) = api_server.slices.items()
    assert name.startswith("node-1-gpu.nvidia.com-")
    assert made["spec"]["driver"] == "gpu.nvidia.com"
    assert made["spec"]["nodeName"] == made["spec"]["pool"]["name"] == "node-1"
    assert made["spec"]["pool"]["resourceSliceCount"] == 1
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-1", "node's")
    assert set(api_server.selectors) == {"spec.nodeName=node-1,spec.driver=gpu.nvidia.com"}


async def test_a_new_generation_only_if_a_device_has_changed(
    api_server: ApiServer, publisher: Publisher
) -> None:
    await publisher.publish(CARDS)
    await publisher.publish(CARDS)
    assert api_server.generations() == [1]
    await publisher.publish(CARDS[:1])
    assert (api_server.offered(), api_server.generations()) == ([["gpu-0"]], [2])


async def test_further_slices_are_deleted(api_server: ApiServer, publisher: Publisher) -> None:
    await publisher.publish(CARDS)
    (made,) = api_server.slices.values()
    api_server.slices["other"] = {**made, "metadata": {**made["metadata"], "name": "other"}}
    await publisher.publish(CARDS)
    assert api_server.offered() == [["gpu-0", "gpu-1"]]


async def soon(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if what():
                return
            await asyncio.sleep(0.01)


async def test_it_is_published_again_whatever_happens(
    api_server: ApiServer, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is away, a card goes, somebody deletes the slice."""
    monkeypatch.setattr(dra_driver, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(dra_driver, "LOOK_SECONDS", 0.01)
    now = [CARDS]
    api_server.away = 2
    work = asyncio.create_task(keep_published(publisher, lambda: now[0]))
    await soon(lambda: api_server.offered() == [["gpu-0", "gpu-1"]])
    now[0] = CARDS[1:]
    await soon(lambda: api_server.offered() == [["gpu-1"]])
    api_server.slices.clear()
    await soon(lambda: api_server.offered() == [["gpu-1"]])
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work


def test_a_cdi_file_has_the_cards_and_the_driver() -> None:
    made = cdi_file(Path("/run/simgpu"), "123", CARDS)
    assert made["kind"] == "k8s.gpu.nvidia.com/claim"
    assert [one["name"] for one in made["devices"]] == ["123-gpu-0", "123-gpu-1"]
    (node,) = made["devices"][1]["containerEdits"]["deviceNodes"]
    assert node == {"path": "/dev/nvidia1", "hostPath": "/run/simgpu/dev/nvidia1"}
    edits = made["containerEdits"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [one["containerPath"] for one in edits["mounts"]] == [
        "/usr/local/nvidia",
        "/run/simgpu/state",
    ]


@dataclass
class Kubelet:
    """Calls the driver. `claims`: those of the API server, by namespace and name."""

    folder: Path
    cdi: Path
    claims: dict[tuple[str, str], Object] = field(default_factory=dict)
    cards: tuple[Device, ...] = CARDS

    async def get(self, namespace: str, name: str) -> Object:
        if (namespace, name) not in self.claims:
            raise NotFound(f"no claim {name}")
        return self.claims[namespace, name]

    async def prepare(self) -> api.NodePrepareResourceResponse:
        """What the driver answers about CLAIM."""
        async with grpc.aio.insecure_channel(f"unix:{await self.endpoint()}") as channel:
            driver = rpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            request = api.NodePrepareResourcesRequest(claims=[CLAIM])
            answer = await driver.NodePrepareResources(request, timeout=10)
        return cast(api.NodePrepareResourceResponse, answer.claims[CLAIM.uid])

    async def unprepare(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{await self.endpoint()}") as channel:
            driver = rpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]
            request = api.NodeUnprepareResourcesRequest(claims=[CLAIM])
            answer = await driver.NodeUnprepareResources(request, timeout=10)
        assert dict(answer.claims) == {CLAIM.uid: api.NodeUnprepareResourceResponse()}

    async def endpoint(self) -> str:
        """The socket that the driver says it has; tells it that it is registered."""
        (registry,) = (self.folder / "plugins_registry").iterdir()
        async with grpc.aio.insecure_channel(f"unix:{registry}") as channel:
            driver = registration_rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            info = await driver.GetInfo(registration_api.InfoRequest(), timeout=10)
            status = registration_api.RegistrationStatus(plugin_registered=True)
            await driver.NotifyRegistrationStatus(status, timeout=10)
        assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
        assert list(info.supported_versions) == ["v1.DRAPlugin"]
        return str(info.endpoint)

    def files(self) -> list[Object]:
        """The CDI files that there are."""
        return [yaml.safe_load(one.read_text()) for one in self.cdi.glob("*")]


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    (tmp_path / "plugins_registry").mkdir()
    kubelet = Kubelet(tmp_path, tmp_path / "cdi")
    claims = Claims(Path("/run/simgpu"), kubelet.cdi, lambda: kubelet.cards, kubelet.get)
    async with serving(tmp_path, claims) as registration:
        assert not registration.registered.is_set()
        await kubelet.endpoint()
        assert registration.registered.is_set()
        yield kubelet
    assert not list((tmp_path / "plugins_registry").iterdir())


async def test_a_claim_is_prepared_until_it_is_given_back(kubelet: Kubelet) -> None:
    kubelet.claims["team", "wanted"] = claim("gpu-1")
    answer = await kubelet.prepare()
    (device,) = answer.devices
    assert (device.pool_name, device.device_name) == ("node-1", "gpu-1")
    assert list(device.request_names) == ["r0"]
    assert list(device.cdi_device_ids) == ["k8s.gpu.nvidia.com/claim=123-gpu-1"]
    assert await kubelet.prepare() == answer
    (file,) = kubelet.files()
    assert [one["name"] for one in file["devices"]] == ["123-gpu-1"]
    await kubelet.unprepare()
    await kubelet.unprepare()
    assert not kubelet.files()


@pytest.mark.parametrize(
    "found, why",
    [
        (None, "no claim wanted"),
        (claim("gpu-0", uid="other"), "is a new one"),
        (claim(), "has no card"),
        (claim("gpu-0", driver="dra.example.com"), "has no card"),
        (claim("gpu-0", "gpu-7"), "there is no gpu-7"),
    ],
)
async def test_what_cannot_be_prepared_is_said(
    kubelet: Kubelet, found: Object | None, why: str
) -> None:
    if found is not None:
        kubelet.claims["team", "wanted"] = found
    answer = await kubelet.prepare()
    assert why in answer.error and not answer.devices
    assert not kubelet.files()


async def test_sockets_of_a_killed_driver_are_replaced(tmp_path: Path) -> None:
    registry = tmp_path / "plugins_registry" / "gpu.nvidia.com-reg.sock"
    registry.parent.mkdir()
    registry.touch()
    kubelet = Kubelet(tmp_path, tmp_path / "cdi")
    claims = Claims(Path("/run/simgpu"), kubelet.cdi, lambda: (), kubelet.get)
    async with serving(tmp_path, claims):
        assert await kubelet.endpoint()
