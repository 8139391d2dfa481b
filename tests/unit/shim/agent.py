"""The parts of the node agent that look after a container's memory, over one slot of a test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from typing import Self

import simgpu
from mizar_core.models import Isolation
from mizar_nodeagent.compute.steward import Container, Steward
from mizar_nodeagent.container.inspection import Inspection
from unit.nodeagent.makers import CGROUP, one_container

from .slot import Slot


class Agent:
    """Steward and inspection, each in a thread of its own, while it is entered as a context.
    Processes are the container's once they were shown with `adopt`."""

    def __init__(self, slot: Slot, machine: simgpu.Machine) -> None:
        self._machine = machine
        self._proc = slot.path / "proc"
        container = Container("s", slot.limits, slot.usage)
        self._steward = Steward(lambda: [container], new_code=self._hurry)
        self._parts = *one_container(slot.path, Isolation()), self
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def adopt(self, pid: int) -> None:
        """The process lives in the container."""
        folder = self._proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(CGROUP)
        for name in ("stat", "status"):
            (folder / name).symlink_to(f"/proc/{pid}/{name}")

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        """As NVML tells."""
        cards = (self._machine.card(uuid) for uuid in uuids)
        return {card.uuid: {one.pid: one.memory for one in card.processes} for card in cards}

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        started.result()
        self._steward.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._steward.stop()
        self._steward.close()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        mind, slots, cards = self._parts
        self._inspection = Inspection(
            mind, slots, cards, self._steward.withhold, lambda *_: None, self._proc
        )
        self._running = asyncio.create_task(self._inspection.run())

    async def _stop(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])

    def _hurry(self) -> None:
        self._loop.call_soon_threadsafe(self._inspection.hurry)
