"""What the plugins of all resources answer: two parts seen as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mizar_nodeagent.container.allocate import Allocator
from mizar_nodeagent.container.prestart import Gatekeeper
from mizar_nodeagent.proto import deviceplugin_pb2 as pb


@dataclass(frozen=True)
class Answers:
    """Allocation is answered from memory; a start is checked with the kubelet."""

    allocator: Allocator
    gatekeeper: Gatekeeper

    def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        return self.allocator.preferred(resource, available, must, size)

    def allocate(self, resource: str, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        return self.allocator.allocate(resource, ids)

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        await self.gatekeeper.prestart(resource, ids)
