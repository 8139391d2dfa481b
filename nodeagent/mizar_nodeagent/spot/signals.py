"""Sends signals to the processes of a borrower's containers, which are found by their cgroups."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from mizar_nodeagent import container_processes
from mizar_nodeagent.container_processes import PROC
from mizar_nodeagent.spot.borrowers import Borrower

NOTICE: Final = signal.SIGUSR1
"""The signal that tells a borrower that its notice period has begun."""


def signal_all(borrower: Borrower, number: int, proc: Path = PROC) -> int:
    """Send a signal to each of the processes that `pids` returns.

    NOTICE is sent only to processes that handle it, since it would end any other, such as a
    shell's children. Returns how many processes were found, including those that ended before they
    were signalled. Raises PermissionError if the agent may not signal a process.
    """
    found = pids(borrower, proc)
    for pid in found:
        if number != NOTICE or container_processes.handles(pid, number, proc):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    return len(found)


def pids(borrower: Borrower, proc: Path = PROC) -> frozenset[int]:
    """PIDs on the node of the borrower's running processes, except those of containers that are
    known to hold no card. Of containers that are not known, such as one that has just started, the
    pod's sandbox is left out."""
    return frozenset(
        one.pid
        for one in container_processes.of_pods(borrower.uids, proc)
        if one.container_id not in borrower.spared
        if one.container_id in borrower.ended or not container_processes.is_sandbox(one, proc)
    )
