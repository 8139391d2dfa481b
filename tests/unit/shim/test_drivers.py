"""Drivers older and newer than the shim: functions that one lacks are not found, new ones are."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import run
from .slot import BUILD, MIB, ROOT, Card, Slot, card_uuid

SHIM = ROOT / "shim"
VERSIONS = [11000, 11040, 11080, 12000, 12040, 12090, 13000, 14000]
FLAGS = ["-std=c11", "-O0", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-w"]


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
    includes = [f"-I{SHIM / 'src'}", f"-I{SHIM / 'include'}"]

    @functools.cache
    def compiled(functions: int) -> str:
        """The fake driver with the functions of that CUDA, whose version is not in it yet."""
        found = str(tmp_path_factory.mktemp("driver") / "fakecuda.o")
        source = str(Path(__file__).with_name("programs") / "fakecuda.c")
        defines = [f"-DFAKE_VERSION={functions}", "-DVERSION_WHEN_LINKED"]
        subprocess.run(["cc", *FLAGS, *includes, *defines, "-c", source, "-o", found], check=True)
        return found

    @functools.cache
    def make(version: int) -> Path:
        """The folder of a libcuda.so.1 of that CUDA: the fake one, its newer symbols hidden."""
        folder = tmp_path_factory.mktemp(f"cuda-{version}")
        hidden = "".join(f"{symbol};" for symbol in newer_symbols(version))
        (folder / "map").write_text(f"{{ global: *; {f'local: {hidden}' if hidden else ''} }};")
        script = ["-Wl,-Bsymbolic-functions", f"-Wl,--version-script={folder / 'map'}"]
        (folder / "version.c").write_text(f"const int fake_version = {version};")
        target = ["-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
        sources = [compiled(14000 if version >= 14000 else 13999), str(folder / "version.c")]
        subprocess.run(["cc", "-shared", *FLAGS, *script, *sources, *target], check=True)
        return folder

    return make


def with_driver(folder: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": f"{folder}:{BUILD / 'tests' / 'fake'}"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_driver_of_cuda(
    version: int, make_driver: Callable[[int], Path], slot: Slot, env: dict[str, str]
) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=1))
    run("drivers", str(version), env=env | with_driver(make_driver(version)))
    assert slot.compute(0, "charged_ns") > 0
    assert slot.used(0) == 0


@pytest.mark.parametrize(("version", "name"), [(9020, "9.2"), (10020, "10.2")])
def test_a_driver_before_cuda_11_is_refused(
    version: int, name: str, make_driver: Callable[[int], Path], env: dict[str, str]
) -> None:
    """Not silently without limits, nor half limited: the program is told, and its log too."""
    done = run("drivers", str(version), "803", env=env | with_driver(make_driver(version)))
    begin = f"mizar: CUDA is refused: this node's driver supports CUDA {name}"
    assert done.stderr.startswith(begin)
    assert "CUDA 11.0 (450) or newer" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_mizar_any_driver_goes(
    make_driver: Callable[[int], Path], env: dict[str, str], tmp_path: Path
) -> None:
    bare = env | {"MIZAR_DIR": str(tmp_path / "none")}
    run("drivers", "10020", "0", env=bare | with_driver(make_driver(10020)))
