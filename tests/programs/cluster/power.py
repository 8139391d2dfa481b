"""Switches a local node's power off and on.

Off, the node loses every process, what containers and kubelet had mounted, /run except for what the
machine itself put there (its cards), the cgroups, and the ID of the boot as the node's own programs
read it. Unlike on a real machine, the network's interfaces and rules stay. On starts its programs
again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

from cluster import cgroups
from cluster.errors import ClusterError
from cluster.node import LocalNode
from cluster.state import BOOT_ID
from cluster.waiting import wait_until

_MOUNTED_BY_PROGRAMS = (
    "/run/containerd/",
    "/run/containers/",
    "/run/crio/",
    "/run/netns/",
    "/var/lib/containers/",
    "/var/lib/kubelet/",
)


def off(node: LocalNode) -> None:
    """End all of the node's programs at once; they have ended on return. Raises ClusterError for
    the first node, which has the control plane."""
    if node.number == 1:
        raise ClusterError(f"{node.name} has the cluster's control plane: take another node")
    root = node.public().root
    node.run(["sh", "-c", "kill -KILL -1"])
    wait_until(f"the end of {node.name}", lambda: _is_alone(root), node.processes, [])
    lost = [one for one in _mounts(root) if one.startswith(_MOUNTED_BY_PROGRAMS)]
    if lost:
        node.run(["umount", "--lazy", *reversed(lost)])
    _empty_run(root)
    cgroups.renew(node.layout.name, node.name)
    _change_boot_id(node, root)


def on(node: LocalNode) -> None:
    """Start its programs; the kubelet is healthy on return. NVIDIA's device plugin or DRA driver
    is the last, as where it is a pod that the kubelet starts."""
    node.start_containerd()
    node.wait_for_containerd()
    node.start_kube_proxy()
    node.start_kubelet()
    node.wait_for_kubelet()
    if node.spec.cards:
        node.start_allocator()


def _is_alone(root: Path) -> bool:
    """Whether only the process that keeps the node's namespaces is left."""
    return [one.name for one in (root / "proc").iterdir() if one.name.isdigit()] == ["1"]


def _mounts(root: Path) -> list[str]:
    """Where anything is mounted, in the order in which it was."""
    lines = (root / "proc/1/mounts").read_text().splitlines()
    return [line.split()[1].encode().decode("unicode_escape") for line in lines]


def _empty_run(root: Path) -> None:
    kept = {one.split("/")[2] for one in _mounts(root) if one.startswith("/run/")}
    for path in (root / "run").iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _change_boot_id(node: LocalNode, root: Path) -> None:
    """By a file over the kernel's. Containers have a /proc of their own, which shows the real
    one."""
    file = node.files.sysctls / "boot_id"
    file.write_text(f"{uuid4()}\n")
    if str(BOOT_ID) not in _mounts(root):
        node.run(["mount", "--bind", str(file), str(BOOT_ID)])
