"""Assembles the time slicer and the auditor, and connects them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from mizar_kube.informer import Informer
from mizar_nodeagent import container_processes
from mizar_nodeagent.agent_base import AgentBase, Loop
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.audit.isolation_condition import IsolationConditions
from mizar_nodeagent.container_metrics import ContainerCollector
from mizar_nodeagent.container_utilization import ContainerUtilization
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.time_slicing.containers import containers_of
from mizar_nodeagent.time_slicing.time_slicer import TimeSlicer


@dataclass(frozen=True)
class AuditParts:
    """The time slicer, which grants the cards' time, and the loops that the caller runs: the time
    slicer's, the auditor's, which checks the limits, that of the pods' isolation condition, and
    that of the containers' utilization."""

    time_slicer: TimeSlicer
    loops: tuple[Loop, ...]


def assemble_audit(
    base: AgentBase,
    pods: Informer[Pod],
    woke: Callable[[Collection[str]], None],
    sees_owners: Callable[[], bool],
) -> AuditParts:
    """Create and connect the parts. Must be called in the event loop. `woke`: called in the event
    loop with the names of the slots whose containers want their lent cards back. `sees_owners`:
    returns whether the owners of all lent cards are watched."""
    loop = asyncio.get_running_loop()

    def audit_soon() -> None:
        _from_thread(loop, lambda: auditor.audit_soon())

    def woken(slots: Collection[str]) -> None:
        _from_thread(loop, lambda: woke(slots))

    time_slicer = TimeSlicer(
        containers_of(base.slots), new_code=audit_soon, woke=woken, watched=sees_owners
    )
    auditor = Auditor(
        base.state, base.slots, base.cards, time_slicer.set_unaccounted, base.agent.warn
    )
    conditions = IsolationConditions(base.client, pods.values, lambda: auditor.unbound)
    sees_processes = container_processes.in_nodes_namespace()
    utilization = ContainerUtilization(
        base.state, base.slots, base.cards, sees_processes=sees_processes
    )
    base.registry.register(
        ContainerCollector(base.config.node_name, base.state, base.slots, auditor, utilization)
    )
    return AuditParts(
        time_slicer, (time_slicer.serve, auditor.run, conditions.run, utilization.run)
    )


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the event loop make this call. To be used from the time slicer's thread."""
    with suppress(RuntimeError):  # the loop has ended before the thread
        loop.call_soon_threadsafe(call)
