"""Loads the driver's libraries if the agent's own loader does not find them: they are below a
separate folder, where a driver container installs them, or on a node whose container runtime gives
the agent none."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from mizar_nodeagent.errors import CardsUnknown

NVML: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/local/nvidia/lib64",
)
"""Folders below the root in which distributions have a driver's libraries."""
LIBRARIES: Final = ("libcuda.so*", "libnvidia-*.so*")
SEARCHED: Final = "LD_LIBRARY_PATH"
LINKS_MAX: Final = 40
"""Most symbolic links that are followed for one file, as many as the kernel follows."""


def load_driver(root: Path, nodes_root: Path | None = None) -> None:
    """Load NVML from below `root`, and have child processes find CUDA there. If `root` is /, the
    loader's own search comes first, and then `nodes_root`, where the node's root is mounted if it
    is. Raises CardsUnknown if NVML is not there, since a driver container may install it later."""
    setting = "driverRoot"
    if root == Path("/"):
        if nodes_root is None or _loads():
            return  # the loader finds NVML by itself
        root, setting = nodes_root, "the node's root"
    found = next(filter(None, (_below(root, Path(one, NVML)) for one in FOLDERS)), None)
    if found is None:
        raise CardsUnknown(
            f"there is no {NVML} below {setting} {root}: is the driver installed there, and is "
            "the folder mounted into the agent's pod?"
        )
    try:
        # From now on, opening NVML by its name yields the library that is loaded here.
        ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CardsUnknown(
            f"{found} cannot be loaded, perhaps since the driver is being installed: {error}"
        ) from error
    _link_libraries(root)
    paths = [str(_links()), *filter(None, os.environ.get(SEARCHED, "").split(":"))]
    os.environ[SEARCHED] = ":".join(dict.fromkeys(paths))


def _loads() -> bool:
    try:
        ctypes.CDLL(NVML, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, which is removed when the program ends."""
    return tempfile.TemporaryDirectory(prefix="driver-")


def _links() -> Path:
    """A folder for links to the driver's libraries and no others: beside these are the node's libc
    and more, with which no program of the agent's image can start."""
    return Path(_folder().name)


def _link_libraries(root: Path) -> None:
    for inside in _libraries(root):
        link, path = _links() / inside.name, root / inside
        # If possible, link to the name that stays when a driver container installs another version.
        target = path if path.exists() else _below(root, inside)
        if target and not link.is_symlink():
            link.symlink_to(target)


def _libraries(root: Path) -> Iterator[Path]:
    """The paths of the driver's libraries, relative to the root."""
    for folder in FOLDERS:
        for pattern in LIBRARIES:
            yield from (path.relative_to(root) for path in sorted((root / folder).glob(pattern)))


def _below(root: Path, inside: Path) -> Path | None:
    """The file at the path `inside` below the root, with symbolic links resolved; None if there is
    none. Links to absolute paths, as Debian makes them, are taken relative to the root."""
    done, left = root, list(inside.parts)
    links = 0
    while left:
        name = left.pop(0)
        if name == "..":
            done = done if done == root else done.parent
            continue
        if not (step := done / name).is_symlink():
            done = step
            continue
        if (links := links + 1) > LINKS_MAX:
            return None
        target = step.readlink()
        done = root if target.is_absolute() else done
        left = [*target.parts[target.is_absolute() :], *left]
    return done if done.exists() else None
