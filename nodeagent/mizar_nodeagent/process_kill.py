"""Kills a process of a container, and not another process that has its PID by now."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from mizar_nodeagent import container_processes
from mizar_nodeagent.container_processes import ContainerProcess


@dataclass(frozen=True)
class KillResult:
    """`killed`: whether the process was sent SIGKILL. `problem`: why it was not; empty if it was or
    had ended before."""

    killed: bool
    problem: str = ""


def try_kill(process: ContainerProcess, proc: Path = container_processes.PROC) -> KillResult:
    """Kill this very process if it still runs and if that is permitted."""
    try:
        kill(process, proc)
    except ProcessLookupError:
        return KillResult(killed=False)
    except OSError as error:
        return KillResult(killed=False, problem=str(error))
    return KillResult(killed=True)


def kill(process: ContainerProcess, proc: Path = container_processes.PROC) -> None:
    """Kill this very process. Raises ProcessLookupError if it has ended, and OSError."""
    descriptor = os.pidfd_open(process.pid)
    try:
        # The descriptor refers to the process that has the PID now, whatever happens to the PID.
        now = container_processes.of_containers([process.pid], proc).get(process.pid)
        if now is None or (now.key, now.container_id) != (process.key, process.container_id):
            raise ProcessLookupError
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
