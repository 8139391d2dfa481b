"""Containers that keep simulated cards busy, and what they get of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import simgpu
from mizar_core.models import ComputeMode
from support.node import Division, Node

from .slot import BUILD, MIB, Card, Slot

CONTEXT = 16 * MIB
NEAR = 8.0
"""Points by which a share may differ: the machine may be busy with other things."""
KEPT = 0.7
"""The least part of its share that a container must use: no work at all may be NEAR a small one."""
LOOK_S = 0.25
IN_A_ROW = 3
SHARES_WITHIN_S = 100.0
"""Programs need real processor time to have their shares: beside the rest of `make test`, sometimes
a whole minute contained no 1.5 s in which they had a processor."""
ABOVE = 1.5
"""On an idle machine, no container exceeds its share by more than this many points in a look."""
UNDISTURBED = 97.0
"""On an idle machine, each control uses at least this percentage of its card."""
TOGETHER = 50.0
"""Several containers together must use at least this percentage of the card, however disturbed the
machine is: below it, their shares say nothing."""
CONTROLS_MOST = 4


class Container:
    """A program that says `ready`, and begins to keep its cards busy when it reads a line. `env`:
    its environment."""

    def __init__(
        self,
        machine: simgpu.Machine,
        cards: Sequence[int],
        env: Mapping[str, str],
        slot: Slot | None = None,
    ) -> None:
        self.cards = cards
        self._machine, self._env, self._slot = machine, env, slot

    @property
    def slot(self) -> Slot:
        """Its files, if no node agent writes them."""
        assert self._slot
        return self._slot

    def start(self, *command: str) -> None:
        uuids = [self._machine.cards[card].uuid for card in self.cards]
        env = {**self._env, "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
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

    def worked(self) -> tuple[int, int]:
        """ns that its only card has worked for it, and the card's time then."""
        (card,) = self.cards
        now, works = self._machine.work(card)
        return works.get(self._process.pid, 0), now

    def end(self) -> None:
        with self._process:
            self._process.kill()


class Controls:
    """Loads without the shim, one on each processor, that keep kind cards of their own busy, two
    milliseconds ahead.

    If one of these cards was idle, the machine was busy with other things, and what containers had
    in that time says nothing. Use it as a context manager.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        processors = sorted(os.sched_getaffinity(0))[:CONTROLS_MOST]
        self._machine = simgpu.create(self._folder, cards=len(processors), profile="ideal")
        env = {"PATH": os.environ["PATH"], **simgpu.environment(self._machine.directory)}
        command, pipe = [str(BUILD / "bench" / "load"), "us_200", "1", "2"], subprocess.PIPE
        self._processes = []
        for processor, card in zip(processors, self._machine.cards, strict=True):
            own = env | {"CUDA_VISIBLE_DEVICES": card.uuid}
            process = subprocess.Popen(command, env=own, stdin=pipe, stdout=pipe)
            self._processes.append(process)
            os.sched_setaffinity(process.pid, {processor})
        for process in self._processes:
            process.stdout.readline()
            process.stdin.write(b"\n")
            process.stdin.flush()
        return self

    def seen(self) -> list[tuple[int, int]]:
        """Of each card what it has worked, and its time then, in ns."""
        busy = (self._machine.state.busy(card) for card in range(len(self._processes)))
        return [(work, now) for work, _, now in busy]

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with process:
                process.kill()
        self._machine.close()


class Containers:
    """Use it as a context manager. They run side by side, so that many take no longer than one."""

    def __init__(
        self, folder: Path, layout: dict[str, Any], cards: int, profile: str | None = None
    ) -> None:
        self._folder, self._layout = folder, layout
        self._machine = simgpu.create(
            folder / "machine", cards=cards, context_bytes=CONTEXT, profile=profile
        )
        self._free = list(range(cards))
        self._stack = ExitStack()
        self.all: list[Container] = []

    def add(self, mode: int, *shares: int) -> Container:
        """Add a container on cards of its own, one for each share (percent of its time). Its limits
        are written once, without the node agent."""
        cards = [self._free.pop(0) for _ in shares]
        slot = Slot(self._folder / f"slot-{len(self.all)}", self._layout)
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
        slot.set_limits(*limits)
        env = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(slot.path),
            **simgpu.environment(self._machine.directory),
        }
        self.all.append(Container(self._machine, cards, env, slot))
        return self.all[-1]

    def share_card(self, mode: ComputeMode, *shares: int) -> list[Container]:
        """Add containers on the only card, with these shares (percent), as they are deployed: the
        node agent runs beside them."""
        (card,) = self._machine.cards
        division = Division(devices=100, compute=mode)
        node = self._stack.enter_context(Node(self._folder / "node", self._machine, [division]))
        for share in shares:
            env = node.container({card.uuid: share})
            self.all.append(Container(self._machine, [0], env))
        return self.all

    def begin(self) -> None:
        """Let all containers begin once they have started."""
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
        until = time.monotonic() + SHARES_WITHIN_S
        seen = {card: self._busy(card) for card in waiting}
        while waiting:
            time.sleep(LOOK_S)
            before, seen = seen, {card: self._busy(card) for card in waiting}
            had = {card: _percent(before[card], seen[card]) for card in waiting}
            for card, share in had.items():
                right[card] = right[card] + 1 if _is_near(share, waiting[card]) else 0
            assert time.monotonic() < until, f"cards have {had}, not {waiting}"
            waiting = {card: share for card, share in waiting.items() if right[card] < IN_A_ROW}
        for each in self.all:
            each.check()

    def await_kept(self, wanted: Sequence[tuple[float, float]], look_s: float = 2 * LOOK_S) -> None:
        """Wait until each container's use of its only card, in percent, was between the two bounds
        in IN_A_ROW looks in a row; looks at a disturbed machine are skipped. Meanwhile, each of
        several containers may have its part of what they had together."""
        with Controls(self._folder / "controls") as controls:
            right, until = 0, time.monotonic() + SHARES_WITHIN_S
            had, control = self._had(), controls.seen()
            while right < IN_A_ROW:
                time.sleep(look_s)
                before, had = had, self._had()
                controlled, control = control, controls.seen()
                found = [*map(_percent, before, had)]
                assert time.monotonic() < until, f"containers have {found} %, not {wanted}"
                disturbed = min(map(_percent, controlled, control)) < UNDISTURBED
                if disturbed and len(found) > 1 and (together := sum(found)) > TOGETHER:
                    found = [100 * one / together for one in found]
                if all(a <= b <= c for b, (a, c) in zip(found, wanted, strict=True)):
                    right += 1
                elif not disturbed:
                    right = 0
        for each in self.all:
            each.check()

    def _had(self) -> list[tuple[int, int]]:
        return [each.worked() for each in self.all]

    def _busy(self, card: int) -> tuple[int, int]:
        work, _, now = self._machine.state.busy(card)
        return work, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            each.end()
        self._stack.close()
        self._machine.close()


def kept(share: float, wanted: float = 100.0) -> tuple[float, float]:
    """What a container of that share may have that wants so much of a card, all in percent."""
    return KEPT * min(share, wanted), share + ABOVE


def _is_near(share: float, wanted: float) -> bool:
    return max(wanted - NEAR, KEPT * wanted) <= share <= wanted + NEAR


def _percent(before: tuple[int, int], now: tuple[int, int]) -> float:
    return 100 * (now[0] - before[0]) / (now[1] - before[1])
