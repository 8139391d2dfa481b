"""Kills the containers that the runtime created without asking the agent by NRI.

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
LOOK_FOR_S: Final = 600.0
"""Seconds after which the search for a container's processes is given up: a container may take
minutes to start on a busy node."""

MISSED: Final = (
    "container {} was created without the node agent's answer, which was late or not asked for: it "
    "has no card, or cards that its image names; "
)
"""The beginning of the event about a missed container, with the container's name."""
IS_KILLED: Final = (
    "the agent kills it, and it gets its card if the pod's restartPolicy lets it start again"
)
"""The end of that event where the agent can kill containers."""
DELETE: Final = "delete the pod"
"""The end of that event where the agent cannot kill containers."""
NOT_KILLED: Final = (
    "container {}, which did not get its card, cannot be killed: {}; delete the pod, and see "
    "nodeagent.mayKill of the chart"
)
"""The event about a missed container that cannot be killed, with its name and the problem."""
SURVIVES: Final = "SIGKILL does not end its processes"
"""The problem if processes are still there when the search for them is given up."""
NOT_FOUND: Final = (
    "no process of container {}, which did not get its card, was found within {:.0f} s: if it runs "
    "nevertheless, delete the pod"
)
"""The event about a missed container without processes, with its name and seconds of searching."""


@dataclass
class _Missed:
    """A container. `owner`: its pod and name. `uid`: its pod's UID at the runtime. `until`: when it
    is given up (seconds of the clock). `seen`: whether processes of it were found. `problem`: why
    one of those could not be killed at the last search; empty if all were."""

    owner: Owner
    uid: str
    until: float
    seen: bool = False
    problem: str = ""


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
            until = self.clock() + LOOK_FOR_S
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
        """Kill the processes that the added containers have now. Forget those that have ended, and
        those that are given up, with another event on the pods of these."""
        uids = {one.uid for one in self._pending.values()}
        problems = await asyncio.to_thread(_kill_all, uids, frozenset(self._pending), self.proc)
        for container_id, missed in list(self._pending.items()):
            if self._is_over(missed, problems.get(container_id)):
                del self._pending[container_id]

    def _is_over(self, missed: _Missed, problem: str | None) -> bool:
        """Take the outcome of a search for a container's processes. `problem`: why one could not be
        killed; empty if all were, None if there are none. Returns whether to forget it."""
        if missed.seen and problem is None:
            log.warning("a container without its card was killed", **missed.owner.names)
            return True
        # If the first process has ended, the kernel ends the others too, whoever their users are.
        # So a problem counts only if it is still there at the next search.
        if problem and missed.problem:
            self._give_up(missed, NOT_KILLED.format(missed.owner.container, problem))
            return True
        missed.seen, missed.problem = missed.seen or problem is not None, problem or ""
        if self.clock() < missed.until:
            return False
        if missed.seen:
            reason = NOT_KILLED.format(missed.owner.container, problem or SURVIVES)
        else:
            reason = NOT_FOUND.format(missed.owner.container, LOOK_FOR_S)
        self._give_up(missed, reason)
        return True

    def _give_up(self, missed: _Missed, message: str) -> None:
        self.warn(missed.owner, EventReason.NO_CARD_ACCESS, message)

    def _message(self, owner: Owner) -> str:
        return MISSED.format(owner.container) + (IS_KILLED if self.sees else DELETE)


def _kill_all(uids: Iterable[str], containers: frozenset[str], proc: Path) -> dict[str, str]:
    """Kill the running processes of these containers of the pods with these UIDs. Returns, for each
    container that has some, why one cannot be killed; empty if all are."""
    pods = container_processes.of_pods(frozenset(uids), proc)
    found = [one.pid for one in pods if one.container_id in containers]
    outcomes: dict[str, str] = {}
    for process in container_processes.of_containers(found, proc).values():
        if process.container_id not in containers:
            continue  # another process has its PID by now
        problem = process_kill.try_kill(process, proc).problem
        outcomes[process.container_id] = outcomes.get(process.container_id) or problem
    return outcomes
