"""NVIDIA's libcuda under the shim, without a card: every function is found as without the shim, and
ends as without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nvidia_driver
from nvidia_driver.facts import base_of, exported, probe, resolved
from unit.simgpu.cudart import Build, builds

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "shim" / "tools"))
import hook_table  # noqa: E402

INVALID_VALUE, NOT_INITIALIZED, INVALID_HANDLE = "1", "3", str(400 & 0xFF)
OTHER_ERRORS = {
    # The shim finds no context before the driver looks at the arguments.
    ("cuMemAllocManaged", INVALID_VALUE, NOT_INITIALIZED),
    ("cuMemAllocAsync", INVALID_HANDLE, NOT_INITIALIZED),
    ("cuMemAllocFromPoolAsync", INVALID_HANDLE, NOT_INITIALIZED),
}
READS_FIRST = {"cuMemMapArrayAsync"}
"""The shim reads its list, whose length is an address here, before the driver refuses it."""
UNSTEADY = {"cuUserObjectRelease", "cuUserObjectRetain"}
"""Their results depend on what lies in the memory that they take for an object."""


def test_cuGetProcAddress_hands_out_the_same_functions(
    driver: nvidia_driver.Driver, bare: dict[str, str], shimmed: dict[str, str]
) -> None:
    assert resolved(driver, shimmed) == resolved(driver, bare)


def test_every_function_with_a_wrapper_is_replaced(
    driver: nvidia_driver.Driver, bare: dict[str, str], shimmed: dict[str, str]
) -> None:
    hooked = {function.symbol for function in hook_table.read_driver() if function.hooked}
    names = exported(driver.libcuda)
    assert probe(driver, "wrapped", names, bare) == []
    assert set(probe(driver, "wrapped", names, shimmed)) == hooked & set(names)


def test_every_call_ends_as_without_the_shim(
    driver: nvidia_driver.Driver, bare: dict[str, str], shimmed: dict[str, str]
) -> None:
    names = exported(driver.libcuda)
    before, after = probe(driver, "call", names, bare), probe(driver, "call", names, shimmed)
    differ = []
    for without, with_shim in zip(before, after, strict=True):
        symbol, arguments, result = without.split(maxsplit=2)
        base, change = base_of(symbol), with_shim.split(maxsplit=2)[2]
        crashes = result.startswith("signal")
        if result == change or crashes or (base, result, change) in OTHER_ERRORS:
            continue
        if base not in READS_FIRST | UNSTEADY:
            differ.append(f"{symbol} with {arguments}: {result} without the shim, {change} with it")
    assert differ == []


@pytest.fixture(params=builds(), ids=str, scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    build: Build = request.param
    return build.program()


def test_a_program_of_the_runtime_finds_no_card(
    program: Path, bare: dict[str, str], shimmed: dict[str, str]
) -> None:
    ends = []
    for env in (bare, shimmed):
        done = subprocess.run([program, "tour"], env=env, capture_output=True, text=True)
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] == 1
