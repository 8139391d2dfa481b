"""A kubelet's device manager over real gRPC, with its quirks (pkg/kubelet/cm/devicemanager, 1.36).

It calls GetDevicePluginOptions inside Register; the end of any stream of a resource disconnects
whichever client of it is the newest; allocations live in a file across restarts; sockets in its
folder are deleted at start; an ID that leaves the list while it is being allocated is a crash; a
device that is being allocated is forgotten if podresources is listed meanwhile and a pod has ended.
"""

import asyncio
import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc

from mizar_nodeagent.kubelet.device_checkpoint import FILE
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc
from mizar_nodeagent.proto import podresources_pb2 as pr
from mizar_nodeagent.proto import podresources_pb2_grpc as pr_rpc
from support.waiting import PATIENCE_S


class Admission(Exception):
    """The pod fails for good: UnexpectedAdmissionError."""


@dataclass
class KubePod:
    """A pod as the kubelet knows it."""

    namespace: str
    name: str
    uid: str
    init: frozenset[str] = frozenset()


@dataclass
class Client:
    """The kubelet's side of one registration."""

    resource: str
    channel: grpc.aio.Channel
    stub: Any
    options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)
    stopped: bool = False
    task: "asyncio.Task[None] | None" = None
    call: Any = None


@dataclass
class Allocated:
    """What a container holds of a resource."""

    ids: list[str]
    answer: pb.ContainerAllocateResponse


Key = tuple[str, str, str]
"""Pod's UID, container, resource."""


class FakeKubelet(rpc.RegistrationServicer, pr_rpc.PodResourcesListerServicer):
    """A kubelet whose folder is like /var/lib/kubelet."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.plugin_dir = folder / "device-plugins"
        self.podresources_dir = folder / "pod-resources"
        self.random = Random(seed)
        self.pods: dict[str, KubePod] = {}
        self.physical: dict[str, dict[str, list[str]]] = {}
        self.physical_resource = "nvidia.com/gpu"
        # what DRA drivers have given to a pod's containers, by its UID and their names
        self.dynamic: dict[str, dict[str, list[pr.DynamicResource]]] = {}
        self.allocated: dict[Key, Allocated] = {}
        self.devices: dict[str, dict[str, bool]] = {}
        self.numa: dict[str, dict[str, list[int]]] = {}
        self.being_allocated: dict[str, set[str]] = {}
        self.in_use: dict[str, set[str]] = {}  # what it thinks that containers have, by resource
        # UID of a pod that ends, before podresources is listed, before an allocation is recorded
        self.ends_meanwhile = ""
        self.registrations: list[str] = []
        self.crashed = ""
        self.refuse_registration = False
        self.ends_after = 0.0  # seconds that it takes to handle the end of a stream
        self.ended = 0  # streams whose end it has handled
        self.knows_its_pods = True
        self.asked = 0
        self._clients: dict[str, Client] = {}
        self._endpoints: dict[str, Client] = {}
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.plugin_dir.mkdir(parents=True, exist_ok=True)
        self.podresources_dir.mkdir(parents=True, exist_ok=True)

    # ---- its life ----

    async def start(self) -> None:
        """Delete every socket, read what was allocated, serve."""
        for path in self.plugin_dir.iterdir():
            if path.is_socket():
                path.unlink()
        for resource in self.devices:
            self.devices[resource] = {}
        self._count_again()
        await self._serve(self.plugin_dir, rpc.add_RegistrationServicer_to_server)
        with suppress(FileNotFoundError):
            (self.podresources_dir / "kubelet.sock").unlink()
        await self._serve(self.podresources_dir, pr_rpc.add_PodResourcesListerServicer_to_server)

    async def stop(self) -> None:
        """Die: end all connections."""
        for client in [*self._clients.values(), *self._endpoints.values()]:
            await client.channel.close(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        self._servers.clear()
        self._clients.clear()
        self._endpoints.clear()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _serve(self, folder: Path, add: Any) -> None:
        server = grpc.aio.server()
        add(self, server)
        server.add_insecure_port(f"unix://{folder / 'kubelet.sock'}")
        await server.start()
        self._servers.append(server)

    # ---- registration and streams ----

    async def Register(self, request: Any, context: Any) -> Any:
        self.registrations.append(request.resource_name)
        if self.refuse_registration:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        # As the kubelet joins them: an absolute path is taken to be below the folder too.
        await self.connect(request.resource_name, Path(f"{self.plugin_dir}/{request.endpoint}"))
        return pb.Empty()

    async def connect(self, resource: str, socket: Path) -> None:
        """Connect to a plugin, as Register does; a test may do it twice."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = grpc.aio.insecure_channel(f"unix://{socket}", options=options)
        client = Client(resource, channel, rpc.DevicePluginStub(channel))
        self._clients[resource] = client
        client.options = await client.stub.GetDevicePluginOptions(pb.Empty(), timeout=PATIENCE_S)
        self._endpoints[resource] = client
        client.task = asyncio.create_task(self._run(client))
        self._tasks.add(client.task)
        client.task.add_done_callback(self._tasks.discard)

    async def _run(self, client: Client) -> None:
        client.call = client.stub.ListAndWatch(pb.Empty())
        with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for answer in client.call:
                self._receive(client.resource, answer)
        # Here the kubelet takes the newest client, whichever it is.
        newest = self._clients.pop(client.resource, None)
        if newest is not None:
            await asyncio.sleep(self.ends_after)
            self.ended += 1
            await newest.channel.close(None)
            self._disconnect(client.resource)

    def _receive(self, resource: str, answer: pb.ListAndWatchResponse) -> None:
        devices = {one.ID: one.health == "Healthy" for one in answer.devices}
        for one in self.being_allocated.get(resource, set()) - devices.keys():
            self.crashed = f"{one} left the list while it was being allocated"
        self.devices[resource] = devices
        self.numa[resource] = {
            one.ID: [node.ID for node in one.topology.nodes] for one in answer.devices
        }

    def undo_registration(self, resource: str) -> None:
        """Handle the end of an earlier stream only now: the newest client counts as disconnected,
        and its stream stays open."""
        self._clients.pop(resource)
        self._disconnect(resource)

    def _disconnect(self, resource: str) -> None:
        self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), False)
        self._endpoints[resource].stopped = True

    async def drop_stream(self, resource: str) -> None:
        """The connection of the newest client breaks."""
        self._clients[resource].call.cancel()

    def is_serving(self, resource: str) -> bool:
        """Whether the kubelet could allocate devices of the resource."""
        endpoint = self._endpoints.get(resource)
        return endpoint is not None and not endpoint.stopped and bool(self.healthy(resource))

    def healthy(self, resource: str) -> set[str]:
        return {one for one, healthy in self.devices.get(resource, {}).items() if healthy}

    # ---- pods ----

    def add_pod(self, pod: KubePod, **physical: Iterable[str]) -> None:
        """Add a pod that was admitted; `physical` cards by container (of physical_resource)."""
        self.pods[pod.uid] = pod
        self.physical[pod.uid] = {name: list(cards) for name, cards in physical.items()}

    def remove_pod(self, uid: str) -> None:
        """The pod has ended; what it held is freed at the next question about it."""
        self.pods.pop(uid, None)
        self.physical.pop(uid, None)
        self.dynamic.pop(uid, None)

    def give_claim(
        self,
        pod: KubePod,
        *devices: str,
        container: str = "pause",
        claim: str = "",
        driver: str = "gpu.nvidia.com",
        share: str | None = None,
    ) -> None:
        """A DRA driver has prepared a claim of the pod with these devices of the node's pool, and a
        CDI device for each. The kubelet lists with a device those of the devices before it too."""
        self.pods[pod.uid] = pod
        cdi = [pr.CDIDevice(name=f"k8s.{driver}/claim={pod.uid}-{one}") for one in devices]
        prepared = pr.DynamicResource(
            claim_name=claim or f"{pod.name}-cards",
            claim_namespace=pod.namespace,
            claim_resources=[
                pr.ClaimResource(
                    driver_name=driver,
                    pool_name="node-1",
                    device_name=one,
                    share_id=share,
                    cdi_devices=cdi[: place + 1],
                )
                for place, one in enumerate(devices)
            ],
        )
        self.dynamic.setdefault(pod.uid, {}).setdefault(container, []).append(prepared)

    async def allocate(
        self, pod: KubePod, container: str, resource: str, count: int, reuse: Iterable[str] = ()
    ) -> Allocated:
        """Admit one container. Raises Admission."""
        self.pods.setdefault(pod.uid, pod)
        self._free_the_dead()
        chosen = await self._choose(pod, resource, count, list(reuse))
        endpoint = self._endpoints[resource]
        self.in_use.setdefault(resource, set()).update(chosen)
        self.being_allocated.setdefault(resource, set()).update(chosen)
        try:
            answer = await endpoint.stub.Allocate(
                pb.AllocateRequest(container_requests=[{"devices_ids": chosen}])
            )
        except grpc.aio.AioRpcError as error:
            self.pods.pop(pod.uid, None)
            self._count_again()
            raise Admission(error.details()) from error
        finally:
            self.being_allocated[resource] -= set(chosen)
        if self.ends_meanwhile:
            self.remove_pod(self.ends_meanwhile)
            self._free_the_dead()
        held = Allocated(chosen, answer.container_responses[0])
        self.allocated[pod.uid, container, resource] = held
        self._write_checkpoint()
        return held

    async def _choose(self, pod: KubePod, resource: str, count: int, reuse: list[str]) -> list[str]:
        endpoint = self._endpoints.get(resource)
        if endpoint is None or endpoint.stopped:
            raise Admission(f"endpoint of {resource} is stopped")
        if reuse:
            return reuse[:count]
        available = sorted(self.healthy(resource) - self.in_use.get(resource, set()))
        if len(available) < count:
            raise Admission(f"{resource}: {count} wanted, {len(available)} available")
        self.random.shuffle(available)
        preferred = await endpoint.stub.GetPreferredAllocation(
            pb.PreferredAllocationRequest(
                container_requests=[{"available_deviceIDs": available, "allocation_size": count}]
            )
        )
        named = [one for one in preferred.container_responses[0].deviceIDs if one in available]
        rest = [one for one in available if one not in named]
        return (named + rest)[:count]

    async def start_container(self, pod: KubePod, container: str, resource: str) -> Allocated:
        """Call PreStartContainer and return what the runtime would get. Raises
        grpc.aio.AioRpcError."""
        held = self.allocated[pod.uid, container, resource]
        endpoint = self._endpoints.get(resource)
        if endpoint is not None and not endpoint.stopped:
            await endpoint.stub.PreStartContainer(
                pb.PreStartContainerRequest(devices_ids=held.ids), timeout=PATIENCE_S
            )
        return held

    def _free_the_dead(self) -> None:
        alive = {key: held for key, held in self.allocated.items() if key[0] in self.pods}
        if alive != self.allocated:
            self.allocated = alive
            self._count_again()

    def _count_again(self) -> None:
        """Forget what is being allocated: only what is recorded counts."""
        self.in_use = {}
        for (_, _, resource), held in self.allocated.items():
            self.in_use.setdefault(resource, set()).update(held.ids)

    def _write_checkpoint(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": held.ids},
                "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
            }
            for (uid, container, resource), held in self.allocated.items()
        ]
        body = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
        (self.plugin_dir / FILE).write_text(json.dumps(body))

    # ---- podresources ----

    async def List(self, request: Any, context: Any) -> Any:
        self.asked += 1
        self._free_the_dead()
        pods = self.pods.values() if self.knows_its_pods else ()
        return pr.ListPodResourcesResponse(pod_resources=[self._resources(pod) for pod in pods])

    async def GetAllocatableResources(self, request: Any, context: Any) -> Any:
        return pr.AllocatableResourcesResponse(
            devices=[
                pr.ContainerDevices(resource_name=resource, device_ids=[one])
                for resource in self.devices
                for one in self.healthy(resource)
            ]
        )

    def _resources(self, pod: KubePod) -> pr.PodResources:
        found: dict[str, list[pr.ContainerDevices]] = {}
        for container, cards in self.physical.get(pod.uid, {}).items():
            found.setdefault(container, []).extend(
                pr.ContainerDevices(resource_name=self.physical_resource, device_ids=[card])
                for card in cards
            )
        for (uid, container, resource), held in self.allocated.items():
            if uid == pod.uid and container not in pod.init:
                found.setdefault(container, []).extend(
                    pr.ContainerDevices(resource_name=resource, device_ids=[one])
                    for one in held.ids
                )
        dynamic = self.dynamic.get(pod.uid, {})
        return pr.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pr.ContainerResources(
                    name=name,
                    devices=found.get(name, ()),
                    dynamic_resources=dynamic.get(name, ()),
                )
                for name in {**found, **dynamic}
            ],
        )
