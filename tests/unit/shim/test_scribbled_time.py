"""A tenant may write what it likes into its usage region: it gets no more of the card's time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .shared_clock import running, share
from .slot import MIB, Card, Slot

SHARE = 2500
SPAN_NS = 800_000_000
MARGIN = 0.05
REST_US = "100"
"""Microseconds of real time in each wait of the shim, so that it is scribbled over all the time."""

HOW: dict[str, Callable[[random.Random, int, int], bytes]] = {
    # by the machine's time
    "zeros": lambda chance, size, now: bytes(size),
    "ones": lambda chance, size, now: b"\xff" * size,
    "noise": lambda chance, size, now: chance.randbytes(size),
    "the past": lambda chance, size, now: (now - 10**9).to_bytes(8, "little") * (size // 8),
}


@pytest.mark.parametrize("how", HOW)
def test_no_more_time_than_the_share(how: str, tmp_path: Path, layout: dict[str, Any]) -> None:
    machine = simgpu.create(tmp_path / "machine", cards=1, context_bytes=MIB, clock="stepped")
    uuid = machine.cards[0].uuid
    slot = Slot(tmp_path / "slot", layout)
    slot.set_limits(Card(uuid, 1024 * MIB, compute_mode=1, core_share=SHARE, context_bytes=MIB))
    with running(machine, slot, "bench/load", "us_200", SHAREDCLOCK_REST_US=REST_US):
        used = share(machine, SPAN_NS, lambda: scribble(slot, HOW[how], machine))
    assert used < SHARE / 10000 + MARGIN


def scribble(
    slot: Slot, how: Callable[[random.Random, int, int], bytes], machine: simgpu.Machine
) -> None:
    """Over what the card's time costs the container, and what its first process says of itself."""
    now, _ = machine.work(0)
    places = [
        (slot.offset("mizar_usage.cards") + slot.offset("mizar_usage_card.compute"), 256),
        (slot.offset("mizar_usage.slots") + slot.offset("mizar_usage_slot.cards"), 512),
    ]
    with slot.usage.open("r+b", buffering=0) as file:
        for at, size in places:
            file.seek(at)
            file.write(how(random.Random(at), size, now))
