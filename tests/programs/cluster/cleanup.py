"""Removes a cluster, also one of which only parts are left because a command was killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

from cluster import cgroups, state
from cluster.binaries.progress import Progress
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.processes import Process, Processes, marked, wait_gone

LIMIT = 240.0


def remove(layout: Layout, progress: Progress) -> bool:
    """End the cluster's processes and remove its cgroups and files; False if there were none.

    Idempotent: it can be run again after it was interrupted. The caller holds the lock.
    """
    if not leftovers(layout):
        return False
    with progress.step(f"removing cluster {layout.name}"):
        end_processes(layout)
        cgroups.remove(layout.name)
        remove_files(layout)
    return True


def leftovers(layout: Layout) -> list[str]:
    """The parts of the cluster that exist, as phrases for a message."""
    found = [str(path) for path in (layout.dir, *cgroups.existing(layout.name)) if path.exists()]
    return found + [f"process {process.pid}" for process in marked(layout)]


def end_processes(layout: Layout) -> None:
    """Kill the cluster's processes and wait until they have ended.

    When a node's first process ends, the kernel kills all others of the node, also those of
    containers. This is repeated until there are none, since a process may have been starting
    another.
    """
    deadline = time.monotonic() + LIMIT
    while living := _living(layout):
        for process in living:
            process.signal(signal.SIGKILL)
        if not wait_gone(living, max(0.0, deadline - time.monotonic())):
            names = ", ".join(str(process.pid) for process in living if process.alive())
            raise ClusterError(f"these processes were killed and do not end: {names}")


def _living(layout: Layout) -> list[Process]:
    recorded = Processes(layout).all() if _same_boot(layout) else {}
    holders = [one for name, one in recorded.items() if state.is_holder(name)]
    others = [one for one in recorded.values() if one not in holders]
    found = [*holders, *others, *marked(layout)]
    return [one for one in dict.fromkeys(found) if one.alive()]


def _same_boot(layout: Layout) -> bool:
    known = state.read(layout)
    return known is not None and known.boot == state.current_boot()


def remove_files(layout: Layout) -> None:
    """Remove the cluster's folder, and the folder of all clusters if it was the last."""
    deadline = time.monotonic() + LIMIT
    while layout.dir.exists():
        complaint = _remove_tree(layout.dir)
        if complaint and time.monotonic() > deadline:
            raise ClusterError(f"cannot remove {layout.dir}: {complaint}")
    with contextlib.suppress(OSError):  # other clusters may be in it
        layout.root.rmdir()


def _remove_tree(folder: Path) -> str:
    """What `rm` had to complain about; ten times as quick as Python on nodes' image layers.

    It keeps to one file system: should something be mounted in there, that stays as it is.
    """
    done = subprocess.run(
        ["rm", "--recursive", "--force", "--one-file-system", "--", str(folder)],
        capture_output=True,
        text=True,
        start_new_session=True,  # Ctrl-C is for us to heed
        timeout=LIMIT,
        check=False,
    )
    return done.stderr.strip()
