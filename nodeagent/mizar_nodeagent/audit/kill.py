"""Kills a process that uses a card past its container's limits. processes_without_shim.py decides
which ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mizar_nodeagent import container_processes, process_kill
from mizar_nodeagent.container_processes import ContainerProcess

CAP_KILL: Final = 5
"""Number of the Linux capability CAP_KILL, with which a program may kill the processes of other
users."""


def may_kill_others(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this program may kill processes of other users."""
    lines = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
    return bool(int(lines["CapEff"], 16) >> CAP_KILL & 1)


def kill(process: ContainerProcess, proc: Path = container_processes.PROC) -> str:
    """Kill this very process, and not another that has its PID by now. Returns the outcome as a
    clause for an event, also if the process cannot be killed."""
    result = process_kill.try_kill(process, proc)
    if result.problem:
        remedy = "the node agent may need nodeagent.mayKill of the chart"
        return f"it cannot be killed: {result.problem}; {remedy}"
    if not result.killed:
        return "it has ended"
    return "it is killed, since isolation.enforcement is Strict"
