"""An owner whose card is lent while it sleeps: whatever it does shows that it wakes, and an
allocation that does not fit beside the borrower waits until the borrower is gone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simgpu
from support.waiting import PATIENCE_S

from .slot import BUILD, MIB, Card, Slot

TOTAL = 4096
CONTEXT = 16
LEFT = 64
OUT_OF_MEMORY = 2
NONE, HARD = range(2)
LEAVES_AFTER_S = 0.3
"""Seconds: longer than a call takes that does not wait."""
WAITS_S = 3.0
"""Seconds that a call waits, at most, for a borrower that does not go."""
TRIES = 3
"""A machine that is busy may take as long for a call that does not wait, but not each time."""


class Owner:
    """A program on a card of which another program has all but a little."""

    def __init__(self, folder: Path, layout: dict[str, Any], mode: int) -> None:
        self.machine = simgpu.create(
            folder / "machine", cards=1, memory_mib=TOTAL, context_bytes=CONTEXT * MIB
        )
        self.slot = Slot(folder / "slot", layout)
        (card,) = self.machine.cards
        limits = Card(card.uuid, 2048 * MIB, compute_mode=mode, context_bytes=CONTEXT * MIB)
        self.slot.set_limits(limits)
        shim = {
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
        }
        self._owner = self._start(shim)
        self.borrow()

    def borrow(self) -> None:
        """Start a borrower, which leaves LEFT of the card."""
        self._borrower = self._start({})
        (card,) = self.machine.cards
        assert self._tell(self._borrower, "alloc", (card.total - card.used) // MIB - LEFT) == 0

    def _start(self, env: dict[str, str]) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], **env, **simgpu.environment(self.machine.directory)}
        pipe = subprocess.PIPE
        command = [str(BUILD / "tests" / "sleeper")]
        made = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        assert made.stdout and made.stdout.readline() == "up\n"
        return made

    @staticmethod
    def _tell(process: subprocess.Popen[str], what: str, mib: int) -> int:
        assert process.stdin and process.stdout
        process.stdin.write(f"{what} {mib}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def do(self, what: str, mib: int = 0) -> int:
        """The driver's answer."""
        return self._tell(self._owner, what, mib)

    def lend(self, lent: bool = True) -> None:
        """Lend the card, as the node agent writes it."""
        self.slot.set_live(0, "borrowed", int(lent))
        self.slot.set_asleep(int(lent))

    @property
    def woke_at(self) -> int:
        return self.slot.compute(0, "wanted_at")

    def borrower_leaves(self) -> None:
        with self._borrower as one:
            one.kill()
        self.lend(False)
        self.left_at = time.monotonic()

    def close(self) -> None:
        for one in (self._owner, self._borrower):
            with one:
                one.kill()
        self.machine.close()


@pytest.fixture(params=[NONE, HARD], ids=["unlimited", "hard"])
def owner(
    request: pytest.FixtureRequest, tmp_path: Path, layout: dict[str, Any]
) -> Iterator[Owner]:
    made = Owner(tmp_path, layout, request.param)
    yield made
    made.close()


def test_every_launch_tells_while_the_card_is_lent(owner: Owner) -> None:
    """Also one that the thread has paid for already."""
    for _ in range(3):
        assert owner.do("launch") == 0
    owner.lend()
    for _ in range(3):
        before = owner.woke_at
        assert owner.do("launch") == 0
        assert owner.woke_at > before


@pytest.mark.parametrize("what", ["copy", "clear"])
def test_who_only_copies_tells_while_the_card_is_lent(owner: Owner, what: str) -> None:
    before = owner.woke_at
    assert owner.do(what) == 0
    assert owner.woke_at == before, "it takes nobody's time from neighbours"
    owner.lend()
    for _ in range(3):
        before = owner.woke_at
        assert owner.do(what) == 0
        assert owner.woke_at > before


@pytest.mark.parametrize("what", ["alloc", "pool", "array", "context"])
def test_what_takes_memory_tells(owner: Owner, what: str) -> None:
    owner.lend()
    before = owner.woke_at
    assert owner.do(what, 1) == 0
    assert owner.woke_at > before


@pytest.mark.parametrize("what", ["alloc", "pool", "array"])
def test_what_does_not_fit_waits_for_the_borrower(owner: Owner, what: str) -> None:
    """A borrower that leaves too late, since the machine was busy, shows nothing."""
    until = time.monotonic() + PATIENCE_S
    while True:
        owner.lend()
        began = time.monotonic()
        leaving = threading.Timer(LEAVES_AFTER_S, owner.borrower_leaves)
        leaving.start()
        answer, took = owner.do(what, 1024), time.monotonic() - began
        leaving.join()
        if answer == 0 or owner.left_at < began + WAITS_S:
            break
        assert time.monotonic() < until
        owner.borrow()
    assert answer == 0
    assert LEAVES_AFTER_S <= took < PATIENCE_S


def shortest(owner: Owner, mib: int, answer: int) -> float:
    """Seconds that the shortest of some allocations took, all of which had that answer."""
    took = []
    for _ in range(TRIES):
        began = time.monotonic()
        assert owner.do("alloc", mib) == answer
        took.append(time.monotonic() - began)
    return min(took)


def test_what_fits_does_not_wait(owner: Owner) -> None:
    owner.lend()
    assert shortest(owner, LEFT // (TRIES + 1), 0) < WAITS_S


def test_nobody_waits_for_ever(owner: Owner) -> None:
    """The borrower is not ended."""
    owner.lend()
    began = time.monotonic()
    assert owner.do("alloc", 1024) == OUT_OF_MEMORY
    assert WAITS_S <= time.monotonic() - began < PATIENCE_S


def test_the_limits_file_may_set_a_shorter_wait(owner: Owner) -> None:
    owner.slot.set_owner_wait(500)
    owner.lend()
    assert 0.5 <= shortest(owner, 1024, OUT_OF_MEMORY) < WAITS_S


def test_who_lends_nothing_waits_for_nobody(owner: Owner) -> None:
    assert shortest(owner, 1024, OUT_OF_MEMORY) < WAITS_S
