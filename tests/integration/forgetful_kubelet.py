"""Stands between a node agent and its kubelet, and has the kubelet give a device to two pods.

The kubelet forgets a device that it is giving away if podresources is listed meanwhile and a pod
has ended. This program does so in the midst of an Allocate, and then prefers the forgotten device.

Run on the node: python -m integration.forgetful_kubelet FOLDER, which is the agent's pluginDir.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from mizar_nodeagent.kubelet.device_checkpoint import FILE
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.plugin.registration import register
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc

KUBELET = Path("/var/lib/kubelet")
PLUGINS = KUBELET / "device-plugins"
SOCKET = "kubelet.sock"
ENDING = "ending"
"""File in FOLDER: its presence makes the next Allocate take until the pod that it names has
ended."""
PATIENCE_S = 20.0
"""Seconds for which the start of the first pod with the device waits for the second one, less than
the kubelet's 30."""


class Between(rpc.DevicePluginServicer):
    """The plugin of one resource as the kubelet sees it. `agent`: the agent's own."""

    def __init__(self, folder: Path, agent: Any) -> None:
        self._folder = folder
        self._agent = agent
        self._podresources = PodResources(KUBELET / "pod-resources" / SOCKET)
        self._forgotten: list[str] = []
        self._given_again = asyncio.Event()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return await self._agent.GetDevicePluginOptions(request)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for answer in self._agent.ListAndWatch(request):
            yield answer

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        (asked,) = request.container_requests
        if self._forgotten and {*self._forgotten} <= {*asked.available_deviceIDs}:
            answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self._forgotten)
            return pb.PreferredAllocationResponse(container_responses=[answer])
        return await self._agent.GetPreferredAllocation(request)

    async def Allocate(self, request: Any, context: Any) -> Any:
        answer = await self._agent.Allocate(request)
        ids = [id for one in request.container_requests for id in one.devices_ids]
        if self._forgotten == ids:
            self._given_again.set()
        if (ending := self._folder / ENDING).exists():
            await self._until_ended(ending.read_text())
            self._forgotten = ids
            ending.unlink()
        return answer

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        if self._forgotten == list(request.devices_ids):
            async with asyncio.timeout(PATIENCE_S):
                await self._given_again.wait()
        try:
            return await self._agent.PreStartContainer(request)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())

    async def _until_ended(self, pod: str) -> None:
        while pod in {one.pod for one in (await self._podresources.list()).all}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


class Registration(rpc.RegistrationServicer):
    """Registers with the kubelet what the agent registers here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def Register(self, request: Any, context: Any) -> Any:
        channel = grpc.aio.insecure_channel(f"unix://{self._folder / request.endpoint}")
        socket = PLUGINS / f"between-{secrets.token_hex(4)}.sock"
        between = Between(self._folder, rpc.DevicePluginStub(channel))
        await serve(socket, lambda server: rpc.add_DevicePluginServicer_to_server(between, server))
        await register(PLUGINS / SOCKET, socket, request.resource_name)
        return pb.Empty()


SERVERS: list[grpc.aio.Server] = []


async def serve(socket: Path, add: Any) -> None:
    server = grpc.aio.server()
    add(server)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    SERVERS.append(server)


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).symlink_to(PLUGINS / FILE)
    add = rpc.add_RegistrationServicer_to_server
    await serve(folder / SOCKET, lambda server: add(Registration(folder), server))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
