"""However many contexts a process makes, the card's time is limited in each of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import simgpu

from .slot import BUILD, MIB, Card, Slot

SHARE = 2500
SECONDS = 0.8


@contextmanager
def working(env: dict[str, str], *command: str) -> Iterator[None]:
    """Runs a test program that says when it is ready, and then works until it is killed."""
    program = [str(BUILD / "tests" / command[0]), *command[1:]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=env, **pipes) as process:
        try:
            assert process.stdout and process.stdin
            assert process.stdout.readline() == b"ready\n"
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield
            assert process.poll() is None
        finally:
            process.kill()


def share_of_card(machine: simgpu.Machine, seconds: float) -> float:
    uuid = machine.cards[0].uuid
    before = machine.busy(uuid)
    time.sleep(seconds)
    after = machine.busy(uuid)
    return (after.work_ns - before.work_ns) / (after.now_ns - before.now_ns)


def test_the_fortieth_context_is_limited_as_the_first(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=MIB) as machine:
        slot = Slot(tmp_path / "slot", layout)
        card = Card(machine.cards[0].uuid, 1024 * MIB, context_bytes=MIB)
        card.compute_mode, card.core_share = 1, SHARE
        slot.set_limits(card)
        env = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(slot.path),
            **simgpu.environment(machine.directory),
        }
        with working(env, "contexts", "40"):
            share_of_card(machine, SECONDS / 4)  # until it is under way
            assert abs(share_of_card(machine, SECONDS) - 0.25) < 0.08
