"""A tenant may write what it likes into its usage region: it gets no more of the card's time."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .slot import BUILD, MIB, Card, Slot

SHARE = 2500
SECONDS = 0.8
MARGIN = 0.05

HOW: dict[str, Callable[[random.Random, int], bytes]] = {
    "zeros": lambda chance, size: bytes(size),
    "ones": lambda chance, size: b"\xff" * size,
    "noise": lambda chance, size: chance.randbytes(size),
    "the past": lambda chance, size: (
        (time.monotonic_ns() - 10**9).to_bytes(8, "little") * (size // 8)
    ),
}


@pytest.mark.parametrize("how", HOW)
def test_no_more_time_than_the_share(how: str, tmp_path: Path, layout: dict[str, Any]) -> None:
    machine = simgpu.create(tmp_path / "machine", cards=1, context_bytes=MIB)
    uuid = machine.cards[0].uuid
    slot = Slot(tmp_path / "slot", layout)
    slot.set_limits(Card(uuid, 1024 * MIB, compute_mode=1, core_share=SHARE, context_bytes=MIB))
    environment = {
        "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
        "MIZAR_DIR": str(slot.path),
        **simgpu.environment(machine.directory),
    }
    command = [str(BUILD / "bench" / "load"), "us_200"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as load:
        try:
            assert load.stdout and load.stdin
            assert load.stdout.readline() == b"ready\n"
            load.stdin.write(b"\n")
            load.stdin.flush()
            used = time_used_while(machine, lambda: scribble(slot, HOW[how]))
            assert load.poll() is None
        finally:
            load.kill()
    assert used < SHARE / 10000 + MARGIN


def time_used_while(machine: simgpu.Machine, scribble: Callable[[], None]) -> float:
    """The part of the card's time that is used until SECONDS are over."""
    uuid = machine.cards[0].uuid
    before, end = machine.busy(uuid), time.monotonic() + SECONDS
    while time.monotonic() < end:
        scribble()
        time.sleep(0.001)
    after = machine.busy(uuid)
    return (after.work_ns - before.work_ns) / (after.now_ns - before.now_ns)


def scribble(slot: Slot, how: Callable[[random.Random, int], bytes]) -> None:
    """Over what the card's time costs the container, and what its first process says of itself."""
    places = [
        (slot.offset("mizar_usage.cards") + slot.offset("mizar_usage_card.compute"), 256),
        (slot.offset("mizar_usage.slots") + slot.offset("mizar_usage_slot.cards"), 512),
    ]
    with slot.usage.open("r+b", buffering=0) as file:
        for at, size in places:
            file.seek(at)
            file.write(how(random.Random(at), size))
