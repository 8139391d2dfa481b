"""The processes of the node's containers, as its /proc tells: the container of each, and its PID
there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_nodeagent.regions.usage_snapshot import ProcessKey

PROC: Final = Path("/proc")

# .../kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope, or .../pod<uid>/<id>.
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})\b")
_CONTAINER: Final = re.compile(r"([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_START_TIME: Final = 22 - 3  # of the fields behind the name, which ends with the last ")"


@dataclass(frozen=True)
class ContainerProcess:
    """`pid`: on the node. `key`: by which its own container's usage file knows it."""

    pid: int
    name: str
    key: ProcessKey
    pod_uid: str
    container_id: str


def of_containers(pids: Iterable[int], proc: Path = PROC) -> dict[int, ContainerProcess]:
    """Those of the processes that run in a pod's container, by PID on the node."""
    found = (_read(proc / str(pid), pid) for pid in pids)
    return {one.pid: one for one in found if one is not None}


def _read(folder: Path, pid: int) -> ContainerProcess | None:
    try:
        pod = container = None
        for line in (folder / "cgroup").read_text().splitlines():
            pod = pod or _POD.search(line)
            container = container or _CONTAINER.search(line)
        if pod is None or container is None:
            return None
        # A name may be any bytes, also spaces and brackets.
        stat = (folder / "stat").read_bytes().decode(errors="replace")
        started = _start_time(stat)
        inner = _inner_pid((folder / "status").read_bytes().decode(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None  # it has ended
    name = stat.partition("(")[2].rpartition(")")[0]
    uid = pod[1].replace("_", "-")
    return ContainerProcess(pid, name, (inner or pid, started), uid, container[1])


def _start_time(stat: str) -> int:
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def _inner_pid(status: str) -> int:
    """Its PID in the innermost namespace, the last of NSpid."""
    lines = (line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(next(lines, "NSpid: 0").split()[-1])
