"""Shares of a card's time under the shim: by what the node agent writes, and for every kind of
stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.waiting import wait_for

from .busy import Container, Containers
from .shared_clock import running_with_shares, share

# Each of several shares may take 100 s to come where the machine has no processor for them.
pytestmark = pytest.mark.timeout(450)

NONE, HARD, SOFT, WEIGHTED, STOPPED = range(5)
BEAT_S = 0.05

LENT = [
    # mode, share, the live words, and the share with them
    (SOFT, 30, {"spare_share": 4000}, 70),
    (WEIGHTED, 20, {"active_weight": 4000}, 50),
    (SOFT, 30, {"paused": 1}, 0),
    (HARD, 30, {"spare_share": 4000}, 30),
    (SOFT, 0, {"spare_share": 7000}, 70),  # nothing without an agent that lives
]

STREAMS = {
    # the shares of the cards that the way uses, and what it gets of each
    "legacy": ([30], [30]),
    "per_thread": ([30], [30]),
    "blocking": ([30], [30]),
    "many": ([30], [30]),
    "in_turn": ([60, 30], [30, 30]),  # the launch that waits keeps the other
    "together": ([30, 60], [30, 30]),  # none of the two works without the other
}
OF_TWO_THREADS = "cards", [30, 60]
SPAN_NS = 1_000_000_000


@contextmanager
def _agent(containers: list[Container]) -> Iterator[None]:
    """A node agent that is alive: its beat counts up."""
    dead = threading.Event()

    def live() -> None:
        beat = 0
        while not dead.wait(BEAT_S):
            beat += 1
            for each in containers:
                each.slot.set_live(0, "beat", beat)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        dead.set()
        thread.join()


def test_what_the_agent_tells_holds_as_long_as_it_lives(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    own, lent = [[share] for _, share, _, _ in LENT], [[share] for *_, share in LENT]
    with Containers(tmp_path, layout, cards=len(LENT)) as containers:
        for mode, share, _, _ in LENT:
            containers.add(mode, share).start("bench/load", "us_200")
        containers.begin()
        with _agent(containers.all):
            containers.await_shares(own)
            for each, (_, _, words, _) in zip(containers.all, LENT, strict=True):
                for name, value in words.items():
                    each.slot.set_live(0, name, value)
            containers.await_shares(lent)
        containers.await_shares(own)
        with _agent(containers.all):
            containers.await_shares(lent)


@pytest.mark.parametrize("way", STREAMS)
def test_shares_hold_for_every_kind_of_stream(
    way: str, tmp_path: Path, layout: dict[str, Any]
) -> None:
    shares, wanted = STREAMS[way]
    with running_with_shares(tmp_path, layout, shares, "tests/streams", way) as machine:
        share(machine, SPAN_NS)
        had = [100 * share(machine, SPAN_NS, uuid=card.uuid) for card in machine.cards]
    assert had == pytest.approx(wanted, abs=0.3)


def test_each_card_of_two_threads_has_its_share(tmp_path: Path, layout: dict[str, Any]) -> None:
    way, shares = OF_TWO_THREADS
    with Containers(tmp_path, layout, len(shares)) as containers:
        containers.add(HARD, *shares).start("tests/streams", way)
        containers.begin()
        containers.await_shares([shares])


@pytest.mark.parametrize("mode", [NONE, HARD])
def test_a_launch_shows_that_the_container_wants_the_card(
    tmp_path: Path, layout: dict[str, Any], mode: int
) -> None:
    """Whether or not its time is limited: the card may be lent while it launches nothing."""
    with Containers(tmp_path, layout, cards=1) as containers:
        one = containers.add(mode, 100)
        one.start("bench/load", "us_200")
        assert one.slot.compute(0, "wanted_at") == 0
        containers.begin()
        for _ in range(3):
            seen = one.slot.compute(0, "wanted_at")
            wait_for("another launch", lambda seen=seen: one.slot.compute(0, "wanted_at") > seen)


@pytest.mark.parametrize("mode", [NONE, HARD])
def test_a_container_stopped_by_its_limits_starts_no_work_until_they_allow_it_again(
    tmp_path: Path, layout: dict[str, Any], mode: int
) -> None:
    """This holds without a living agent, and although nothing was limited before; the container may
    go on later."""
    with Containers(tmp_path, layout, cards=1) as containers:
        one = containers.add(mode, 100)
        one.start("bench/load", "us_200")
        containers.begin()
        containers.await_shares([[100]])
        (card,) = one.slot.cards
        one.slot.set_limits(replace(card, compute_mode=STOPPED, core_share=0, memory=0))
        containers.await_shares([[0]])
        one.slot.set_limits(card)
        containers.await_shares([[100]])
