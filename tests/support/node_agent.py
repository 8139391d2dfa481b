"""The parts of the node agent that concern containers, in a process of their own as on a node: the
start of containers, the audits and the time slicer, over NVML. There is no kubelet and no API
server; their answers are made up. node.py starts this program and talks to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mizar_core.carve import Carve
from mizar_core.models import Isolation
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.cards import Card, ProcessLoad
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.cuda_context.costs import CONTEXTS, ContextCosts
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.main import THREAD_SWITCH_S
from mizar_nodeagent.nvml import Nvml
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.time_slicing.containers import containers_of
from mizar_nodeagent.time_slicing.time_slicer import TimeSlicer
from unit.nodeagent.makers import card_claim, carve, shadow, share, share_claim, snapshot

DEVICES = 16
RESOURCE = f"team-a.mizar.share/gpu.{DEVICES}"


@dataclass
class Residents:
    """The processes of containers, as /proc shows them on a node. Here a process belongs to the
    container whose slot is its MIZAR_DIR. A CardSource that writes the /proc entries of the
    processes that NVML lists."""

    nvml: Nvml
    proc: Path
    containers: dict[str, str] = field(default_factory=dict)
    """By a slot's folder: the content of `cgroup` in its container."""

    async def read(self, expected: Collection[str] = ()) -> Mapping[str, Card]:
        return await self.nvml.read(expected)

    async def faults(self, tell: Any) -> None:
        await self.nvml.faults(tell)

    async def context_bytes(self, uuid: str) -> int:
        return await self.nvml.context_bytes(uuid)

    async def loads(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, ProcessLoad]]:
        found = await self.nvml.loads(uuids)
        for pid in {pid for workers in found.values() for pid in workers}:
            self._write_down(pid)
        return found

    async def utilization(self, uuid: str) -> Mapping[int, float] | None:
        return await self.nvml.utilization(uuid)

    async def free_bytes(self, uuid: str) -> int:
        return await self.nvml.free_bytes(uuid)

    async def minors(self, uuids: Collection[str]) -> Mapping[str, int]:
        return await self.nvml.minors(uuids)

    async def workers(self, uuids: Collection[str]) -> Mapping[str, Mapping[int, int]]:
        found = await self.nvml.workers(uuids)
        for pid in {pid for workers in found.values() for pid in workers}:
            self._write_down(pid)
        return found

    def _write_down(self, pid: int) -> None:
        folder = self.proc / str(pid)
        if not folder.exists():
            folder.mkdir(parents=True)
            for name in ("stat", "status"):
                (folder / name).symlink_to(f"/proc/{pid}/{name}")
        (folder / "cgroup").write_text(self.containers.get(_slot_of(pid), "0::/\n"))


def _slot_of(pid: int) -> str:
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if one.startswith(b"MIZAR_DIR="):
                return one.partition(b"=")[2].decode()
    return ""


class NodeAgent:
    """The parts, assembled as in mizar_nodeagent.assembly. Each card is held by a shadow pod of its
    own."""

    def __init__(self, folder: Path, library: Path, how: Isolation, core_scaling: str) -> None:
        self._cards = Residents(Nvml(), folder / "proc")
        slots = Slots(folder / "slots", shim_install.install(library, folder))
        slots.load(time.time())
        self._state, self._slots = AgentState(), slots
        self._how, self._core_scaling = how, core_scaling
        self._shadows: dict[str, tuple[str, int]] = {}  # a card, bytes of a device
        self._shares: dict[str, Pod] = {}
        contexts = ContextCosts(folder / CONTEXTS, self._state, self._cards.context_bytes)
        self._prestart = PreStart(
            self._state, slots, self._ask, tuple, _nothing, _nothing, contexts, self._cards.minors
        )
        self._limits = LimitsUpdater(self._state, slots, _nothing, _nothing, contexts.of)

    async def start(self, memory: Mapping[str, int]) -> None:
        """`memory`: bytes of a device of each card."""
        self._facts = await self._cards.read()
        self._shadows = {
            f"shadow-{DEVICES}-{number}": (uuid, size)
            for number, (uuid, size) in enumerate(memory.items())
        }
        self._replan()
        self._loop = asyncio.get_running_loop()
        self._time_slicer = TimeSlicer(
            containers_of(self._slots),
            new_code=self._audit_soon,
        )
        self._auditor = Auditor(
            self._state,
            self._slots,
            self._cards,
            self._time_slicer.set_unaccounted,
            _nothing,
            self._cards.proc,
        )

    def _audit_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._auditor.audit_soon)

    async def run(self) -> None:
        """Run the parts for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._time_slicer.serve())
            group.create_task(self._auditor.run())

    async def container(self) -> Path:
        """Start one more container, with a device of each shadow pod. Returns its slot's folder."""
        number = len(self._shares)
        uid = f"12345678-1234-1234-1234-{number:012d}"
        identity = f"{number:064x}"
        pod = share(f"share-{number}", uid=uid, container_ids=((identity, "main"),))
        self._shares[pod.name] = pod
        ids = self._ids(number)
        slot = self._slots.create(RESOURCE, ids, time.time())
        self._cards.containers[str(slot.folder)] = f"0::/kubepods/pod{uid}/{identity}\n"
        self._replan()
        await self._prestart.prepare(RESOURCE, ids)
        return slot.folder

    def permit(self, memory: Mapping[str, int]) -> None:
        """Change the quota: a device of each card has that many bytes now."""
        self._shadows = {name: (uuid, memory[uuid]) for name, (uuid, _) in self._shadows.items()}
        self._replan()
        self._limits.update()

    def _ids(self, number: int) -> list[str]:
        return [f"team-a/{name}-{number}" for name in self._shadows]

    async def _ask(self) -> Claims:
        return Claims(tuple(self._claims()), time.monotonic())

    def _claims(self) -> Iterator[Any]:
        for name, (uuid, _) in self._shadows.items():
            yield card_claim(name, uuid)
        for number, name in enumerate(self._shares):
            yield share_claim(*self._ids(number), pod=name, resource=RESOURCE)

    def _replan(self) -> None:
        pods = [shadow(name, carve=self._carve(size)) for name, (_, size) in self._shadows.items()]
        now = time.monotonic()
        self._state.replan(
            snapshot(now, [*pods, *self._shares.values()], self._claims(), cards=self._facts)
        )

    def _carve(self, memory: int) -> Carve:
        return carve(
            resource=RESOURCE,
            devices=DEVICES,
            memory=memory,
            core_scaling=self._core_scaling,
            isolation=self._how,
        )


def _nothing(*_: object) -> None: ...


async def _serve(agent: NodeAgent) -> None:
    """Answer the commands on standard input, one in each line."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        if command["do"] == "container":
            answer = str(await agent.container())
        else:
            agent.permit(command["memory"])
            answer = ""
        print(answer, flush=True)


async def _main(given: Mapping[str, Any]) -> None:
    agent = NodeAgent(
        Path(given["folder"]),
        Path(given["library"]),
        Isolation(compute=given["compute"]),
        given["core_scaling"],
    )
    await agent.start(given["memory"])
    running = asyncio.create_task(agent.run())
    print("", flush=True)
    done, _ = await asyncio.wait(
        [running, asyncio.create_task(_serve(agent))], return_when=asyncio.FIRST_COMPLETED
    )
    for one in done:
        one.result()


if __name__ == "__main__":
    sys.setswitchinterval(THREAD_SWITCH_S)
    asyncio.run(_main(json.loads(sys.argv[1])))
