"""The driver's libraries where the driver is installed below a separate folder, as a driver
container does it."""

from __future__ import annotations

import ctypes
import os
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
"""Where distributions have a driver's libraries."""
SEARCHED: Final = "LD_LIBRARY_PATH"


def load_driver(root: Path) -> None:
    """Load NVML from there, and have child processes find CUDA there. Raises CardsUnknown: a driver
    container may install it later."""
    if root == Path("/"):
        return  # the loader knows where it is
    folder = next((root / one for one in FOLDERS if (root / one / NVML).exists()), None)
    if folder is None:
        raise CardsUnknown(
            f"there is no {NVML} below driverRoot {root}: is the driver installed there, and is "
            "the folder mounted into the agent's pod?"
        )
    try:
        # From now on, opening it by its name yields the one that is loaded.
        ctypes.CDLL(str(folder / NVML), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CardsUnknown(
            f"{folder / NVML} cannot be loaded, perhaps since the driver is being installed: "
            f"{error}"
        ) from error
    paths = [str(folder), *filter(None, os.environ.get(SEARCHED, "").split(":"))]
    os.environ[SEARCHED] = ":".join(dict.fromkeys(paths))
