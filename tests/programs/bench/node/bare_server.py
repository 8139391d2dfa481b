"""A device plugin that only answers, to measure gRPC itself: python bare_server.py SOCKET."""

import asyncio
import sys
from typing import Any

import grpc

from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc


class Plugin(rpc.DevicePluginServicer):
    """Answers with constants."""

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return pb.DevicePluginOptions()


async def main() -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Plugin(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix://{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
