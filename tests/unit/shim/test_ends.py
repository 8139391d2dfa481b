"""A context, pool or stream ends while other threads look after what the program left there."""

from __future__ import annotations

import pytest

from .conftest import run
from .slot import MIB, Card, Slot, card_uuid

CASES = [
    "measured",
    "measured_if_kept",
    "measured_if_shared",
    "worked_elsewhere",
    "freed_by_driver",
    "freed_if_kept",
    "freed_by_us",
    "freed_before",
    "freed_after",
    "pool_looked_at",
    "stream_touched",
]


def test_every_case_is_run(env: dict[str, str]) -> None:
    assert run("ends", env=env).stdout.split() == CASES


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_used_that_ends(case: str, env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, memory_mode=1, compute_mode=1))
    run("ends", case, "dlsym", env=env)
