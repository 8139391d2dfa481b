"""A stand-in for NVIDIA's DRA driver: it offers the simulated cards in a ResourceSlice of their
node, and prepares them for the pods whose ResourceClaims have them.

    python -m simgpu.dra_driver --node node-1 --kubeconfig FILE

The kubelet finds it by its socket in plugins_registry. For each claim it writes a CDI file, as
NVIDIA's driver does, with a device for each card; the kubelet passes the devices' names to the
container runtime. It calls the API server with the node's own identity.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import yaml

from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import Kind, Ref
from simgpu.dra_devices import DRIVER, Device, Object, Publisher, devices
from simgpu.machine import CONTROL_NODES, Machine
from simgpu.proto import dra_pb2 as api
from simgpu.proto import dra_pb2_grpc as rpc
from simgpu.proto import plugin_registration_pb2 as registration_api
from simgpu.proto import plugin_registration_pb2_grpc as registration_rpc
from simgpu.state_file import StateError

RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
CDI_VENDOR, CDI_CLASS = f"k8s.{DRIVER}", "claim"
SERVICE = "v1.DRAPlugin"
LOOK_SECONDS = 0.1  # between two looks at the cards
CHECK_SECONDS = 1.0  # between two checks of the slice, which others may have deleted

Devices = Callable[[], Sequence[Device]]
GetClaim = Callable[[str, str], Awaitable[Object]]

log = logging.getLogger("simgpu.dra_driver")


class CannotPrepare(LookupError):
    """Raised if a claim cannot be prepared. The message says why."""


def cdi_file(directory: Path, claim: str, cards: Sequence[Device]) -> Object:
    """The CDI file of the claim with this UID. `directory`: the machine's."""

    def nodes(*names: str) -> Object:
        found = [{"path": f"/dev/{one}", "hostPath": str(directory / "dev" / one)} for one in names]
        return {"deviceNodes": found}

    mounts = [
        _mount("/usr/local/nvidia", directory / "driver", "ro"),
        _mount("/run/simgpu/state", directory / "state", "rw"),
    ]
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": mounts, **nodes(*CONTROL_NODES)}
    return {
        "cdiVersion": "0.5.0",
        "kind": f"{CDI_VENDOR}/{CDI_CLASS}",
        "devices": [
            {"name": f"{claim}-{one.name}", "containerEdits": nodes(*one.nodes)} for one in cards
        ],
        "containerEdits": edits,
    }


def _mount(inside: str, outside: Path, mode: str) -> Object:
    return {"hostPath": str(outside), "containerPath": inside, "options": ["rbind", mode]}


@dataclass(frozen=True)
class Claims:
    """Prepares claims. `directory`: the machine's; `folder`: that of the CDI files."""

    directory: Path
    folder: Path
    devices: Devices
    get: GetClaim

    async def prepare(self, claim: api.Claim) -> list[api.Device]:
        """Write the claim's CDI file, and return its devices. Raises CannotPrepare if one of its
        cards is not there, if it has none, or if another claim has its name by now; KubeError."""
        found = await self.get(claim.namespace, claim.name)
        results = _results(claim, found)
        known = {one.name: one for one in self.devices()}
        if missing := {one["device"] for one in results} - known.keys():
            raise CannotPrepare(f"there is no {', '.join(sorted(missing))}")
        cards = [known[one["device"]] for one in results]
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(claim.uid)
        draft = path.with_suffix(".new")
        draft.write_text(yaml.safe_dump(cdi_file(self.directory, claim.uid, cards)))
        draft.rename(path)
        return [_prepared(claim.uid, one) for one in results]

    def unprepare(self, claim: str) -> None:
        """Remove the CDI file of the claim with this UID."""
        self._path(claim).unlink(missing_ok=True)

    def _path(self, claim: str) -> Path:
        return self.folder / f"{CDI_VENDOR}-{CDI_CLASS}_{claim}.yaml"


def _results(claim: api.Claim, found: Object) -> list[Object]:
    """The devices of the claim that this driver has to prepare. Raises CannotPrepare."""
    if found["metadata"]["uid"] != claim.uid:
        raise CannotPrepare(f"the claim {claim.namespace}/{claim.name} is a new one")
    allocation = found.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", [])
    own = [one for one in results if one["driver"] == DRIVER]
    if not own:
        raise CannotPrepare(f"the claim {claim.namespace}/{claim.name} has no card")
    return own


def _prepared(claim: str, result: Object) -> api.Device:
    name = f"{CDI_VENDOR}/{CDI_CLASS}={claim}-{result['device']}"
    return api.Device(
        request_names=[result["request"]],
        pool_name=result["pool"],
        device_name=result["device"],
        cdi_device_ids=[name],
    )


class Plugin(rpc.DRAPluginServicer):
    """The service that the kubelet calls for pods with claims."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    async def NodePrepareResources(
        self, request: api.NodePrepareResourcesRequest, context: object
    ) -> api.NodePrepareResourcesResponse:
        return api.NodePrepareResourcesResponse(
            claims={claim.uid: await self._prepare(claim) for claim in request.claims}
        )

    async def _prepare(self, claim: api.Claim) -> api.NodePrepareResourceResponse:
        try:
            found = await self._claims.prepare(claim)
        except (CannotPrepare, KubeError) as problem:
            log.info("cannot prepare %s/%s: %s", claim.namespace, claim.name, problem)
            return api.NodePrepareResourceResponse(error=str(problem))
        names = ", ".join(one.device_name for one in found)
        log.info("prepared %s/%s: %s", claim.namespace, claim.name, names)
        return api.NodePrepareResourceResponse(devices=found)

    async def NodeUnprepareResources(
        self, request: api.NodeUnprepareResourcesRequest, context: object
    ) -> api.NodeUnprepareResourcesResponse:
        for claim in request.claims:
            self._claims.unprepare(claim.uid)
            log.info("unprepared %s/%s", claim.namespace, claim.name)
        nothing = api.NodeUnprepareResourceResponse()
        return api.NodeUnprepareResourcesResponse(
            claims={claim.uid: nothing for claim in request.claims}
        )


class Registration(registration_rpc.RegistrationServicer):
    """The service that tells the kubelet about the plugin. `endpoint`: the plugin's socket.
    `registered`: set once the kubelet has accepted the plugin."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint
        self.registered = asyncio.Event()

    async def GetInfo(self, request: object, context: object) -> registration_api.PluginInfo:
        return registration_api.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[SERVICE],
        )

    async def NotifyRegistrationStatus(
        self, request: registration_api.RegistrationStatus, context: object
    ) -> registration_api.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("the kubelet has registered %s", DRIVER)
            self.registered.set()
        else:
            log.error("the kubelet has refused %s: %s", DRIVER, request.error)
        return registration_api.RegistrationStatusResponse()


async def _serve(server: grpc.aio.Server, socket: Path) -> None:
    socket.unlink(missing_ok=True)  # left by a driver that was killed
    server.add_insecure_port(f"unix:{socket}")
    await server.start()


@contextlib.asynccontextmanager
async def serving(kubelet: Path, claims: Claims) -> AsyncIterator[Registration]:
    """Serve the kubelet whose folder is `kubelet`; yields the Registration."""
    plugin = kubelet / "plugins" / DRIVER / "dra.sock"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    registry = kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
    registration = Registration(plugin)
    servers = grpc.aio.server(), grpc.aio.server()
    rpc.add_DRAPluginServicer_to_server(Plugin(claims), servers[0])  # type: ignore[no-untyped-call]
    registration_rpc.add_RegistrationServicer_to_server(registration, servers[1])  # type: ignore[no-untyped-call]
    await _serve(servers[0], plugin)
    await _serve(servers[1], registry)
    try:
        yield registration
    finally:
        for server in reversed(servers):
            await server.stop(0)


async def keep_published(publisher: Publisher, find: Devices) -> None:
    """Publish the cards whenever they have changed, and again if somebody has deleted the slice, as
    the kubelet does when it starts. Ends only when it is cancelled."""
    published, checked = None, 0.0
    while True:
        now, current = time.monotonic(), find()
        if current != published or now - checked >= CHECK_SECONDS:
            try:
                await publisher.publish(current)
                published, checked = current, now
            except KubeError as error:
                log.info("cannot publish the cards yet: %s", error)
                await asyncio.sleep(CHECK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)


async def _until_there(folder: Path) -> None:
    while True:
        if folder.is_dir():
            return
        await asyncio.sleep(LOOK_SECONDS)


async def run(arguments: argparse.Namespace, machine: Machine) -> None:
    """Act as the node's driver until cancelled."""
    await _until_there(arguments.kubelet_dir / "plugins_registry")
    async with await KubeClient.connect(arguments.kubeconfig) as client:

        async def get(namespace: str, name: str) -> Object:
            return await client.get(Ref(RESOURCE_CLAIM, name, namespace))

        def found() -> Sequence[Device]:
            return devices(machine)

        claims = Claims(arguments.simgpu_dir, arguments.cdi_dir, found, get)
        async with serving(arguments.kubelet_dir, claims) as registration:
            await registration.registered.wait()
            await keep_published(Publisher(client, arguments.node), found)


async def _main(arguments: argparse.Namespace) -> None:
    with Machine(arguments.simgpu_dir) as machine:
        work = asyncio.create_task(run(arguments, machine))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simgpu.dra_driver", description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--simgpu-dir", type=Path, default=Path("/run/simgpu"))
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"))
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"))
    return parser


def main(argv: list[str] | None = None) -> int:
    """Returns 0 after SIGTERM, or 1 if there is no machine in the directory."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        asyncio.run(_main(arguments))
    except StateError as problem:
        print(f"simgpu.dra_driver: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
