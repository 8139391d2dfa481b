"""NVIDIA's driver libraries of each release that Debian distributes, and the shim beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import nvidia_driver
from unit.shim.slot import BUILD, MIB, Card, Slot, card_uuid, load_layout


@pytest.fixture(scope="session", params=nvidia_driver.RELEASES, ids=lambda one: str(one.number))
def driver(request: pytest.FixtureRequest) -> nvidia_driver.Driver:
    return nvidia_driver.get(request.param)


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    """A container's slot: 4 GiB of a card that no test here has."""
    made = Slot(tmp_path / "slot", load_layout())
    made.set_limits(Card(card_uuid(0), 4096 * MIB, compute_mode=1))
    return made


@pytest.fixture
def bare(driver: nvidia_driver.Driver) -> dict[str, str]:
    """The environment of a process that finds the driver's libraries."""
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(driver.folder)}


@pytest.fixture
def shimmed(bare: dict[str, str], slot: Slot) -> dict[str, str]:
    """The same in a share container."""
    shim = BUILD / "testing" / "libmizar.so"
    return bare | {"LD_PRELOAD": str(shim), "MIZAR_DIR": str(slot.path)}
