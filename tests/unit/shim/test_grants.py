"""What threads are granted ahead of launches keeps no other thread or stream from its share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_S

from .busy import Container, Containers, kept
from .conftest import run
from .shared_clock import running_with_shares, share
from .slot import MIB, Card, Slot, card_uuid

HARD = 1
OF_ONE_THREAD = {
    # the share of a container, and what it does: it wants all of the card
    "two streams, 5 %": (5, ("bench/load", "us_20", "2", "2", "in_turns")),
    "two streams, 10 %": (10, ("bench/load", "us_20", "2", "2", "in_turns")),
    "four streams": (10, ("bench/load", "us_20", "4", "1", "in_turns")),
    "eight streams": (25, ("bench/load", "us_20", "8", "1", "in_turns")),
    "5,000 functions": (50, ("bench/programs", "functions")),
}
OF_THREADS = {
    # the share of a container, what it wants of the card, and what it does
    "threads that end": (25, 100, ("bench/programs", "short_lived")),
    "threads that launch little": (50, 30, ("bench/programs", "workers")),
    "threads that launch little, 10 %": (10, 30, ("bench/programs", "workers")),
}
SPAN_NS = 1_000_000_000
LEARNING_NS = {"5,000 functions": 4_000_000_000}
"""Of the card's time, until each function has been measured; SPAN_NS for one."""
NEAR = 0.003
"""By how much the share in a span may differ: what is granted ahead."""
WORKED_NS, STRETCH_S = 50_000_000, 0.5
OVERCHARGE = 1.6
APART = 5.0
"""Points of the card by which one of a pair may be off."""
HALF_OF_20_MS = 0x1 << 60 | 20_000 << 40 | 10_000
"""A window: mizar_regions.h."""


@pytest.mark.parametrize("load", OF_ONE_THREAD)
def test_one_thread_has_its_share_in_whole(
    load: str, tmp_path: Path, layout: dict[str, Any]
) -> None:
    asked, command = OF_ONE_THREAD[load]
    with running_with_shares(tmp_path, layout, [asked], *command) as machine:
        share(machine, LEARNING_NS.get(load, SPAN_NS))
        assert share(machine, SPAN_NS) == pytest.approx(asked / 100, abs=NEAR)


@pytest.mark.parametrize("load", OF_THREADS)
def test_threads_have_their_share_in_whole(
    load: str, tmp_path: Path, layout: dict[str, Any]
) -> None:
    asked, wanted, command = OF_THREADS[load]
    with Containers(tmp_path, layout, cards=1) as containers:
        containers.add(HARD, asked).start(*command)
        containers.begin()
        containers.await_kept([kept(asked, wanted)])


def test_no_work_of_many_streams_is_charged_twice(env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=HARD, core_share=2000))
    slot.set_live(0, "window", HALF_OF_20_MS, size=8)
    run("in_turns", env=env)


@pytest.mark.parametrize("how", [(), ("1", "in_turns")], ids=["by the millisecond", "in turns"])
def test_many_streams_and_their_neighbour_have_their_shares(
    how: tuple[str, ...], tmp_path: Path, layout: dict[str, Any]
) -> None:
    with Containers(tmp_path, layout, cards=1) as containers:
        one, other = containers.share_card("Hard", 50, 50)
        one.start("bench/load", "us_200", "8", *how)
        other.start("bench/load", "us_200")
        containers.begin()
        containers.await_kept([(50 - APART, 50 + APART)] * 2)


@pytest.mark.parametrize("load", ["us_200", "ms_5"])
def test_two_containers_have_their_shares_of_a_harsh_card(
    load: str, tmp_path: Path, layout: dict[str, Any]
) -> None:
    """Its kernels cannot be interrupted, its slices take up to 6 ms, and its events drift."""
    with Containers(tmp_path, layout, cards=1, profile="harsh") as containers:
        for each in containers.share_card("Hard", 30, 70):
            each.start("bench/load", load)
        containers.begin()
        wanted = [(share - APART, share + APART) for share in (30, 70)]
        containers.await_kept(wanted, look_s=1.0)


def test_threads_that_launch_little_pay_for_what_they_launch(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    """Not for the time in between: by what the card did, in a stretch in which the machine let
    them launch without a pause."""
    with Containers(tmp_path, layout, cards=1) as containers:
        one = containers.add(HARD, 50)
        one.start("bench/programs", "workers")
        containers.begin()
        until = time.monotonic() + PATIENCE_S
        charged = worked = 0
        while worked < WORKED_NS or charged > OVERCHARGE * worked:
            assert time.monotonic() < until, f"{charged} ns charged for {worked} ns of work"
            charged, worked = _stretch(one)


def _stretch(container: Container) -> tuple[int, int]:
    """What the container is charged in a while, and what its card works for it, in ns."""
    before = container.slot.compute(0, "charged_ns"), container.worked()[0]
    time.sleep(STRETCH_S)
    return container.slot.compute(0, "charged_ns") - before[0], container.worked()[0] - before[1]
