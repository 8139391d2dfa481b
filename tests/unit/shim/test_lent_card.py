"""An owner whose card is lent while it sleeps: whatever it does shows that it wakes, and an
allocation that does not fit beside the borrower waits until the borrower is gone, by a clock that
only its waiting moves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .slot import BUILD, MIB, Card, Slot

TOTAL = 4096
CONTEXT = 16
LEFT = 64
OUT_OF_MEMORY = 2
NONE, HARD = range(2)
LEAVES_AFTER_MS = 317
WAITS_MS = 3000
"""For how long a call waits, at most, for a borrower that does not go."""
SHORTER_MS = 503
LOOKS_MS = 1
"""Milliseconds from one of its looks to the next. The other times here are of no other period."""
MS = 1_000_000


class Owner:
    """A program on a card of which another program has all but a little."""

    def __init__(self, folder: Path, layout: dict[str, Any], mode: int) -> None:
        self.machine = simgpu.create(
            folder / "machine",
            cards=1,
            memory_mib=TOTAL,
            context_bytes=CONTEXT * MIB,
            clock="stepped",
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
        most = (card.total - card.used) // MIB - LEFT
        assert self._tell(self._borrower, f"alloc {most}") == "0 0"

    def _start(self, env: dict[str, str]) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], **env, **simgpu.environment(self.machine.directory)}
        pipe = subprocess.PIPE
        command = [str(BUILD / "tests" / "sleeper")]
        made = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        assert made.stdout and made.stdout.readline() == "up\n"
        return made

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> str:
        assert process.stdin and process.stdout
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline().rstrip()

    def do(self, what: str, mib: int = 0) -> int:
        """The driver's answer."""
        return self.wait(what, mib)[0]

    def wait(self, what: str, mib: int) -> tuple[int, int]:
        """The driver's answer, and for how many ms the call waited."""
        answer, waited = self._tell(self._owner, f"{what} {mib}").split()
        return int(answer), int(waited)

    def wait_while(
        self, what: str, mib: int, after_ms: int, do: Callable[[], None]
    ) -> tuple[int, int]:
        """The same, while something happens that many ms after the call's begin. It must wait for
        so long."""
        assert self._tell(self._owner, f"pause {after_ms}\n{what} {mib}") == "pausing"
        do()
        answer, waited = self._tell(self._owner, "").split()
        return int(answer), int(waited)

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
def test_a_copy_or_memset_shows_that_the_owner_wakes_only_while_its_card_is_lent(
    owner: Owner, what: str
) -> None:
    before = owner.woke_at
    assert owner.do(what) == 0
    assert owner.woke_at == before, "it takes nobody's time from neighbours"
    owner.lend()
    for _ in range(3):
        before = owner.woke_at
        assert owner.do(what) == 0
        assert owner.woke_at > before


@pytest.mark.parametrize(
    ("what", "mib"), [("alloc", 1), ("pool", 1), ("array", 1), ("array", 0), ("context", 1)]
)
def test_what_takes_memory_tells(owner: Owner, what: str, mib: int) -> None:
    owner.lend()
    before = owner.woke_at
    assert owner.do(what, mib) == 0
    assert owner.woke_at > before


@pytest.mark.parametrize("what", ["alloc", "pool", "array"])
def test_what_does_not_fit_waits_for_the_borrower(owner: Owner, what: str) -> None:
    owner.lend()
    answer, waited = owner.wait_while(what, 1024, LEAVES_AFTER_MS, owner.borrower_leaves)
    assert answer == 0
    assert LEAVES_AFTER_MS <= waited <= LEAVES_AFTER_MS + LOOKS_MS


def test_an_owner_that_waits_for_memory_goes_on_showing_that_it_is_awake(owner: Owner) -> None:
    """Otherwise the card of an owner that waits for long would be lent again."""
    owner.lend()
    assert owner.do("copy") == 0
    before, told = owner.woke_at, list[int]()

    def look_and_leave() -> None:
        told.append(owner.woke_at)
        owner.borrower_leaves()

    assert owner.wait_while("alloc", 1024, LEAVES_AFTER_MS, look_and_leave)[0] == 0
    assert told[0] - before >= (LEAVES_AFTER_MS - LOOKS_MS) * MS


def test_an_owner_stops_waiting_for_memory_once_its_card_is_no_longer_lent(owner: Owner) -> None:
    """Whatever takes the memory then is no borrower."""
    owner.lend()
    found = owner.wait_while("alloc", 1024, LEAVES_AFTER_MS, lambda: owner.lend(False))
    assert found == (OUT_OF_MEMORY, LEAVES_AFTER_MS)


def test_what_fits_does_not_wait(owner: Owner) -> None:
    owner.lend()
    assert owner.wait("alloc", LEFT // 4) == (0, 0)


def test_nobody_waits_for_ever(owner: Owner) -> None:
    """The borrower is not ended."""
    owner.lend()
    answer, waited = owner.wait("alloc", 1024)
    assert answer == OUT_OF_MEMORY
    assert WAITS_MS <= waited <= WAITS_MS + LOOKS_MS


def test_the_limits_file_may_set_a_shorter_wait(owner: Owner) -> None:
    owner.slot.set_owner_wait(SHORTER_MS)
    owner.lend()
    answer, waited = owner.wait("alloc", 1024)
    assert answer == OUT_OF_MEMORY
    assert SHORTER_MS <= waited <= SHORTER_MS + LOOKS_MS


def test_an_owner_whose_card_is_not_lent_does_not_wait_for_memory(owner: Owner) -> None:
    assert owner.wait("alloc", 1024) == (OUT_OF_MEMORY, 0)
