"""Builds the shim and its test programs once, and runs programs under it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_S

from .slot import BUILD, FOREIGN, MIB, ROOT, Card, Slot, card_uuid, emulated, load_layout


@pytest.fixture(scope="session")
def layout() -> dict[str, Any]:
    if not FOREIGN and "MIZAR_SHIM_IS_BUILT" not in os.environ:
        subprocess.run(["make", "-s", "-C", ROOT / "shim", "-j2", "tests"], check=True)
    return load_layout()


@pytest.fixture
def slot(tmp_path: Path, layout: dict[str, Any]) -> Slot:
    """64 MiB on card 0 and 32 MiB on card 1."""
    made = Slot(tmp_path / "slot", layout)
    made.set_limits(Card(card_uuid(0), 64 * MIB), Card(card_uuid(1), 32 * MIB))
    return made


@pytest.fixture
def env(slot: Slot) -> dict[str, str]:
    return shim_env(slot.path)


def shim_env(directory: Path, driver: str = "fake") -> dict[str, str]:
    """The environment of a container's process, with the slot in `directory`."""
    return {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
        "LD_LIBRARY_PATH": f"{BUILD / 'tests' / driver}:{BUILD / 'tests' / 'fake'}",
        "MIZAR_DIR": str(directory),
        "FAKE_DEVICES": "4",
    }


def run(
    program: str, *arguments: str, env: dict[str, str], timeout: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """Runs one of the test programs, which must end well."""
    command, env = emulated([BUILD / "tests" / program, *arguments], env)
    done = subprocess.run(command, env=env, timeout=timeout, capture_output=True, text=True)
    assert done.returncode == 0, f"{program} {arguments}: {done.stderr}"
    return done
