"""Scheduling priority for the measured processes, so that other programs on the machine disturb
them as little as possible."""

import os
from contextlib import suppress
from pathlib import Path

from cluster import cgroups

NICE, GROUP_NICE = -15, -20
WEIGHTS = {"cpu.shares": 16 * 1024, "cpu.weight": 16 * 100}
"""CPU weight of a cluster's pods, in cgroup v1 and v2: sixteen times the default."""


def give_precedence(pid: int) -> None:
    """Give a process priority over others, where that is allowed. It should be in a session of its
    own: Linux divides processors among sessions first (autogroups), and then within each."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(GROUP_NICE))


def give_pods_precedence(cluster: str) -> None:
    """Give all pods of a local cluster priority over this machine's other programs. Among each
    other, they keep theirs."""
    for folder in cgroups.existing(cluster):
        for name, weight in WEIGHTS.items():
            if (file := folder / name).exists():
                file.write_text(str(weight))
