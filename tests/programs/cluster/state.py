"""Keeps a cluster's state on disk, and lets one command at a time change it."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.errors import AlreadyUp, SpecError
from cluster.layout import Layout
from cluster.processes import Processes
from cluster.spec import ClusterSpec

_HOLDER = "-holder"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class State:
    """The contents of cluster.json; `ready` is set when `up` has done its work.

    `binaries` is the folder of the cluster's programs.
    """

    spec: ClusterSpec
    boot: str
    binaries: Path
    ready: bool = False


def current_boot() -> str:
    """The ID of this boot: process IDs and start times are not valid in another."""
    return BOOT_ID.read_text().strip()


def read(layout: Layout) -> State | None:
    """The state, or None when there is none that can be read."""
    try:
        data = json.loads(layout.state_file.read_text())
        spec, binaries = ClusterSpec(**data["spec"]), Path(data["binaries"])
        return State(spec, data["boot"], binaries, data["ready"])
    except (OSError, ValueError, KeyError, TypeError, SpecError):
        return None


def write(layout: Layout, state: State) -> None:
    """Replace the state as a whole."""
    data = {
        "spec": asdict(state.spec),
        "boot": state.boot,
        "binaries": str(state.binaries),
        "ready": state.ready,
    }
    new = layout.state_file.with_suffix(".new")
    new.write_text(json.dumps(data, indent=2) + "\n")
    new.rename(layout.state_file)


def holder_name(node: str) -> str:
    """The name of the process that keeps a node's namespaces."""
    return f"{node}{_HOLDER}"


def is_holder(process: str) -> bool:
    """Whether a process of this name keeps a node's namespaces."""
    return process.endswith(_HOLDER)


def is_up(layout: Layout) -> bool:
    """Whether the cluster was made completely, in this boot, and its nodes still exist."""
    state = read(layout)
    if state is None or not state.ready or state.boot != current_boot():
        return False
    processes = Processes(layout)
    holders = [processes.get(holder_name(node)) for node in state.spec.node_names()]
    return all(holder is not None and holder.alive() for holder in holders)


def names(root: Path) -> list[str]:
    """The names of all clusters that have left anything in `root`."""
    return sorted(one.name for one in root.iterdir() if one.is_dir()) if root.is_dir() else []


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Prevent others from making or removing this cluster.

    The lock is a socket without a file, so that nothing is left behind however this process ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(_lock(layout))
        except OSError as error:
            raise AlreadyUp(
                f"cluster {layout.name} is being made or removed by another process: "
                "wait for it, or end it and run `python -m cluster down`"
            ) from error
        lock.listen()
        yield


def is_locked(layout: Layout) -> bool:
    """Whether a command is making or removing this cluster now."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        return caller.connect_ex(_lock(layout)) in (0, errno.EAGAIN)  # or many have asked


def _lock(layout: Layout) -> str:
    return f"\0{layout.dir}"
