"""The cluster's cgroups: a folder per node, in every hierarchy the machine has.

Each kubelet gets a root of its own: with one root in common, kubelets (of another cluster too)
would take each other's pods for orphans and end them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

CLUSTER_PREFIX = "mizar-cluster-"


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy; `unified` says cgroup v2."""

    mountpoint: Path
    unified: bool


def hierarchies(mountinfo: str | None = None) -> list[Hierarchy]:
    """The cgroup hierarchies of this machine, from the text of /proc/self/mountinfo."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    found: dict[Path, Hierarchy] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        kind, mountpoint = right.split()[0], Path(left.split()[4])
        if kind in ("cgroup", "cgroup2") and mountpoint.is_relative_to("/sys/fs/cgroup"):
            found[mountpoint] = Hierarchy(mountpoint, unified=kind == "cgroup2")
    return list(found.values())


def uses_v1(found: Iterable[Hierarchy]) -> bool:
    """Whether controllers are in cgroup v1 hierarchies (also when a v2 one is mounted beside)."""
    return any(not hierarchy.unified for hierarchy in found)


def cluster_root(cluster: str) -> str:
    """The cluster's cgroup, in each hierarchy; all of its nodes' cgroups are inside."""
    return f"/{CLUSTER_PREFIX}{cluster}"


def node_root(cluster: str, node: str) -> str:
    """The kubelet's cgroupRoot."""
    return f"{cluster_root(cluster)}/{node}"


def create(cluster: str, nodes: Iterable[str]) -> None:
    """Make the cgroups of a cluster and its nodes."""
    found = hierarchies()
    if not found:
        raise ClusterError("no cgroup hierarchy is mounted under /sys/fs/cgroup")
    v1 = uses_v1(found)
    for hierarchy in found:
        if v1 and hierarchy.unified:
            continue  # a hybrid machine: the controllers are in the others
        for node in nodes:
            _create(hierarchy, [cluster_root(cluster), node_root(cluster, node)])


def _create(hierarchy: Hierarchy, paths: list[str]) -> None:
    for path in paths:
        folder = hierarchy.mountpoint / path.lstrip("/")
        if hierarchy.unified:
            _pass_down_controllers(folder.parent)
        folder.mkdir(exist_ok=True)
        _fill_cpuset(folder)


def _pass_down_controllers(folder: Path) -> None:
    for controller in (folder / "cgroup.controllers").read_text().split():
        _try_write(folder / "cgroup.subtree_control", f"+{controller}")


def _try_write(file: Path, text: str) -> None:
    # A controller may not be had here; the kubelet names those it cannot do without.
    with contextlib.suppress(OSError):
        file.write_text(text)


def _fill_cpuset(folder: Path) -> None:
    """A new cpuset of cgroup v1 is empty, and nothing can run in it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and not file.read_text().strip():
            _try_write(file, (folder.parent / name).read_text())


def existing(cluster: str) -> list[Path]:
    """The cluster's cgroup folders that exist, at most one in each hierarchy."""
    return _folders(cluster_root(cluster))


def _folders(cgroup: str) -> list[Path]:
    folders = [one.mountpoint / cgroup.lstrip("/") for one in hierarchies()]
    return [folder for folder in folders if folder.is_dir()]


def renew(cluster: str, node: str) -> None:
    """Replace the node's cgroups by empty ones; its processes must have ended."""
    _remove(_folders(node_root(cluster, node)))
    create(cluster, [node])


def remove(cluster: str) -> None:
    """Remove all of the cluster's cgroups; its processes must have ended."""
    _remove(existing(cluster))


def _remove(tops: Iterable[Path], limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    for top in tops:
        while not _remove_tree(top):
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroup {top} still has processes in it")
            time.sleep(0.05)


def _remove_tree(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            Path(folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False  # the kernel has not let go of the last process yet
    return not top.exists()
