"""Programs and libraries that a preloaded library may not reach: what happens to them, and who can
see it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.waiting import PATIENCE_S

from .conftest import run
from .slot import BUILD, Slot

SOURCES = Path(__file__).with_name("programs") / "past"
OUT_OF_MEMORY = "2\n"


def compile_past(compiler: str, *flags: str, to: Path) -> Path:
    command = [
        compiler,
        "-O1",
        "-w",
        "-D_GNU_SOURCE",
        *flags,
        str(SOURCES / "past.c"),
        "-o",
        str(to),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return to


def handshakes(slot: Slot) -> int:
    """How many processes attached: the node agent compares that with the processes that use the
    card."""
    at = slot.offset("mizar_usage.attached")
    return int.from_bytes(slot.usage.read_bytes()[at : at + 4], "little")


def shim_version(slot: Slot) -> int:
    """What the first process that attached says of its shim."""
    at = slot.offset("mizar_usage.slots") + slot.offset("mizar_usage_slot.shim_version")
    return int.from_bytes(slot.usage.read_bytes()[at : at + 4], "little")


def start(program: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_program_that_is_reached(env: dict[str, str], slot: Slot) -> None:
    assert run("past/dynamic", env=env).stdout == OUT_OF_MEMORY
    assert handshakes(slot) == 1


def test_a_static_program_makes_no_handshake(
    env: dict[str, str], slot: Slot, tmp_path: Path
) -> None:
    """It runs as without the shim: glibc does not support dlopen in a static program."""
    program = compile_past("cc", "-static", to=tmp_path / "static")
    bare = {name: value for name, value in env.items() if name != "LD_PRELOAD"}
    assert start(program, env).returncode == start(program, bare).returncode
    assert handshakes(slot) == 0


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc")
def test_a_program_of_musl_makes_no_handshake(
    env: dict[str, str], slot: Slot, tmp_path: Path
) -> None:
    """It has no driver either: NVIDIA's is made for glibc."""
    program = compile_past("musl-gcc", to=tmp_path / "musl")
    assert start(program, env).stdout == "no driver\n"
    assert handshakes(slot) == 0


@pytest.mark.parametrize("sanitizer", ["address", "thread", "leak", "undefined"])
def test_a_program_with_a_sanitizer(
    sanitizer: str, env: dict[str, str], slot: Slot, tmp_path: Path
) -> None:
    """Its runtime looks functions up before most of libc can be called, and would not be second."""
    program = compile_past("cc", f"-fsanitize={sanitizer}", to=tmp_path / "sanitized")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "LSAN_OPTIONS": "exitcode=0"}
    assert start(program, env | options).stdout == OUT_OF_MEMORY
    assert handshakes(slot) == 1


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_preloaded_library(
    order: str, env: dict[str, str], slot: Slot, tmp_path: Path
) -> None:
    """One that wraps dlsym and cuMemAlloc as well is called as before, and limited. It is not taken
    for the driver, although its folder is called like it."""
    other = tmp_path / "libcuda.so-wrapper" / "other.so"
    other.parent.mkdir()
    shutil.copy(BUILD / "tests" / "past" / "other.so", other)
    libraries = [str(other), env["LD_PRELOAD"]]
    preload = " ".join(libraries if order == "before" else reversed(libraries))
    done = run("past/dynamic", env=env | {"LD_PRELOAD": preload})
    assert done.stdout == OUT_OF_MEMORY
    assert done.stderr.count("other: ") == 1 and "LD_PRELOAD" not in done.stderr
    assert handshakes(slot) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_with_a_second_driver_says_so(
    when: str, env: dict[str, str], slot: Slot, tmp_path: Path
) -> None:
    """What the program asks of the second driver has no limits: the node agent reports it."""
    second = str(tmp_path / "libcuda.so.1")
    shutil.copy(BUILD / "tests" / "fake" / "libcuda.so.1", second)
    done = run("past/second", second, when, env=env)
    assert done.stderr.startswith(f"mizar: {second} is a second driver")
    assert shim_version(slot) == slot.constant("MIZAR_SHIM_PAST")


def test_a_program_with_one_driver_says_its_shims_version(env: dict[str, str], slot: Slot) -> None:
    run("past/dynamic", env=env)
    assert shim_version(slot) == slot.constant("MIZAR_SHIM_VERSION")


@pytest.mark.parametrize("binding", ["", "LD_BIND_NOW"])
@pytest.mark.parametrize("way", ["link", "dlsym", "default", "next", "proc"])
def test_a_preloaded_driver(way: str, binding: str, env: dict[str, str]) -> None:
    """Programs that are linked with it are bound to it at their start, and limited nevertheless."""
    driver = str(BUILD / "tests" / "fake" / "libcuda.so.1")
    now = {binding: "1"} if binding else {}
    env = env | {"LD_PRELOAD": f"{driver} {env['LD_PRELOAD']}"} | now
    run("snippets", "cuMemAlloc_v2", way, env=env)
    run("snippets", "cuMemPoolCreate", way, env=env)
