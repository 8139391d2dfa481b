"""Containers that keep simulated cards busy, each with cards of its own, and what they get."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import simgpu
from support.waiting import PATIENCE_S

from .slot import BUILD, MIB, Card, Slot

CONTEXT = 16 * MIB
NEAR = 8.0
"""Points by which a share may be off: the machine may be busy with other things."""
LOOK_S = 0.25
IN_A_ROW = 3


class Container:
    """A program that says `ready`, and begins to keep its cards busy when it reads a line."""

    def __init__(
        self, machine: simgpu.Machine, slot: Slot, cards: Sequence[int], limits: Sequence[Card]
    ) -> None:
        self.cards, self.slot = cards, slot
        self._machine = machine
        self.slot.set_limits(*limits)

    def start(self, *command: str) -> None:
        uuids = [self._machine.cards[card].uuid for card in self.cards]
        env = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            "CUDA_VISIBLE_DEVICES": ",".join(uuids),
            **simgpu.environment(self._machine.directory),
        }
        pipe = subprocess.PIPE
        path = str(BUILD / command[0])
        self._process = subprocess.Popen([path, *command[1:]], env=env, stdin=pipe, stdout=pipe)

    def begin(self) -> None:
        assert self._process.stdin and self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def check(self) -> None:
        assert self._process.poll() is None, f"{self._process.args!r} ended"

    def end(self) -> None:
        with self._process:
            self._process.kill()


class Containers:
    """Use it as a context manager. They run side by side, so that many take no longer than one."""

    def __init__(self, folder: Path, layout: dict[str, Any], cards: int) -> None:
        self._folder, self._layout = folder, layout
        self._machine = simgpu.create(folder / "machine", cards=cards, context_bytes=CONTEXT)
        self._free = list(range(cards))
        self.all: list[Container] = []

    def add(self, mode: int, *shares: int) -> Container:
        """A new one on as many cards, with so many percent of the time of each."""
        cards = [self._free.pop(0) for _ in shares]
        slot = Slot(self._folder / f"slot-{cards[0]}", self._layout)
        limits = [
            Card(
                self._machine.cards[card].uuid,
                4096 * MIB,
                compute_mode=mode,
                core_share=share * 100,
                context_bytes=CONTEXT,
            )
            for card, share in zip(cards, shares, strict=True)
        ]
        self.all.append(Container(self._machine, slot, cards, limits))
        return self.all[-1]

    def begin(self) -> None:
        """Once all have started."""
        for each in self.all:
            each.begin()

    def await_shares(self, wanted: Sequence[Sequence[float]]) -> None:
        """Until each container had what is wanted of each of its cards, in percent, in IN_A_ROW
        looks: a share that only passes by what is wanted does not count."""
        waiting = {
            card: share
            for each, shares in zip(self.all, wanted, strict=True)
            for card, share in zip(each.cards, shares, strict=True)
        }
        right = dict.fromkeys(waiting, 0)
        until = time.monotonic() + PATIENCE_S
        seen = {card: self._busy(card) for card in waiting}
        while waiting:
            time.sleep(LOOK_S)
            before, seen = seen, {card: self._busy(card) for card in waiting}
            had = {card: _percent(before[card], seen[card]) for card in waiting}
            for card, share in had.items():
                right[card] = right[card] + 1 if abs(share - waiting[card]) <= NEAR else 0
            assert time.monotonic() < until, f"cards have {had}, not {waiting}"
            waiting = {card: share for card, share in waiting.items() if right[card] < IN_A_ROW}
        for each in self.all:
            each.check()

    def worked(self, container: Container) -> int:
        """ns that its only card has worked."""
        return self._busy(container.cards[0])[0]

    def _busy(self, card: int) -> tuple[int, int]:
        work, _, now = self._machine.admin.busy(card)
        return work, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            each.end()
        self._machine.close()


def _percent(before: tuple[int, int], now: tuple[int, int]) -> float:
    return 100 * (now[0] - before[0]) / (now[1] - before[1])
