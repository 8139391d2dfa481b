"""The whole shim with sanitizers, under the snippets and the storms.

The programs are linked with the driver: lookups are not hooked in these builds. ThreadSanitizer
makes the 128-bit compare-and-swap a lock within one process, so its storms are of threads alone.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import simgpu
from soak.container import CONTEXT, LIMITS, WAYS
from support.effort import SEED

from .conftest import run, shim_env
from .slot import BUILD, MIB, Card, Slot, card_uuid
from .test_handles import CASES

OPTIONS = {
    # A program's own allocations at its end are no concern of the shim's.
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:report_signal_unsafe=0",
    "API_WAY": "link",
    "SOAK_LINKED": "1",
}


def runtime(sanitizer: str) -> str:
    """Where the compiler's runtime library is."""
    command = ["cc", f"-print-file-name=lib{sanitizer}.so"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def preload(sanitizer: str) -> dict[str, str]:
    library = BUILD / sanitizer / "libmizar.so"
    return {"LD_PRELOAD": f"{runtime(sanitizer)} {library}"}


def check(
    sanitizer: str, slot: Slot, *command: str, metered: bool = False, more: bool = False
) -> None:
    """Run a program. `more`: whether it may be given more than the card has."""
    slot.set_limits(
        Card(card_uuid(0), 64 * MIB, memory_mode=int(more), compute_mode=int(metered)),
        Card(card_uuid(1), 32 * MIB, compute_mode=int(metered)),
    )
    run(*command, env=shim_env(slot.path) | OPTIONS | preload(sanitizer), timeout=100)


def names(program: str, env: dict[str, str]) -> list[str]:
    return run(program, env=env).stdout.split()


@pytest.mark.parametrize("program", ["snippets", "nvml"])
def test_snippets(
    program: str, env: dict[str, str], tmp_path: Path, layout: dict[str, Any]
) -> None:
    for name in names(program, env):
        slot = Slot(tmp_path / name, layout)
        check("asan", slot, program, name, "link", metered=name.startswith("metered"))


@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
@pytest.mark.parametrize("metered", [False, True])
def test_launches(
    sanitizer: str, metered: bool, env: dict[str, str], tmp_path: Path, layout: dict[str, Any]
) -> None:
    mode = "metered" if metered else "free"
    for name in [*names("launches", env), "storm"]:
        slot = Slot(tmp_path / name, layout)
        check(sanitizer, slot, "launches", name, "link", mode, metered=metered)


def test_copies(env: dict[str, str], tmp_path: Path, layout: dict[str, Any]) -> None:
    for name in names("copies", env):
        slot = Slot(tmp_path / name, layout)
        check("asan", slot, "copies", name, "link", metered=name in ("metered", "stalls"))
    check("tsan", Slot(tmp_path / "tsan", layout), "copies", "threads", "link")


def test_stalls(env: dict[str, str], tmp_path: Path, layout: dict[str, Any]) -> None:
    for name in names("stalls", env):
        slot = Slot(tmp_path / name, layout)
        check("asan", slot, "stalls", name, "link", metered=name != "all")


@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_ends(sanitizer: str, env: dict[str, str], tmp_path: Path, layout: dict[str, Any]) -> None:
    for name in names("ends", env):
        slot = Slot(tmp_path / name, layout)
        check(sanitizer, slot, "ends", name, "link", metered=True, more=True)


@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_handles(sanitizer: str, tmp_path: Path, layout: dict[str, Any]) -> None:
    with simgpu.create(tmp_path / "machine", cards=1, clock="stepped") as machine:
        env = simgpu.environment(machine.directory)
        for name in CASES:
            slot = Slot(tmp_path / name, layout)
            slot.set_limits(Card(machine.cards[0].uuid, 1024 * MIB, compute_mode=1))
            own = shim_env(slot.path) | OPTIONS | env | {"CUDA_MODULE_LOADING": "EAGER"}
            run("handles", name, "1000", env=own | preload(sanitizer), timeout=100)


@pytest.mark.parametrize("storm", ["threads", "kills"])
def test_storms(storm: str, slot: Slot) -> None:
    check("asan", slot, "storm", storm, "20")


@pytest.mark.parametrize("storm", ["threads", "imports"])
def test_a_storm_of_threads_has_no_race(storm: str, slot: Slot) -> None:
    check("tsan", slot, "storm", storm)


@pytest.mark.parametrize("when", ["before", "during"])
def test_damaged_regions(when: str, slot: Slot) -> None:
    check("asan", slot, "fuzz", when, "40", str(SEED))


@contextmanager
def looked_at(slot: Slot) -> Iterator[None]:
    """NVML is asked all the time: an allocation without room waits for that, and for nothing
    else."""
    enough = threading.Event()

    def look() -> None:
        while not enough.wait(0.005):
            for card in range(len(slot.cards)):
                slot.look(card)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        enough.set()
        looking.join()


@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
@pytest.mark.parametrize("way", [*WAYS, "all ways"])
def test_threads_take_memory_in_every_way(
    way: str, sanitizer: str, tmp_path: Path, layout: dict[str, Any]
) -> None:
    only = [str(WAYS[way])] if way in WAYS else []
    with simgpu.create(tmp_path / "machine", len(LIMITS), context_bytes=CONTEXT) as machine:
        slot = Slot(tmp_path / "slot", layout)
        cards = zip(machine.cards, LIMITS, strict=True)
        slot.set_limits(
            *(
                Card(card.uuid, limit, compute_mode=1, context_bytes=CONTEXT)
                for card, limit in cards
            )
        )
        env = shim_env(slot.path) | OPTIONS | simgpu.environment(machine.directory)
        with looked_at(slot):
            run("soak", "7", "100", "4", *only, env=env | preload(sanitizer), timeout=100)
