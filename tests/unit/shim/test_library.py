"""The library as an object: what it exports, what it needs, what it does when it is not used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_S

from .conftest import run, shim_env
from .slot import BUILD, Slot

LIBRARY = BUILD / "libmizar.so"


def output(*command: str | Path, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


def test_exported_symbols(layout: dict[str, Any]) -> None:
    lines = output("nm", "-D", "--defined-only", LIBRARY).splitlines()
    golden = Path(__file__).with_name("exported.txt").read_text().split()
    assert sorted(line.split()[-1] for line in lines) == golden


def test_needs_nothing_but_an_old_libc(layout: dict[str, Any]) -> None:
    """Images with older C libraries than the build's must still start: CentOS 7 has glibc 2.17."""
    assert re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", LIBRARY)) == ["libc.so.6"]
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", output("objdump", "-T", LIBRARY))
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)


def test_the_shipped_library_ignores_the_environment(layout: dict[str, Any]) -> None:
    assert b"MIZAR_DIR" not in LIBRARY.read_bytes()
    assert b"MIZAR_DIR" in (BUILD / "testing" / "libmizar.so").read_bytes()


@pytest.mark.parametrize("build", ["account", "account-asan", "account-tsan"])
def test_accounting_against_a_model(build: str, layout: dict[str, Any]) -> None:
    run(build, "1", env={"TSAN_OPTIONS": "halt_on_error=1"})


def test_lookups_mean_what_they_mean(env: dict[str, str], slot: Slot) -> None:
    run("lookups", "shim", env=env)
    run("lookups", "bare", env=shim_env(slot.path / "none"))  # inert
    run("lookups", "bare", env={"LD_LIBRARY_PATH": env["LD_LIBRARY_PATH"]})


HIDDEN = ["deep", "deep_now", "deep_late", "deep_storm"]
HIDDEN += ["space", "space_deep", "spaces", "space_handle"]


@pytest.mark.parametrize("library", ["linked", "asking"])
@pytest.mark.parametrize("how", HIDDEN)
def test_nothing_hides_from_the_limits(how: str, library: str, env: dict[str, str]) -> None:
    """RTLD_DEEPBIND and dlmopen, by which a library does not see preloaded ones."""
    run("hidden", f"{library}.so", how, env=env)


def test_another_wrapper_behind_the_shim_finds_the_driver(env: dict[str, str]) -> None:
    """It asks for the next definition after its own, when the driver's table of symbols has been
    replaced by a copy elsewhere."""
    preload = f"{env['LD_PRELOAD']} {BUILD / 'tests' / 'past' / 'other.so'}"
    done = run("hidden", "linked.so", "deep_late", env=env | {"LD_PRELOAD": preload})
    assert done.stderr == "other: 1048576\n"


PROBE = """
import os, sys, threading, json
print(json.dumps({
    "env": {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "MIZAR_DIR")},
    "fds": sorted(os.listdir("/proc/self/fd")),
    "threads": threading.active_count(),
    "maps": [line for line in open("/proc/self/maps") if "/slot/" in line],
}))
print("a word to stderr", file=sys.stderr)
sys.exit(3)
"""


def test_programs_without_cuda_are_left_alone(env: dict[str, str], slot: Slot) -> None:
    """The limits file is a pipe to which nothing writes: a program that opens it hangs. Only the
    file's directory and /proc are kept open, where they do not disturb the program
    (shim/src/base/kept_directory.h)."""
    slot.limits.unlink()
    os.mkfifo(slot.limits)
    command = [sys.executable, "-I", "-W", "ignore", "-c", PROBE]
    bare_env = {
        name: value for name, value in env.items() if name not in ("LD_PRELOAD", "MIZAR_DIR")
    }
    shimmed = subprocess.run(command, env=env, capture_output=True, timeout=PATIENCE_S)
    bare = subprocess.run(command, env=bare_env, capture_output=True, timeout=PATIENCE_S)
    kept = json.loads(bare.stdout) | {"fds": [*json.loads(bare.stdout)["fds"], "50", "51"]}
    assert json.loads(shimmed.stdout) == kept
    assert (shimmed.returncode, shimmed.stderr) == (bare.returncode, bare.stderr)
    assert shimmed.returncode == 3


def test_without_a_slot_it_is_inert(env: dict[str, str], slot: Slot) -> None:
    done = subprocess.run(
        [BUILD / "tests" / "shell"],
        env=env | {"MIZAR_DIR": str(slot.path / "none")},
        input=f"init\nuse 0\nalloc {1 << 36}\ninfo\n",
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["0 0", "0 0", "0 0", f"{1 << 34} {1 << 34}"]
    assert done.stderr == ""


def test_layout_is_complete(layout: dict[str, Any]) -> None:
    """Every structure is covered by its fields up to what is reserved, without overlap."""
    for name, size in layout["sizes"].items():
        fields = sorted(
            tuple(place) for key, place in layout["fields"].items() if key.startswith(f"{name}.")
        )
        ends = [start + length for start, length in fields]
        assert all(end <= start for end, (start, _) in zip(ends, fields[1:], strict=False)), name
        assert ends[-1] <= size
