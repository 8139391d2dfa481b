"""Copies and memsets: what is counted, by whom, and what waiting for one does."""

from __future__ import annotations

import time

import pytest

from mizar_nodeagent.regions import layout, usage_snapshot
from support.waiting import PATIENCE_S

from .conftest import run
from .shell import SUCCESS, Shell
from .slot import MIB, Card, Slot, card_uuid

CASES = ["all", "directions", "captures", "cards", "metered", "stalls", "threads"]
METERED = ["metered", "stalls"]
CASES_OF_COUNTING = [case for case in CASES if case not in METERED]


def test_every_case_is_run(env: dict[str, str]) -> None:
    assert run("copies", env=env).stdout.split() == CASES


@pytest.mark.parametrize("way", ["link", "dlsym", "proc", "proc_v1"])
@pytest.mark.parametrize("case", CASES_OF_COUNTING)
def test_copies(case: str, way: str, env: dict[str, str]) -> None:
    run("copies", case, way, env=env)


@pytest.mark.parametrize("case", ["all", "captures", "threads"])
def test_copies_with_one_card(case: str, env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB))
    run("copies", case, "proc", env=env)


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("case", METERED)
def test_a_thread_gives_granted_time_back_when_it_waits_or_a_copy_stalls_its_stream(
    case: str, cards: int, env: dict[str, str], slot: Slot
) -> None:
    limits = [Card(card_uuid(i), 64 * MIB, compute_mode=1, core_share=5000) for i in range(cards)]
    slot.set_limits(*limits)
    run("copies", case, "dlsym", env=env)


def test_processes_at_once(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as one, Shell(env) as other, Shell(env) as third:
        for shell in (one, other, third):
            assert shell("use", 1 if shell is third else 0).code == SUCCESS
            shell.send("copy", 10000)
        for shell in (one, other, third):
            assert shell.answer().code == SUCCESS
    assert slot.copied(0, "COPY_TO_DEVICE") == (20000, 60000)
    assert slot.copied(0, "COPY_TO_HOST") == (20000, 100000)
    assert slot.copied(1, "COPY_TO_DEVICE") == (10000, 30000)
    assert slot.copied(1, "COPY_TO_HOST") == (10000, 50000)
    first, second = usage_snapshot.card_usage(slot.usage, 2)  # as the node agent does
    assert first.copied[layout.COPY_TO_HOST] == usage_snapshot.Copied(20000, 100000)
    assert second.copied[layout.COPY_TO_DEVICE] == usage_snapshot.Copied(10000, 30000)


def test_a_kill_loses_nothing(env: dict[str, str], slot: Slot) -> None:
    """Nor do processes that take over the slot of the dead one, on the same card and on another."""
    with Shell(env) as shell:
        shell.send("copy", 1 << 62)
        begun = time.monotonic()
        while slot.copied(0, "COPY_TO_HOST")[0] < 1000:
            assert time.monotonic() - begun < PATIENCE_S
        shell.kill()
    count, size = slot.copied(0, "COPY_TO_DEVICE")
    assert count >= 1000
    assert size in (3 * count, 3 * (count - 1))  # it may have died between the two
    for card in (0, 1):
        with Shell(env) as shell:
            assert shell("use", card).code == SUCCESS
            assert shell("copy", 10).code == SUCCESS
    assert slot.copied(0, "COPY_TO_DEVICE") == (count + 10, size + 30)
    assert slot.copied(1, "COPY_TO_DEVICE") == (10, 30)


def test_a_child_counts_too(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell("copy", 10).code == SUCCESS
        shell("fork")  # the child answers from here on
        assert shell("copy", 5).code == SUCCESS
        assert shell.alloc(MIB) == SUCCESS
        assert shell("copy", 5).code == SUCCESS
    assert slot.copied(0, "COPY_TO_DEVICE") == (20, 60)
