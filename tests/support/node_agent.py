"""The parts of the node agent that concern containers, in a process of their own as on a node: the
start of containers, the audits and the time slicer, over NVML. There is no kubelet and no API
server; their answers are made up. node.py starts this program and talks to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn, cast

import support.without_rich  # noqa: F401 # before all that imports structlog
from mizar_core.carve import Carve
from mizar_core.models import Isolation
from mizar_core.names import SPOT_RESOURCE, spot_device_id
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.cards import Card, ProcessLoad
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.cuda_context.costs import CONTEXTS, ContextCosts
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.main import THREAD_SWITCH_S
from mizar_nodeagent.nvml import Nvml
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.spot.allocate import SpotPreStart
from mizar_nodeagent.spot.lender import Lender
from mizar_nodeagent.time_slicing.containers import containers_of
from mizar_nodeagent.time_slicing.time_slicer import TimeSlicer
from unit.nodeagent.makers import card_claim, carve, shadow, share, share_claim, snapshot

ORDER_BYTES = 1 << 16
"""More than what an agent is given."""
RESERVE = "1Gi"
"""Memory of a lent card that no borrower may have."""

Division = Mapping[str, Any]
"""The fields of a `support.node.Division`."""


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


@dataclass
class _Shared:
    """A card that a shadow pod of its own holds. `given`: how many of its devices are in use."""

    shadow: str
    division: Division
    given: int = 0

    @property
    def resource(self) -> str:
        return f"team-a.mizar.share/gpu.{self.division['devices']}"

    def give(self, count: int) -> list[str]:
        """IDs of devices that nobody has. Raises ValueError if there are not that many."""
        first, self.given = self.given, self.given + count
        if self.given > self.division["devices"]:
            raise ValueError(f"{self.shadow} has {self.division['devices']} devices only")
        return [f"team-a/{self.shadow}-{index}" for index in range(first, self.given)]

    def carve(self) -> Carve:
        division = self.division
        return carve(
            resource=self.resource,
            devices=division["devices"],
            memory=division["memory"],
            core_scaling=division["core_scaling"],
            isolation=Isolation(compute=division["compute"]),
        )


class NodeAgent:
    """The parts, assembled as in mizar_nodeagent.assembly. All borrowers may have the cards that
    they ask for."""

    def __init__(self, folder: Path, library: Path, driver: Path) -> None:
        self._cards = Residents(Nvml(driver), folder / "proc")
        slots = Slots(folder / "slots", shim_install.install(library, folder))
        slots.load(time.time())
        self._state, self._slots = AgentState(), slots
        self._shared: dict[str, _Shared] = {}  # by the card's UUID
        self._pods: dict[str, Pod] = {}
        self._held: list[Claim] = []
        contexts = ContextCosts(folder / CONTEXTS, self._state, self._cards.context_bytes)
        self._prestart = PreStart(
            self._state, slots, self._ask, tuple, _nothing, _nothing, contexts, self._cards.minors
        )
        lender = SimpleNamespace(
            objection=lambda uuid, owner: None,
            rule=lambda uuid: SimpleNamespace(reserve=RESERVE),
            memory_bytes=lambda uuid: self._facts[uuid].memory_bytes,
        )
        self._lend = SpotPreStart(cast(Lender, lender), self._prestart, self._cards.free_bytes)
        self._limits = LimitsUpdater(self._state, slots, _nothing, _nothing, contexts.of)

    async def start(self, divisions: Mapping[str, Division]) -> None:
        """`divisions`: how each card that is shared is divided, by its UUID."""
        self._facts = await self._cards.read()
        for number, (uuid, division) in enumerate(divisions.items()):
            self._shared[uuid] = _Shared(f"shadow-{division['devices']}-{number}", division)
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

    async def container(self, devices: Mapping[str, int], priority: int) -> Path:
        """Start one more container, with that many devices of each card. Returns its slot's
        folder."""
        ids = [one for uuid, count in devices.items() for one in self._shared[uuid].give(count)]
        resource = self._shared[min(devices)].resource
        slot = self._admit(resource, ids, priority)
        await self._prestart.prepare(resource, ids)
        return slot

    async def borrower(self, uuid: str) -> Path:
        """Start a container that borrows the card. Returns its slot's folder."""
        ids = [spot_device_id(uuid)]
        slot = self._admit(SPOT_RESOURCE, ids, priority=0)
        await self._lend.prepare(SPOT_RESOURCE, ids)
        return slot

    def _admit(self, resource: str, ids: list[str], priority: int) -> Path:
        """Have the kubelet give the devices to a pod that it makes up."""
        number = len(self._pods)
        uid = f"12345678-1234-1234-1234-{number:012d}"
        identity = f"{number:064x}"
        pod = share(
            f"share-{number}",
            uid=uid,
            container_ids=((identity, "main"),),
            requests=((resource, len(ids)),),
            priority=priority,
        )
        self._pods[pod.name] = pod
        self._held.append(share_claim(*ids, pod=pod.name, resource=resource))
        slot = self._slots.create(resource, ids, time.time())
        self._cards.containers[str(slot.folder)] = f"0::/kubepods/pod{uid}/{identity}\n"
        self._replan()
        return slot.folder

    def permit(self, divisions: Mapping[str, Division]) -> None:
        """Change the quota: from now on, these cards are divided so, into as many devices as
        before."""
        for uuid, division in divisions.items():
            self._shared[uuid].division = division
        self._replan()
        self._limits.update()

    async def _ask(self) -> Claims:
        return Claims(tuple(self._claims()), time.monotonic())

    def _claims(self) -> Iterator[Claim]:
        for uuid, one in self._shared.items():
            yield card_claim(one.shadow, uuid)
        yield from self._held

    def _replan(self) -> None:
        pods = [shadow(one.shadow, carve=one.carve()) for one in self._shared.values()]
        now = time.monotonic()
        self._state.replan(
            snapshot(now, [*pods, *self._pods.values()], self._claims(), cards=self._facts)
        )


def _nothing(*_: object) -> None: ...


async def _serve(agent: NodeAgent, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answer the commands, one in each line."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), asked)
    while line := await reader.readline():
        _say(answers, await _answer(agent, **json.loads(line)))


def _say(to: IO[bytes], text: str) -> None:
    to.write(f"{text}\n".encode())
    to.flush()


async def _answer(agent: NodeAgent, do: str, **given: Any) -> str:
    match do:
        case "container":
            return str(await agent.container(**given))
        case "borrower":
            return str(await agent.borrower(**given))
    agent.permit(**given)
    return ""


async def _main(given: Mapping[str, Any], asked: IO[bytes], answers: IO[bytes]) -> None:
    agent = NodeAgent(Path(given["folder"]), Path(given["library"]), Path(given["driver"]))
    await agent.start(given["divisions"])
    running = asyncio.create_task(agent.run())
    _say(answers, str(os.getpid()))
    done, _ = await asyncio.wait(
        [running, asyncio.create_task(_serve(agent, asked, answers))],
        return_when=asyncio.FIRST_COMPLETED,
    )
    for one in done:
        one.result()


def _fork_agents(orders: socket.socket) -> None:
    """For each order, an agent in a process of its own, until nobody can order any more. An order
    is what the agent is given, and a socket for its commands and answers: so each starts at once,
    with all of its code imported."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(orders, ORDER_BYTES, 1)
        if not message:
            return
        if not os.fork():
            orders.close()
            _be_agent(json.loads(message), *files)
        os.close(files[0])


def _be_agent(given: Mapping[str, Any], connection: int) -> NoReturn:
    """An agent until its connection ends."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(given["environment"])
        with os.fdopen(connection, "rb") as asked, os.fdopen(os.dup(connection), "wb") as answers:
            asyncio.run(_main(given, asked, answers))
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.setswitchinterval(THREAD_SWITCH_S)
    _fork_agents(socket.socket(fileno=int(sys.argv[1])))
