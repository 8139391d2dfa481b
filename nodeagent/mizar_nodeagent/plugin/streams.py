"""The ListAndWatch streams of one resource: the list that the kubelet gets, and how many are
open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

Send = Callable[[pb.ListAndWatchResponse], Awaitable[None]]

HEALTH: Final = {True: "Healthy", False: "Unhealthy"}


def answer(devices: tuple[Device, ...]) -> pb.ListAndWatchResponse:
    """The ListAndWatch message with these devices."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(ID=one.id, health=HEALTH[one.healthy], topology=_topology(one.numa))
            for one in devices
        ]
    )


def _topology(numa: tuple[int, ...]) -> pb.TopologyInfo | None:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=one) for one in numa]) if numa else None


class Streams:
    """The open streams of a resource, each of which sends the newest list. The kubelet should have
    exactly one open: of two streams, it drops both when it notices the end of one.
    """

    def __init__(self) -> None:
        self.devices: tuple[Device, ...] = ()
        self._version = 0
        self._open: set[object] = set()
        self._ending = 0
        self._changed = asyncio.Event()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def update(self, devices: tuple[Device, ...]) -> None:
        """Send this list, unless it is the same as before."""
        if devices != self.devices:
            self.devices = devices
            self._version += 1
            self._signal_change()

    def end_all(self) -> None:
        """End every open stream."""
        self._ending += 1
        self._signal_change()

    def forget_all(self) -> None:
        """Count none of the streams that are open now: those that have not ended belong to a server
        that was abandoned."""
        self._open.clear()
        self._signal_change()

    async def until_open(self, count: int, timeout: float) -> bool:
        """Wait until exactly `count` streams are open; False if they are not within `timeout`
        seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.open != count:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def until_other_than(self, count: int) -> None:
        """Wait until the number of open streams is not `count`."""
        while self.open == count:
            await self._changed.wait()

    async def stream(self, send: Send) -> None:
        """Run one stream: send the list now and each time it changes, until `end_all`."""
        this = object()
        self._open.add(this)
        self._signal_change()
        sent, ending = -1, self._ending
        try:
            while ending == self._ending:
                if sent == self._version:
                    await self._changed.wait()
                    continue
                sent = self._version
                await send(answer(self.devices))
        finally:
            self._open.discard(this)
            self._signal_change()

    def _signal_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
