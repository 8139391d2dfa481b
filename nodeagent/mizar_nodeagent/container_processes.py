"""The processes of the node's containers, as its /proc tells: the container of each, and its PID
there."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_nodeagent.regions.usage_snapshot import ProcessKey

PROC: Final = Path("/proc")

# .../kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope, or .../pod<uid>/<id>.
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_SANDBOX: Final = "pause"
_SANDBOX_KIB: Final = 64 << 10
"""Most KiB of address space that a sandbox has: about one MiB is usual, while a process that uses a
card reserves GiB."""
_START_TIME: Final = 22 - 3  # of the fields behind the name, which ends with the last ")"


@dataclass(frozen=True)
class ContainerProcess:
    """`pid`: on the node. `key`: by which its own container's usage file knows it."""

    pid: int
    name: str
    key: ProcessKey
    pod_uid: str
    container_id: str


@dataclass(frozen=True)
class PodProcess:
    """`pid`: on the node. `container_id`: at the runtime, empty where its cgroup has none."""

    pid: int
    name: str
    container_id: str


def of_containers(pids: Iterable[int], proc: Path = PROC) -> dict[int, ContainerProcess]:
    """Those of the processes that run in a pod's container, by PID on the node."""
    found = (_read(proc / str(pid), pid) for pid in pids)
    return {one.pid: one for one in found if one is not None}


def of_node(pids: Iterable[int], proc: Path = PROC) -> set[int]:
    """Those of the processes that run, and in no pod."""
    return {pid for pid in pids if _is_of_node(proc / str(pid))}


def of_pods(uids: Collection[str], proc: Path = PROC) -> list[PodProcess]:
    """All processes of these pods that run, by the whole of /proc."""
    found = (_of_pod(Path(entry), uids) for entry in os.scandir(proc) if entry.name.isdigit())
    return [one for one in found if one is not None]


def is_sandbox(one: PodProcess, proc: Path = PROC) -> bool:
    """Whether it is the one of a pod's sandbox: that holds no card, and without it the pod starts
    anew. The name alone says nothing, since any process can take it: a sandbox's is the first of a
    PID namespace, too small to use a card, and runs the program of that name. Only a process that
    may trace it can see which program it runs; otherwise the rest decides."""
    folder = proc / str(one.pid)
    try:
        return one.name == _SANDBOX and _is_first_and_small(folder) and _runs_it(folder)
    except (OSError, LookupError, ValueError):
        return False  # it has ended


def handles(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether the process has installed a handler for the signal."""
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
    """What a file of /proc says, with whatever bytes are in a name there. Much faster than
    Path.read_text, and audits read several files of each process."""
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
        name = _text(folder / "comm").rstrip("\n")
    except OSError:
        return None  # it has ended
    return PodProcess(int(folder.name), name, container[1] if container else "")


def _runs(folder: Path) -> bool:
    """Whether it holds anything: a zombie doesn't."""
    return (folder / "stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")


def _read(folder: Path, pid: int) -> ContainerProcess | None:
    try:
        pod = container = None
        for line in _text(folder / "cgroup").splitlines():
            pod = pod or _POD.search(line)
            container = container or _CONTAINER.search(line)
        if pod is None or container is None:
            return None
        # A name may be any bytes, also spaces and brackets.
        stat = _text(folder / "stat")
        started = _start_time(stat)
        inner = _inner_pid(_status(folder))
    except (OSError, ValueError, IndexError):
        return None  # it has ended
    name = stat.partition("(")[2].rpartition(")")[0]
    uid = pod[1].replace("_", "-")
    return ContainerProcess(pid, name, (inner or pid, started), uid, container[1])


def _start_time(stat: str) -> int:
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def _inner_pid(status: str) -> int:
    """Its PID in the innermost namespace, the last of NSpid."""
    return int(_field(status, "NSpid").split()[-1])
