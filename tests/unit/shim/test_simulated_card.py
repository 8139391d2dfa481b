"""The shim on a simulated card, which keeps its own account of what the processes hold."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import simgpu

from .slot import BUILD, MIB, Card, Slot

LIMIT = 1024 * MIB
CONTEXT = 100 * MIB
WAYS = {"plain": 0, "pitch": 1, "managed": 2, "handles": 13, "mapped": 12, "contexts": 19}
SEED = 20240601


class Container:
    """A machine with one card, and a slot that allows LIMIT bytes of it."""

    def __init__(self, folder: Path, layout: dict[str, Any]) -> None:
        self.machine = simgpu.create(folder / "machine", cards=1, context_bytes=CONTEXT)
        self.slot = Slot(folder / "slot", layout)
        self.slot.set_limits(Card(self.machine.cards[0].uuid, LIMIT, context_bytes=CONTEXT))
        self.env = {
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            **simgpu.environment(self.machine.directory),
        }

    @contextmanager
    def soak(self, seed: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """shim/tests/soak.c: random work, checked by itself."""
        command = [str(BUILD / "tests" / "soak"), str(seed), *arguments]
        with subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE) as process:
            yield process
            process.kill()

    def used(self) -> int:
        """What the card says; read again where a death in between made it count twice."""
        used = self.machine.cards[0].used
        return used if used <= LIMIT else self.machine.cards[0].used


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Container:
    return Container(tmp_path, layout)


@pytest.mark.parametrize("way", WAYS)
def test_the_card_never_holds_more_than_the_limit(way: str, container: Container) -> None:
    with container.soak(SEED, "150", "2", str(WAYS[way])) as process:
        while process.poll() is None:
            assert container.used() <= LIMIT
        assert process.returncode == 0, process.stderr and process.stderr.read()


def test_kills_at_any_moment_lose_no_byte(container: Container) -> None:
    chance = random.Random(SEED)
    for seed in range(8):
        with container.soak(seed, "1000000", "2") as process:
            for _ in range(chance.randrange(1, 12)):
                container.used()
            process.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert container.machine.cards[0].used == 0
    sample = [BUILD / "tests" / "shell"]
    ask = f"init\nuse 0\nalloc {LIMIT - CONTEXT}\nalloc {2 * MIB}\n"
    done = subprocess.run(sample, env=container.env, input=ask, capture_output=True, text=True)
    assert done.stdout.split()[::2] == ["0", "0", "0", "2"], done.stderr
