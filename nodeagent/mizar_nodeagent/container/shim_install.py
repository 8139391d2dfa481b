"""Installs the shim on the node, one file per version; each container gets its own copy."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from mizar_nodeagent.errors import ConfigRefused
from mizar_nodeagent.files import read_promptly, write_atomically

IN_CONTAINER = "/run/mizar/libmizar.so"
"""Path of the shim in a container."""
PRELOAD_IN_CONTAINER = "/etc/ld.so.preload"
"""The file from which the dynamic loader reads which libraries to load into every program."""
PRELOAD = f"{IN_CONTAINER}\n".encode()
"""Content of the ld.so.preload that loads the shim."""


@dataclass(frozen=True)
class Shim:
    """The shim that is installed on the node. `library`: its path there."""

    library: Path

    def copy_library(self, target: Path) -> None:
        """Copy the library for one container, readable by any user in it. After an error there is
        no partial copy. Raises OSError."""
        part = target.with_suffix(".part")
        try:
            shutil.copyfile(self.library, part)
            part.chmod(0o755)
            part.replace(target)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def is_cut_off(self, copy: Path) -> bool:
        """Whether the file is empty, or only the beginning of the library: no more than that is
        left after a power cut if the kernel had not written the copy to the disk yet. Raises
        OSError."""
        size = copy.stat().st_size
        if size >= self.library.stat().st_size:
            return False
        with self.library.open("rb") as whole:
            return whole.read(size) == read_promptly(copy)

    def copy_preload(self, target: Path) -> None:
        """Write the ld.so.preload that loads the shim, for one container. Raises OSError."""
        target.write_bytes(PRELOAD)
        target.chmod(0o644)


def install(source: Path, state_dir: Path) -> Shim:
    """Copy the shim out of the agent's image into the state folder. Raises ConfigRefused if the
    image has none."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise ConfigRefused(
            f"the shim cannot be read ({error}): set shimPath to libmizar.so"
        ) from error
    folder = state_dir / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()[:12]
    shim = Shim(folder / f"libmizar-{digest}.so")
    _put(shim.library, content, 0o755)
    return shim


def mount_remark(state_dir: Path) -> str:
    """A sentence that says which containers may be unable to load the shim from `state_dir`; empty
    if all can. runc mounts the shim read-only into a container, which takes noexec away, but not in
    a user namespace: there the dynamic loader prints one line, and the program runs without the
    shim."""
    if not os.statvfs(state_dir).f_flag & os.ST_NOEXEC:
        return ""
    return (
        f"stateDir {state_dir} is on a mount with noexec, so share pods in a user namespace "
        "(hostUsers: false), and all under a container runtime that keeps noexec, do not start or "
        "run without limits: set nodeagent.stateDir of the chart to a folder on a mount without "
        "noexec, or mount one there"
    )


def remove_old(shim: Shim, mounted: Container[str]) -> list[Path]:
    """Remove what earlier agents installed and no container mounts (`mounted`: host paths): their
    libraries, and the ld.so.preload that containers shared in earlier versions. Since each
    container has its own copies today, usually nothing of it is mounted. Returns the removed paths.
    Raises OSError."""
    folder = shim.library.parent
    old = [
        path
        for path in (*sorted(folder.glob("libmizar-*.so")), *folder.glob("ld.so.preload"))
        if path != shim.library and str(path) not in mounted
    ]
    for path in old:
        path.unlink(missing_ok=True)
    return old


def _put(path: Path, content: bytes, mode: int) -> None:
    """Write the file, unless it has this content already: containers may have it mounted."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content, mode)
