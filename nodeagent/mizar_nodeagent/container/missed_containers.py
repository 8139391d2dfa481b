"""Kills the containers that the runtime created without asking the agent.

Such a container has no card, or those that a variable of its image names, and cannot be given its
card any more. The kubelet then has another one created, about which the agent is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent import container_processes, process_kill
from mizar_nodeagent.container.slots import Notify, Owner

log = get_logger(__name__)

EVERY_S: Final = 1.0
"""Seconds between two searches for processes of missed containers."""
STARTS_WITHIN_S: Final = 600.0
"""Seconds within which a container that was created must have started; later, it does not start any
more, or its pod's event has been read."""

MISSED: Final = (
    "container {} was created while the container runtime was not connected to Mizar: it did not "
    "get its card, and may have access to other cards"
)
IS_KILLED: Final = "it is killed, and gets its card if the pod's restartPolicy lets it start again"
DELETE: Final = "delete the pod"
NOT_KILLED: Final = (
    "container {}, which did not get its card, cannot be killed: {}; delete the pod, and see "
    "nodeagent.mayKill of the chart"
)


@dataclass
class _Missed:
    """A container. `owner`: its pod and name. `uid`: its pod's UID at the runtime. `until`: when it
    is given up (seconds of the clock). `seen`: whether processes of it were found."""

    owner: Owner
    uid: str
    until: float
    seen: bool = False


@dataclass
class MissedContainers:
    """Kills missed containers. `warn`: emits a warning event on a container's pod. `sees`: whether
    the agent sees processes of other containers; where it does not, none is killed. `proc`: the
    node's /proc. `clock`: returns seconds.
    """

    warn: Notify
    sees: bool = field(default_factory=container_processes.in_nodes_namespace)
    proc: Path = container_processes.PROC
    clock: Callable[[], float] = time.monotonic
    _pending: dict[str, _Missed] = field(default_factory=dict)
    _added: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, container_id: str, uid: str, owner: Owner) -> None:
        """Report a container with an event on its pod, and kill it as soon as it has processes.
        `uid`: its pod's UID at the runtime."""
        self.warn(owner, EventReason.NO_CARD_ACCESS, self._message(owner))
        if self.sees:
            until = self.clock() + STARTS_WITHIN_S
            self._pending[container_id] = _Missed(owner, uid, until)
            self._added.set()

    async def run(self) -> None:
        """Kill what was added, for ever."""
        while True:
            await self._added.wait()
            await self.kill()
            if not self._pending:
                self._added.clear()
            await asyncio.sleep(EVERY_S)

    async def kill(self) -> None:
        """Kill the processes that the added containers have now. Forget those that have none any
        more, those that cannot be killed and those that do not start."""
        uids = {one.uid for one in self._pending.values()}
        outcomes = await asyncio.to_thread(_kill_all, uids, frozenset(self._pending), self.proc)
        for container_id, missed in list(self._pending.items()):
            is_over = self._note(missed, outcomes.get(container_id))
            if is_over or self.clock() >= missed.until:
                del self._pending[container_id]

    def _note(self, missed: _Missed, problem: str | None) -> bool:
        """Take the outcome of a search for a container's processes. `problem`: why one cannot be
        killed; empty if all were, None if there are none. Returns whether there is nothing more to
        kill."""
        if problem is None:
            return missed.seen
        if problem:
            message = NOT_KILLED.format(missed.owner.container, problem)
            self.warn(missed.owner, EventReason.NO_CARD_ACCESS, message)
            return True
        if not missed.seen:
            log.warning("a container without its card was killed", **missed.owner.names)
        missed.seen = True
        return False

    def _message(self, owner: Owner) -> str:
        return f"{MISSED.format(owner.container)}; {IS_KILLED if self.sees else DELETE}"


def _kill_all(uids: Iterable[str], containers: frozenset[str], proc: Path) -> dict[str, str]:
    """Kill the running processes of these containers of the pods with these UIDs. Returns, for each
    container that has some, why one cannot be killed; empty if all are."""
    pods = container_processes.of_pods(frozenset(uids), proc)
    found = [one.pid for one in pods if one.container_id in containers]
    outcomes: dict[str, str] = {}
    for process in container_processes.of_containers(found, proc).values():
        problem = _kill(process, proc)
        outcomes[process.container_id] = outcomes.get(process.container_id) or problem
    return outcomes


def _kill(process: container_processes.ContainerProcess, proc: Path) -> str:
    """Why the process cannot be killed; empty if it is, or has ended."""
    try:
        process_kill.kill(process, proc)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error)
    return ""
