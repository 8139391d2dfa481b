"""A real card, or a reason why there is none."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.waiting import PATIENCE_S
from unit.shim.slot import BUILD, MIB, ROOT, Card, Slot, load_layout

Ask = Callable[..., list[list[str]]]


def _why_not() -> str:
    """Why there is no card to ask; empty if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs a machine with an NVIDIA card: there is no libcuda.so.1"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "needs a machine with an NVIDIA card: its driver finds none"
    return ""


@pytest.fixture(scope="session", autouse=True)
def card() -> str:
    """The UUID of the first card. Skips where there is none."""
    if why := _why_not():
        pytest.skip(why)
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "-j2", "tests"], check=True)
    driver, raw = ctypes.CDLL("libcuda.so.1"), (ctypes.c_ubyte * 16)()
    assert driver.cuDeviceGetUuid_v2(raw, 0) == 0
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def command(*arguments: str) -> list[str]:
    return [str(BUILD / "tests" / "questions"), *arguments]


def answers(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def ask() -> Ask:
    """Runs questions.c; its answers, a list of words for each line."""

    def run(*arguments: str, **env: str) -> list[list[str]]:
        done = subprocess.run(
            command(*arguments),
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return answers(done.stdout)

    return run


@pytest.fixture
def slot(card: str, tmp_path: Path) -> Slot:
    """A container with 4 GiB of the card, whose time is metered."""
    made = Slot(tmp_path / "slot", load_layout())
    made.set_limits(Card(card, 4096 * MIB, compute_mode=1))
    return made


@pytest.fixture
def limited(slot: Slot) -> dict[str, str]:
    """The environment of a process of that container."""
    return {
        "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
        "MIZAR_DIR": str(slot.path),
        "CUDA_MODULE_LOADING": "EAGER",  # no agent here asks NVML for code that is loaded later
    }
