"""Finds the processes of the node's containers in the node's /proc: the pod and container of each,
and its PID inside the container."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from mizar_nodeagent.regions.usage_snapshot import ProcessKey

PROC: Final = Path("/proc")

# .../kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope, or .../pod<uid>/<id>.
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
_MONITOR: Final = re.compile(r"(?:\.slice)?/crio-conmon-[0-9a-f]{64}(?:\.scope)?$", re.MULTILINE)
"""The cgroup, directly below the pod's, of the program by which CRI-O watches a container; CRI-O
can also have that elsewhere. Below a container's own cgroup, the name means nothing."""
_SANDBOX: Final = "pause"
_SANDBOX_KIB: Final = 64 << 10
"""Most KiB of address space that a sandbox has: about one MiB is usual, while a process that uses a
card reserves GiB."""
_START_TIME: Final = 22 - 3  # index among the fields behind the name, which ends with the last ")"


@dataclass(frozen=True)
class ContainerProcess:
    """A process of a container. `pid`: its PID on the node. `name`: its command name. `key`: its
    identity in its container's usage file. `container_id`: its container's ID at the runtime."""

    pid: int
    name: str
    key: ProcessKey
    pod_uid: str
    container_id: str


@dataclass(frozen=True)
class PodProcess:
    """A process of a pod. `pid`: its PID on the node. `name`: its command name. `container_id`: its
    container's ID at the runtime; empty if its cgroup names none."""

    pid: int
    name: str
    container_id: str


def in_nodes_namespace() -> bool:
    """Whether the agent is in the node's PID namespace, where another process is the first one. In
    a PID namespace of its own (nodeagent.hostPID: false), it is the first itself."""
    return os.getpid() != 1


def of_containers(pids: Iterable[int], proc: Path = PROC) -> dict[int, ContainerProcess]:
    """The processes among `pids` (PIDs on the node) that run in a pod's container, by that PID."""
    found = (_read(proc / str(pid), pid) for pid in pids)
    return {one.pid: one for one in found if one is not None}


def of_node(pids: Iterable[int], proc: Path = PROC) -> set[int]:
    """The PIDs among `pids` (PIDs on the node) of processes that run outside of pods."""
    return {pid for pid in pids if _is_of_node(proc / str(pid))}


def of_pods(uids: Collection[str], proc: Path = PROC) -> list[PodProcess]:
    """All running processes of the pods with these UIDs, found by searching the whole of /proc. The
    runtime's own programs are none of them."""
    found = (_of_pod(Path(entry), uids) for entry in os.scandir(proc) if entry.name.isdigit())
    return [one for one in found if one is not None]


def is_sandbox(one: PodProcess, proc: Path = PROC) -> bool:
    """Whether the process is that of a pod's sandbox, which holds no card, and without which the
    pod is started anew.

    Its name alone proves nothing, since any process can take that name. But a sandbox's process is
    also the first of its PID namespace, too small to use a card, and runs the program of that name.
    Only a process that may trace it can see which program it runs; for others, the rest decides.
    """
    folder = proc / str(one.pid)
    try:
        return one.name == _SANDBOX and _is_first_and_small(folder) and _runs_it(folder)
    except (OSError, LookupError, ValueError):
        return False  # it has ended


def parent(pid: int, proc: Path = PROC) -> int | None:
    """The PID of the parent of the process with this PID on the node; None if that has ended."""
    try:
        return int(_text(proc / str(pid) / "stat").rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def handles(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether the process with this PID on the node has installed a handler for signal `number`;
    False if the process has ended."""
    try:
        caught = int(_field(_status(proc / str(pid)), "SigCgt"), 16)
    except (OSError, ValueError):
        return False  # it has ended
    return bool(caught >> (number - 1) & 1)


def _is_first_and_small(folder: Path) -> bool:
    status = _status(folder)
    return _inner_pid(status) == 1 and int(_field(status, "VmSize").split()[0]) < _SANDBOX_KIB


def _runs_it(folder: Path) -> bool:
    try:
        return (folder / "exe").readlink().name == _SANDBOX
    except PermissionError:
        return True


def _text(path: Path) -> str:
    """The text of a file of /proc, in which names may have any bytes. Much faster than
    Path.read_text, which matters since audits read several files of each process."""
    return path.read_bytes().decode(errors="replace")


def _status(folder: Path) -> str:
    return _text(folder / "status")


def _field(status: str, name: str) -> str:
    lines = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return next(lines, f"{name}: 0").partition(":")[2]


def _is_of_node(folder: Path) -> bool:
    try:
        return _POD.search(_text(folder / "cgroup")) is None and _runs(folder)
    except OSError:
        return False


def _of_pod(folder: Path, uids: Collection[str]) -> PodProcess | None:
    try:
        cgroups = _text(folder / "cgroup")
        pod, container = _POD.search(cgroups), _CONTAINER.search(cgroups)
        if pod is None or pod[1].replace("_", "-") not in uids or not _runs(folder):
            return None
        if _MONITOR.match(cgroups, pod.end()):
            return None
        name = _text(folder / "comm").rstrip("\n")
    except OSError:
        return None  # it has ended
    return PodProcess(int(folder.name), name, container[1] if container else "")


def _runs(folder: Path) -> bool:
    """Whether the process still runs: it is neither a zombie nor dead, and so may hold memory."""
    return (folder / "stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")


def _read(folder: Path, pid: int) -> ContainerProcess | None:
    try:
        # A process's name may have any bytes, also spaces and brackets.
        stat = _text(folder / "stat")
        started = _start_time(stat)
        inner, pod_uid, container_id = _home(folder, started)
    except (OSError, ValueError, LookupError):
        return None  # it has ended, or runs in no container
    name = stat.partition("(")[2].rpartition(")")[0]
    return ContainerProcess(pid, name, (inner or pid, started), pod_uid, container_id)


@lru_cache(maxsize=4096)
def _home(folder: Path, started: int) -> tuple[int, str, str]:
    """The PID in its container of the process with that start time, its pod's UID and its
    container's ID. Cached, since audits ask for the same processes every few seconds, which never
    move to another container. Raises LookupError if it runs in none (yet), OSError, ValueError."""
    pod = container = None
    for line in _text(folder / "cgroup").splitlines():
        pod = pod or _POD.search(line)
        container = container or _CONTAINER.search(line)
    if pod is None or container is None:
        raise LookupError(f"{folder} is no process of a container, started at {started}")
    return _inner_pid(_status(folder)), pod[1].replace("_", "-"), container[1]


def _start_time(stat: str) -> int:
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def _inner_pid(status: str) -> int:
    """The process's PID in its innermost PID namespace, which is the last of NSpid."""
    return int(_field(status, "NSpid").split()[-1])
