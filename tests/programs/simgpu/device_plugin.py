"""A stand-in for the NVIDIA device plugin: offers the simulated cards to the kubelet as
nvidia.com/gpu, by UUID.

    python -m simgpu.device_plugin --simgpu-dir /run/simgpu

It registers again, on a socket of a new name, when the kubelet restarts or ends the stream, and
reports a failed or removed card as Unhealthy. MIG instances are nvidia.com/gpu with strategy
single, and nvidia.com/mig-1g.5gb and so on with strategy mixed; the machine has the strategy."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import grpc

from mizar_nodeagent.proto import deviceplugin_pb2 as api
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc
from simgpu.machine import CONTROL_NODES, Health, Machine, Strategy
from simgpu.state_file import StateError

RESOURCE = "nvidia.com/gpu"
API_VERSION = "v1beta1"
LOOK_SECONDS = 0.1  # seconds between two checks of the cards and of the kubelet's socket
REGISTER_SECONDS = 5.0

_Context: TypeAlias = "grpc.aio.ServicerContext[api.AllocateRequest, api.AllocateResponse]"

log = logging.getLogger("simgpu.device_plugin")


@dataclass(frozen=True)
class Device:
    """A card or MIG instance as reported to the kubelet. `nodes`: names of its device nodes;
    `numa`: its NUMA node, if known."""

    uuid: str
    nodes: tuple[str, ...]
    healthy: bool
    numa: int | None = None


Devices = tuple[Device, ...]


class Cards(Protocol):
    """A source of devices."""

    def devices(self) -> Mapping[str, Devices]:
        """The devices of each resource."""
        ...


class MachineCards:
    """The devices of a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def devices(self) -> Mapping[str, Devices]:
        return announced(self._machine.health(), self._machine.mig_strategy)


def announced(found: Iterable[Health], strategy: Strategy) -> dict[str, Devices]:
    """The devices of each resource. With strategy single there are none unless all cards are
    divided into instances of one size."""
    resources: dict[str, list[Device]] = {RESOURCE: []}
    found = list(found)
    for one in found:
        if resource := _resource(one, strategy):
            device = Device(one.uuid, one.nodes, one.healthy, one.numa)
            resources.setdefault(resource, []).append(device)
    if strategy == "single" and not _are_alike(found):
        resources[RESOURCE] = []
    return {name: tuple(devices) for name, devices in resources.items()}


def _resource(one: Health, strategy: Strategy) -> str | None:
    if strategy == "none":
        return None if one.profile else RESOURCE
    if one.divided:
        return None
    return f"nvidia.com/mig-{one.profile}" if one.profile and strategy == "mixed" else RESOURCE


def _are_alike(found: Iterable[Health]) -> bool:
    return len({one.profile for one in found if not one.divided}) < 2


def list_response(devices: Iterable[Device]) -> api.ListAndWatchResponse:
    return api.ListAndWatchResponse(devices=[_listed(device) for device in devices])


def _listed(device: Device) -> api.Device:
    nodes = [] if device.numa is None else [api.NUMANode(ID=device.numa)]
    return api.Device(
        ID=device.uuid,
        health="Healthy" if device.healthy else "Unhealthy",
        topology=api.TopologyInfo(nodes=nodes) if nodes else None,
    )


def container_response(
    directory: Path, devices: Iterable[Device], uuids: list[str]
) -> api.ContainerAllocateResponse:
    """Nodes, mounts and environment of a container with the cards `uuids`. Raises KeyError for a
    UUID that no card has."""
    known = {device.uuid: device.nodes for device in devices}
    nodes = dict.fromkeys([*(node for uuid in uuids for node in known[uuid]), *CONTROL_NODES])
    return api.ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)},
        devices=[
            api.DeviceSpec(
                container_path=f"/dev/{node}",
                host_path=str(directory / "dev" / node),
                permissions="rw",
            )
            for node in nodes
        ],
        mounts=[
            _mount("/usr/local/nvidia", directory / "driver", read_only=True),
            _mount("/run/simgpu/state", directory / "state", read_only=False),
        ],
    )


def _mount(inside: str, outside: Path, *, read_only: bool) -> api.Mount:
    return api.Mount(container_path=inside, host_path=str(outside), read_only=read_only)


class Session(rpc.DevicePluginServicer):
    """One registration: a server on a socket of its own, until the kubelet drops it."""

    def __init__(
        self, directory: Path, plugin_dir: Path, resource: str, devices: Callable[[], Devices]
    ) -> None:
        self._directory = directory
        self._plugin_dir = plugin_dir
        self._resource = resource
        self._devices = devices
        self._socket = plugin_dir / f"simgpu-{uuid.uuid4().hex[:12]}.sock"
        self._server = grpc.aio.server()
        self.ended = asyncio.Event()

    async def __aenter__(self) -> "Session":
        rpc.add_DevicePluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        self._socket.unlink(missing_ok=True)

    async def register(self) -> None:
        """Tell the kubelet about the plugin. Raises grpc.RpcError if the kubelet does not answer or
        refuses."""
        async with grpc.aio.insecure_channel(
            f"unix:{self._plugin_dir / 'kubelet.sock'}"
        ) as channel:
            request = api.RegisterRequest(
                version=API_VERSION, endpoint=self._socket.name, resource_name=self._resource
            )
            kubelet = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await kubelet.Register(request, timeout=REGISTER_SECONDS)
        log.info("registered %s on %s", self._resource, self._socket.name)

    async def GetDevicePluginOptions(self, request: object, context: object) -> object:
        return api.DevicePluginOptions()

    async def ListAndWatch(
        self, request: object, context: object
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        told = None
        try:
            while True:
                if (devices := self._devices()) != told:
                    told = devices
                    yield list_response(devices)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.ended.set()

    async def Allocate(
        self, request: api.AllocateRequest, context: _Context
    ) -> api.AllocateResponse:
        devices = self._devices()
        try:
            answers = [
                container_response(self._directory, devices, list(container.devices_ids))
                for container in request.container_requests
            ]
        except KeyError as unknown:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such card: {unknown}")
        return api.AllocateResponse(container_responses=answers)


def _identity(path: Path) -> tuple[int, int] | None:
    """An identity that differs between successive files of the same name; None if there is no
    file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


async def _until_over(session: Session, kubelet: Path, known: tuple[int, int]) -> None:
    """Return when the stream has ended or the kubelet has a new socket."""
    while _identity(kubelet) == known:
        with contextlib.suppress(TimeoutError):
            # not wait_for, which can lose a cancellation that coincides with the event (until 3.12)
            async with asyncio.timeout(LOOK_SECONDS):
                await session.ended.wait()
            log.info("the kubelet ended the stream")
            return
    log.info("the kubelet's socket is gone or new")


async def run(directory: Path, plugin_dir: Path, cards: Cards) -> None:
    """Keep the resources registered until cancelled, including those that have no device any
    more."""
    started: set[str] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            for resource in cards.devices().keys() - started:
                started.add(resource)
                devices = partial(_of, cards, resource)
                group.create_task(_keep_registered(directory, plugin_dir, resource, devices))
            await asyncio.sleep(LOOK_SECONDS)


def _of(cards: Cards, resource: str) -> Devices:
    return cards.devices().get(resource, ())


async def _keep_registered(
    directory: Path, plugin_dir: Path, resource: str, devices: Callable[[], Devices]
) -> None:
    kubelet = plugin_dir / "kubelet.sock"
    while True:
        known = _identity(kubelet)
        if known:
            async with Session(directory, plugin_dir, resource, devices) as session:
                try:
                    await session.register()
                    await _until_over(session, kubelet, known)
                except grpc.RpcError as error:
                    log.info("the kubelet does not answer yet: %s", error.code())
        await asyncio.sleep(LOOK_SECONDS)


async def _main(directory: Path, plugin_dir: Path) -> None:
    with Machine(directory) as machine:
        work = asyncio.create_task(run(directory, plugin_dir, MachineCards(machine)))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


def main(argv: list[str] | None = None) -> int:
    """Returns 0 after SIGTERM, or 1 if there is no machine in the directory."""
    parser = argparse.ArgumentParser(prog="simgpu.device_plugin", description=__doc__)
    parser.add_argument("--simgpu-dir", type=Path, default=Path("/run/simgpu"))
    parser.add_argument("--plugin-dir", type=Path, default=Path("/var/lib/kubelet/device-plugins"))
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        asyncio.run(_main(arguments.simgpu_dir, arguments.plugin_dir))
    except StateError as problem:
        print(f"simgpu.device_plugin: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
