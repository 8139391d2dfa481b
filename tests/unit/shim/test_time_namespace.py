"""Windows are in terms of the node's clock, which a container's time namespace may shift."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from .slot import BUILD

NOW = """
import ctypes, sys
clock_now = ctypes.CDLL(sys.argv[1]).clock_now
clock_now.restype = ctypes.c_uint64
print(clock_now())
"""
AHEAD_S = 1000
NEAR_S = 100
"""Seconds that the start of a program may take."""


@pytest.mark.parametrize(
    "ahead", [AHEAD_S, -time.monotonic() // 2, None], ids=["ahead", "behind", "not shifted"]
)
def test_time_is_the_nodes(ahead: float | None, layout: dict[str, Any]) -> None:
    unshare = ["unshare", "--fork", "--time", f"--monotonic={ahead:.0f}"] if ahead else []
    if unshare and os.geteuid() != 0:
        unshare.append("--map-root-user")
    library = str(BUILD / "tests" / "libpure.so")
    command = [*unshare, sys.executable, "-c", NOW, library]
    began = time.monotonic()
    now = int(subprocess.check_output(command)) / 1e9
    assert began <= now <= began + NEAR_S
