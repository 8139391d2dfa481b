"""The node agent with NVIDIA's own NVML, on a machine without its kernel module."""

from __future__ import annotations

import os
import subprocess
import sys

import nvidia_driver
from nvidia_driver.facts import exported

READ = """
import asyncio
from mizar_nodeagent.nvml import Nvml
try:
    asyncio.run(Nvml().read())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_agent_says_that_there_is_no_driver(bare: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ], env={**os.environ, **bare}, capture_output=True, text=True
    )
    why = "NVML: Driver Not Loaded; is the driver installed on this node?"
    assert done.stdout == f"CardsUnknown {why}\n", done.stderr


def test_what_is_recorded_is_what_the_libraries_export(driver: nvidia_driver.Driver) -> None:
    found = {*exported(driver.libcuda), *exported(driver.libnvml)}
    assert nvidia_driver.read().exported[driver.release.number] == found
