"""The stand-in for the NVIDIA device plugin, with a kubelet that a test makes of grpc."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from mizar_nodeagent.proto import deviceplugin_pb2 as api
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc
from simgpu.device_plugin import Device, container_response, list_response, run

CARDS = (Device("GPU-a", ("nvidia0",), True), Device("GPU-b", ("nvidia1",), True))


class FixedCards:
    """Cards that a test changes by assignment."""

    def __init__(self) -> None:
        self.now = CARDS

    def devices(self) -> dict[str, tuple[Device, ...]]:
        return {"nvidia.com/gpu": self.now}


class Kubelet(rpc.RegistrationServicer):
    """Takes registrations on kubelet.sock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoints: asyncio.Queue[str] = asyncio.Queue()
        self.server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]

    async def Register(self, request: api.RegisterRequest, context: object) -> api.Empty:
        assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
        self.endpoints.put_nowait(request.endpoint)
        return api.Empty()

    async def start(self) -> None:
        self.server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self.server.start()

    async def dial(self) -> tuple[str, rpc.DevicePluginStub, grpc.aio.Channel]:
        endpoint = await self.endpoints.get()
        channel = grpc.aio.insecure_channel(f"unix:{self.folder / endpoint}")
        plugin = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        return endpoint, plugin, channel


@pytest.fixture
def cards() -> FixedCards:
    return FixedCards()


@pytest.fixture
async def kubelet(tmp_path: Path, cards: FixedCards) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    await kubelet.start()
    plugin = asyncio.create_task(run(Path("/run/simgpu"), tmp_path, cards))
    yield kubelet
    plugin.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await plugin
    await kubelet.server.stop(0)


def test_devices_are_named_by_uuid_with_their_health() -> None:
    response = list_response([Device("GPU-a", (), True), Device("GPU-b", (), False)])
    listed = [(device.ID, device.health) for device in response.devices]
    assert listed == [("GPU-a", "Healthy"), ("GPU-b", "Unhealthy")]


def test_a_container_gets_nodes_driver_state_and_the_list_of_its_cards() -> None:
    response = container_response(Path("/run/simgpu"), CARDS, ["GPU-b"])
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}
    assert [(d.container_path, d.host_path) for d in response.devices] == [
        ("/dev/nvidia1", "/run/simgpu/dev/nvidia1"),
        ("/dev/nvidiactl", "/run/simgpu/dev/nvidiactl"),
        ("/dev/nvidia-uvm", "/run/simgpu/dev/nvidia-uvm"),
    ]
    assert [(m.container_path, m.host_path, m.read_only) for m in response.mounts] == [
        ("/usr/local/nvidia", "/run/simgpu/driver", True),
        ("/run/simgpu/state", "/run/simgpu/state", False),
    ]


async def test_a_change_of_health_is_told_at_once(kubelet: Kubelet, cards: FixedCards) -> None:
    _, plugin, channel = await kubelet.dial()
    async with channel:
        stream = plugin.ListAndWatch(api.Empty())
        assert await stream.read() == list_response(CARDS)
        cards.now = (CARDS[0], Device("GPU-b", ("nvidia1",), False))
        assert await stream.read() == list_response(cards.now)
        stream.cancel()


async def test_an_unknown_card_is_refused(kubelet: Kubelet) -> None:
    _, plugin, channel = await kubelet.dial()
    request = api.ContainerAllocateRequest(devices_ids=["GPU-x"])
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.Allocate(api.AllocateRequest(container_requests=[request]))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_it_registers_again_under_a_new_name_when_the_stream_ends(kubelet: Kubelet) -> None:
    first, plugin, channel = await kubelet.dial()
    async with channel:
        stream = plugin.ListAndWatch(api.Empty())
        await stream.read()
        stream.cancel()
        assert await kubelet.endpoints.get() != first


async def test_it_registers_again_with_a_kubelet_that_comes_back(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    await kubelet.endpoints.get()
    await kubelet.server.stop(0)
    for left in tmp_path.glob("*.sock"):
        left.unlink()
    again = Kubelet(tmp_path)
    await again.start()
    assert await again.endpoints.get()
    await again.server.stop(0)
