"""Wakes an owner, and observes its card until its borrower is gone."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.spot.stage import Owner, Record
from simgpu.machine import Machine
from support.waiting import wait_for

LOOK_S = 0.0005
WITHIN_S = 1.5
"""Seconds of observation. A borrower that is still there then counts as having stayed that long."""
LOADED_NS = 1_000_000_000
"""A borrower that has used this many ns of the card's time is at full load."""
ALONE_S = 0.7
"""Seconds after its work until the owner is woken again, long before its card is lent."""


@dataclass(frozen=True)
class Waking:
    """An owner woken twice: first beside a borrower, then alone. `paused`, `free`: when the card
    last worked for the borrower, and when its last process had gone (ns of CLOCK_MONOTONIC).
    `waited_beside`, `waited_alone`: ns that the owner waited for a processor in these seconds."""

    owner: Owner
    beside: Record
    alone: Record
    paused: int
    free: int
    waited_beside: int
    waited_alone: int

    def __str__(self) -> str:
        return (
            f"{self.owner.pod}: paused {self.paused_ms:.1f} ms, free {self.free_ms:.0f} ms after "
            f"it woke; {self.beside.kernels} kernels in that second, {self.alone.kernels} alone"
        )

    @property
    def paused_ms(self) -> float:
        """Milliseconds from the owner's first launch until the card last worked for the
        borrower."""
        return max(0, self.paused - self.beside.woke) / 1e6

    @property
    def free_ms(self) -> float:
        """Milliseconds from the owner's first launch until no process of the borrower was left on
        the card."""
        return max(0, self.free - self.beside.woke) / 1e6

    @property
    def slowdown_percent(self) -> float:
        """By how many percent less the owner did in its first second than in a second alone."""
        return 100 * (1 - self.beside.kernels / self.alone.kernels)

    @property
    def waited_percent(self) -> float:
        """How much longer, in percent of that second, the owner waited for a processor than
        alone."""
        return (self.waited_beside - self.waited_alone) / 1e7


def wait_lent(owner: Owner, machine: Machine) -> None:
    """Wait until a borrower works on the owner's card."""

    def so() -> bool:
        found = machine.processes(owner.card).values()
        return any(one.pid not in (owner.pid, 0) and one.work_ns > LOADED_NS for one in found)

    wait_for(f"the card of {owner.pod} to be lent", so)


def woken_alone(owner: Owner) -> Record:
    """The owner's first waking, before its card is borrowed."""
    _wake(owner)
    return _recorded(owner, 0)


def woken(owner: Owner, machine: Machine, number: int) -> Waking:
    """Wake the owner of a card that is lent; it has been woken `number` times before."""
    slots, waited = _others(owner, machine), [_waited_ns(owner)]
    _wake(owner)
    paused, free = _watch(machine, owner.card, slots)
    beside = _recorded(owner, number)
    waited.append(_waited_ns(owner))
    time.sleep(ALONE_S)
    _wake(owner)
    alone = _recorded(owner, number + 1)
    waited.append(_waited_ns(owner))
    free = alone.ended if _others(owner, machine) else free
    return Waking(owner, beside, alone, paused, free, *(b - a for a, b in pairwise(waited)))


def _wake(owner: Owner) -> None:
    """Have the owner work for a second."""
    order = os.open(owner.wake, os.O_RDWR)
    os.write(order, b"w")
    os.close(order)


def _recorded(owner: Owner, number: int) -> Record:
    """Wait for the owner's record of that number, from 0 on."""
    return wait_for(f"{owner.pod} to have worked", lambda: owner.record(number), interval=0.02)


def _waited_ns(owner: Owner) -> int:
    """ns that its threads were ready to run and had no processor, in total."""
    threads = Path(f"/proc/{owner.pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[1]) for one in threads)


def _others(owner: Owner, machine: Machine) -> list[int]:
    """The slots of the processes on the card that are not the owner's."""
    slots = machine.processes(owner.card)
    return [slot for slot, one in slots.items() if one.pid not in (owner.pid, 0)]


def _watch(machine: Machine, card: int, slots: list[int]) -> tuple[int, int]:
    """Returns (paused, free) as in Waking."""
    begun = now = paused = time.monotonic_ns()
    works = dict.fromkeys(slots, 0)
    while works and now - begun < WITHIN_S * 1e9:
        for slot, before in list(works.items()):
            process, now = machine.process(slot, card), time.monotonic_ns()
            if process is None or not process.pid:
                del works[slot]
            elif process.work_ns > before:
                works[slot], paused = process.work_ns, now
        time.sleep(LOOK_S)
    return paused, now
