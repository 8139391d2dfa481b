"""Calls that may hold a stream up without being work: they reach the driver, and are not
charged."""

from __future__ import annotations

import pytest

from .conftest import run
from .slot import MIB, Card, Slot, card_uuid


def test_every_case_is_run(env: dict[str, str]) -> None:
    assert run("stalls", env=env).stdout.split() == ["all", "metered", "begun", "thread"]


@pytest.mark.parametrize("way", ["link", "dlsym", "proc", "proc_v1"])
def test_every_stall_reaches_the_driver(way: str, env: dict[str, str]) -> None:
    run("stalls", "all", way, env=env)


@pytest.mark.parametrize("cards", [1, 2])
def test_what_was_granted_ends_at_a_stall(cards: int, env: dict[str, str], slot: Slot) -> None:
    limits = [Card(card_uuid(i), 64 * MIB, compute_mode=1, core_share=5000) for i in range(cards)]
    slot.set_limits(*limits)
    run("stalls", "metered", "dlsym", env=env)


def test_a_kernel_that_waits_for_the_next_launch_gets_it(env: dict[str, str], slot: Slot) -> None:
    """Kernels that communicate do so: without the next launch the kernel on the card would never
    end."""
    for mode, share in ((1, 10000), (1, 5000)):
        slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=mode, core_share=share))
        run("stalls", "begun", "dlsym", env=env)


def test_what_was_granted_ends_with_its_thread(env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=1, core_share=5000))
    run("stalls", "thread", "dlsym", env=env)
