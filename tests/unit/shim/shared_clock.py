"""Programs under the shim that have the simulated machine's clock, which only waiting moves
(programs/sharedclock.c): what a program of one thread has of a card is the same on every machine,
and takes no real time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import simgpu
from support.waiting import wait_for

from .slot import BUILD, Slot

PRELOAD = f"{BUILD / 'tests' / 'libsharedclock.so'}:{BUILD / 'testing' / 'libmizar.so'}"
"""LD_PRELOAD of such a program. Its machine's clock is `stepped`."""
LOOK_S = 0.001
"""Seconds of real time between two looks, each of which keeps the program from its card."""


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
def running(machine: simgpu.Machine, slot: Slot, *command: str, **env: str) -> Iterator[None]:
    """A program in the container whose slot this is: one that says `ready` and begins when it reads
    a line, which it has read inside."""
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
            assert process.stdout and process.stdin
            assert process.stdout.readline() == b"ready\n"
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield
            assert process.poll() is None
        finally:
            process.kill()
