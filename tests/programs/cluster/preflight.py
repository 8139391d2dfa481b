"""Checks that the machine has what a local cluster needs, before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster import cgroups
from cluster.errors import ClusterError

# Program -> the Debian package that has it.
TOOLS = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux", "cc": "gcc libc6-dev"}
# inotify instances: what was counted on running clusters, and some for pods' own programs.
WATCHERS_PER_CLUSTER, WATCHERS_PER_NODE, WATCHERS_SPARE = 11, 9, 4
WATCHER_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def check(nodes: int) -> None:
    """Raise ClusterError, saying what to do, if a cluster of so many nodes cannot work here."""
    require_root()
    require_tools(TOOLS)
    require_watchers(nodes, watchers_in_use(), int(WATCHER_LIMIT.read_text()))
    if not cgroups.hierarchies():
        raise ClusterError("no cgroup hierarchy is mounted under /sys/fs/cgroup")
    require_overlay()


def require_root() -> None:
    """Raise ClusterError unless run by root."""
    if os.geteuid() != 0:
        raise ClusterError(
            "a local cluster makes namespaces, mounts and cgroups: run this as root (with sudo)"
        )


def require_tools(tools: dict[str, str]) -> None:
    """Raise ClusterError if one of these programs is not installed."""
    missing = [tool for tool in tools if shutil.which(tool, path=_PATH) is None]
    if missing:
        packages = " ".join(tools[tool] for tool in missing)
        raise ClusterError(f"missing: {', '.join(missing)}; run `apt-get install {packages}`")


def require_overlay(filesystems: Path = Path("/proc/filesystems")) -> None:
    """Raise ClusterError if the kernel has no overlay file system, not even as a module."""
    if "overlay" in filesystems.read_text().split():
        return
    modprobe = shutil.which("modprobe", path=_PATH)
    if modprobe is None or subprocess.run([modprobe, "--quiet", "overlay"]).returncode != 0:
        raise ClusterError(
            "the kernel has no overlay file system: run `modprobe overlay` on the machine itself, "
            "or take another kernel"
        )


def require_watchers(nodes: int, used: int, limit: int) -> None:
    """Raise ClusterError if root may not have as many inotify instances as the cluster will."""
    needed = WATCHERS_PER_CLUSTER + WATCHERS_PER_NODE * nodes + WATCHERS_SPARE
    if used + needed > limit:
        raise ClusterError(
            f"a cluster of {nodes} nodes needs about {needed} inotify instances, and of the "
            f"{limit} that root may have, {used} are in use: take another cluster down, "
            "or run `sysctl fs.inotify.max_user_instances=1024`"
        )


def watchers_in_use(processes: Iterable[Path] | None = None) -> int:
    """The inotify instances that root's processes have."""
    entries = Path("/proc").glob("[0-9]*") if processes is None else processes
    return sum(_watchers(entry) for entry in entries)


def _watchers(entry: Path) -> int:
    try:
        if entry.stat().st_uid != 0:
            return 0
        links = [os.readlink(one) for one in (entry / "fd").iterdir()]  # noqa: PTH115
    except OSError:  # it has ended meanwhile
        return 0
    return links.count("anon_inode:inotify")
