"""The ListAndWatch streams of one resource: what the kubelet sees, and whether it still looks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

Send = Callable[[pb.ListAndWatchResponse], Awaitable[None]]

HEALTH: Final = {True: "Healthy", False: "Unhealthy"}


def answer(devices: tuple[Device, ...]) -> pb.ListAndWatchResponse:
    """The message for a device list."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=one.id, health=HEALTH[one.healthy], topology=_topology(one.numa))
            for one in devices
        ]
    )


def _topology(numa: tuple[int, ...]) -> pb.TopologyInfo | None:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=one) for one in numa]) if numa else None


class Streams:
    """All open streams show the newest list. The kubelet should have exactly one open.

    Two are trouble: when the kubelet notices the end of either, it drops the other one too.
    """

    def __init__(self) -> None:
        self.devices: tuple[Device, ...] = ()
        self._version = 0
        self._open = 0
        self._ending = 0
        self._moved = asyncio.Event()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._open

    def update(self, devices: tuple[Device, ...]) -> None:
        """Show another list; nothing is sent when it is the same."""
        if devices != self.devices:
            self.devices = devices
            self._version += 1
            self._move()

    def end_all(self) -> None:
        """End every open stream."""
        self._ending += 1
        self._move()

    async def until_open(self, count: int, timeout: float) -> bool:
        """Wait until exactly `count` streams are open; False if they aren't in time."""
        try:
            async with asyncio.timeout(timeout):
                while self._open != count:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def until_other_than(self, count: int) -> None:
        """Wait until some other number of streams is open."""
        while self._open == count:
            await self._moved.wait()

    async def follow(self, send: Send) -> None:
        """Be one stream: send the list as it is now and each time it changes, until ended."""
        self._open += 1
        self._move()
        sent, ending = -1, self._ending
        try:
            while ending == self._ending:
                if sent == self._version:
                    await self._moved.wait()
                    continue
                sent = self._version
                await send(answer(self.devices))
        finally:
            self._open -= 1
            self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
