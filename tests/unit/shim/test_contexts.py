"""However many contexts a process makes, the card's time is limited in each of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .shared_clock import begin, share, started
from .slot import MIB, Card, Slot

SHARE = 2500
SPAN_NS = 800_000_000
NEAR = 0.005
"""By how much the share may differ: what is granted ahead, as part of SPAN_NS."""


@dataclass
class Container:
    """One card, a quarter of whose time is the container's."""

    machine: simgpu.Machine
    slot: Slot

    def contexts(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """programs/contexts.c, when it is ready."""
        return started(self.machine, self.slot, "tests/contexts", *arguments)

    def share(self) -> float:
        """What the container has of the card once work is under way."""
        share(self.machine, SPAN_NS)
        return share(self.machine, SPAN_NS)


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Iterator[Container]:
    with simgpu.create(
        tmp_path / "machine", cards=1, context_bytes=MIB, clock="stepped"
    ) as machine:
        slot = Slot(tmp_path / "slot", layout)
        card = Card(machine.cards[0].uuid, 1024 * MIB, context_bytes=MIB)
        card.compute_mode, card.core_share = 1, SHARE
        slot.set_limits(card)
        yield Container(machine, slot)


def test_the_fortieth_context_is_limited_as_the_first(container: Container) -> None:
    with container.contexts("many", "40") as process:
        begin(process)
        assert container.share() == pytest.approx(SHARE / 10000, abs=NEAR)


def test_a_green_context_is_limited_whichever_is_current(container: Container) -> None:
    with container.contexts("green") as process:
        begin(process)
        assert container.share() == pytest.approx(SHARE / 10000, abs=NEAR)


def test_work_of_one_context_shows_when_another_has_none(container: Container) -> None:
    with container.contexts("behind"):
        assert container.slot.process(0, 0, "open_since") > 0


def test_nobody_waits_for_work_of_the_dead(container: Container) -> None:
    """One process was killed within a kernel that was said to take a minute."""
    with container.contexts("many", "1") as process:
        now = container.machine.busy(container.machine.cards[0].uuid).now_ns
        container.slot.leave_dead(1, 0, open_since=now, open_until=now + 60 * 10**9)
        begin(process)
        assert container.share() == pytest.approx(SHARE / 10000, abs=NEAR)
