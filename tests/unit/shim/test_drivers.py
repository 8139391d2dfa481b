"""Drivers older and newer than the shim: what one lacks is not there, what is new goes through."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import run, shim_env
from .slot import BUILD, MIB, ROOT, Card, Slot, card_uuid

SHIM = ROOT / "shim"
VERSIONS = [11040, 11080, 12000, 12040, 12090, 13000, 14000]
FLAGS = ["-std=c11", "-O0", "-fPIC", "-fvisibility=hidden", "-shared", "-D_GNU_SOURCE", "-w"]


def newer_symbols(version: int) -> list[str]:
    """What a driver of that CUDA does not export."""
    sys.path.insert(0, str(SHIM / "tools"))
    import hook_table

    functions = hook_table.read_driver()
    sys.path.remove(str(SHIM / "tools"))
    old = {one.symbol for one in functions if one.entry.since <= version}
    return sorted({one.symbol for one in functions} - old)


@pytest.fixture(scope="session")
def make_driver(
    layout: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    def make(version: int) -> Path:
        """The folder of a libcuda.so.1 of that CUDA: the fake one, its newer symbols hidden."""
        folder = tmp_path_factory.mktemp(f"cuda-{version}")
        hidden = "".join(f"{symbol};" for symbol in newer_symbols(version))
        (folder / "map").write_text(f"{{ global: *; {f'local: {hidden}' if hidden else ''} }};")
        script = ["-Wl,-Bsymbolic-functions", f"-Wl,--version-script={folder / 'map'}"]
        includes = [f"-I{SHIM / 'src'}", f"-I{SHIM / 'include'}", f"-DFAKE_VERSION={version}"]
        target = ["-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
        source = str(Path(__file__).with_name("programs") / "fakecuda.c")
        subprocess.run(["cc", *FLAGS, *includes, *script, source, *target], check=True)
        return folder

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_a_driver_of_cuda(
    version: int, make_driver: Callable[[int], Path], slot: Slot, env: dict[str, str]
) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=1))
    path = f"{make_driver(version)}:{BUILD / 'tests' / 'fake'}"
    run("drivers", str(version), env=env | {"LD_LIBRARY_PATH": path})
    assert slot.compute(0, "charged_ns") > 0
    assert slot.used(0) == 0


def test_a_driver_that_lacks_nearly_everything(slot: Slot) -> None:
    """CUDA 9's libcuda: what it lacks is not found, what it has works."""
    env = shim_env(slot.path) | {"LD_LIBRARY_PATH": str(BUILD / "tests" / "old")}
    run("olddriver", env=env)
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=1))
    run("olddriver", env=env)
