"""The mounts that make a node: what it writes goes into its own folder, not to the host's.

/var and /run are the node's own, /etc is the host's under a layer for changes, /proc shows the
node's processes, and sysctls that belong to the whole machine are covered by files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.layout import NodeLayout
from cluster.processes import Mount

MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 0x1000, 0x4000, 1 << 18, 1 << 20

# What the kubelet sets on a machine: it finds the value it wants and leaves the kernel alone.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_VAR_FOLDERS = ("lib/kubelet", "lib/cni", "lib/mizar", "log/pods", "tmp")


def prepare(node: NodeLayout) -> None:
    """Fill the folders that the mounts are made from."""
    for folder in _VAR_FOLDERS:
        (node.var / folder).mkdir(parents=True)
    (node.var / "tmp").chmod(0o1777)
    (node.var / "run").symlink_to("/run")
    (node.var / "lock").symlink_to("/run/lock")
    for name, value in SYSCTLS.items():
        file = node.sysctls / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")


def plan(node: NodeLayout, visible: Iterable[Path]) -> list[Mount]:
    """The mounts of a node, in order; `visible` are host folders it must see at their own path.

    Makes the folders that it mounts on; all of them are the node's own.
    """
    # /var last: with it, the paths of our sources lead to a copy of the tree without mounts in it.
    own = {Path("/run"): node.run, Path("/var"): node.var}
    return [
        ("none", "/", "", MS_PRIVATE | MS_REC, ""),
        ("proc", "/proc", "proc", 0, ""),
        *(_bind(path, _made(place)) for path, place in covered(own, visible).items()),
        _bind(node.simgpu, _made(node.run / "simgpu")),
        *(_bind(source, target, MS_REC) for target, source in own.items()),
        _overlay(node),
        *(_bind(node.sysctls / name, Path("/proc/sys") / name) for name in existing_sysctls()),
        ("none", "/", "", MS_SHARED | MS_REC, ""),
    ]


def covered(own: dict[Path, Path], visible: Iterable[Path]) -> dict[Path, Path]:
    """The `visible` folders that the node's own ones would hide, and where to mount them."""
    places = {}
    for path in sorted({path.resolve() for path in visible}):
        for target, source in own.items():
            if path.is_relative_to(target):
                places[path] = source / path.relative_to(target)
    return places


def existing_sysctls() -> list[str]:
    """The sysctls to cover that this kernel has."""
    return [name for name in SYSCTLS if (Path("/proc/sys") / name).exists()]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bind(source: Path, target: Path, flags: int = 0) -> Mount:
    return (str(source), str(target), "", MS_BIND | flags, "")


def _overlay(node: NodeLayout) -> Mount:
    layers = f"lowerdir=/etc,upperdir={node.etc_changes},workdir={node.etc_work}"
    return ("overlay", "/etc", "overlay", 0, layers)
