"""What programs call all the time makes no system call: a process that makes one is killed."""

from __future__ import annotations

import pytest

from .conftest import run
from .slot import MIB, Card, Slot, card_uuid

HARD = 1


@pytest.mark.parametrize("mode", [0, HARD], ids=["free", "metered"])
@pytest.mark.parametrize("work", ["alloc", "meminfo", "launch"])
def test_no_system_call(work: str, mode: int, env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=mode, core_share=5000))
    run("hot", work, env=env)
