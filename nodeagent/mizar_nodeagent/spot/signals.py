"""Signals to all processes of a borrower's containers, by their cgroups."""

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


def signal_all(borrower: Borrower, number: int, proc: Path = PROC) -> int:
    """Send a signal to each process that runs, but for containers that are known to have no card;
    a notice to those only that handle it, since it ends all others, such as a shell's children.
    Returns how many there were, also of those that have ended meanwhile. Raises PermissionError.
    """
    found = pids(borrower, proc)
    for pid in found:
        if number != NOTICE or container_processes.handles(pid, number, proc):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    return len(found)


def pids(borrower: Borrower, proc: Path = PROC) -> frozenset[int]:
    """The processes of the borrower's containers that run, by PID on the node: of those that are
    known to have a card, all; of what is not known, as a container that has just started, all but
    the pod's sandbox."""
    return frozenset(
        one.pid
        for one in container_processes.of_pods(borrower.uids, proc)
        if one.container_id not in borrower.spared
        if one.container_id in borrower.ended or not container_processes.is_sandbox(one, proc)
    )
