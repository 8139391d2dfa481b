"""Programs under the shim that have the simulated machine's clock, which only waiting moves
(programs/sharedclock.c): what a program of one thread has of a card is the same on every machine,
and takes no real time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import simgpu
from support.waiting import wait_for

from .busy import CONTEXT
from .slot import BUILD, MIB, Card, Slot

PRELOAD = f"{BUILD / 'tests' / 'libsharedclock.so'}:{BUILD / 'testing' / 'libmizar.so'}"
"""LD_PRELOAD of such a program. Its machine's clock is `stepped`."""
LOOK_S = 0.001
"""Seconds of real time between two looks, each of which keeps the program from its card."""
HARD = 1


def share(
    machine: simgpu.Machine,
    ns: int,
    meanwhile: Callable[[], None] = lambda: None,
    uuid: str = "",
) -> float:
    """The part of a card's time that was used, over at least `ns` of the machine's time: of the
    first card, or of that card or MIG device. `meanwhile` is called again and again until then."""
    card = uuid or machine.cards[0].uuid
    before = machine.busy(card)

    def is_over() -> bool:
        meanwhile()
        return machine.busy(card).now_ns - before.now_ns >= ns

    wait_for("the machine's time to pass", is_over, interval=LOOK_S)
    after = machine.busy(card)
    return (after.work_ns - before.work_ns) / (after.now_ns - before.now_ns)


@contextmanager
def started(
    machine: simgpu.Machine, slot: Slot, *command: str, **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the container whose slot this is, which has said `ready`."""
    environment = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": PRELOAD,
        "MIZAR_DIR": str(slot.path),
        **simgpu.environment(machine.directory),
        **env,
    }
    path, pipe = BUILD / command[0], subprocess.PIPE
    with subprocess.Popen(
        [path, *command[1:]], env=environment, stdin=pipe, stdout=pipe
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            yield process
            assert process.poll() is None
        finally:
            process.kill()


def begin(process: subprocess.Popen[bytes]) -> None:
    """Let the program begin, by a line that it reads."""
    assert process.stdin
    process.stdin.write(b"\n")
    process.stdin.flush()


@contextmanager
def running(machine: simgpu.Machine, slot: Slot, *command: str, **env: str) -> Iterator[None]:
    """The same, and it has begun."""
    with started(machine, slot, *command, **env) as process:
        begin(process)
        yield


@contextmanager
def running_with_shares(
    folder: Path, layout: dict[str, Any], shares: Sequence[int], *command: str
) -> Iterator[simgpu.Machine]:
    """The same on a machine of its own with a card for each of the shares: the percent of the
    card's time that the program has and no more."""
    with simgpu.create(
        folder / "machine", cards=len(shares), context_bytes=CONTEXT, clock="stepped"
    ) as machine:
        slot = Slot(folder / "slot", layout)
        slot.set_limits(
            *(
                Card(
                    card.uuid,
                    4096 * MIB,
                    compute_mode=HARD,
                    core_share=percent * 100,
                    context_bytes=CONTEXT,
                )
                for card, percent in zip(machine.cards, shares, strict=True)
            )
        )
        with running(machine, slot, *command):
            yield machine
