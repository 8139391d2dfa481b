"""Runs a command and freezes its processes now and then: `freeze.py SECONDS SEED COMMAND...`.

About every MOMENT_S, the first process, a random one or all are stopped for SECONDS, as on a
machine that has no processor for them. A fast test that fails because of it depends on real time:

    python hack/freeze.py 2 1 .venv/bin/pytest tests/unit/nodeagent
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOMENT_S = 0.5
STOPPED_OR_DEAD = "TtZ"


def main(seconds: str, seed: str, *command: str) -> int:
    """The command's exit status."""
    chance = random.Random(seed)
    frozen = 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(chance.uniform(0, 2 * MOMENT_S))
            chosen = _choose(chance, [process.pid, *_running_below(process.pid)])
            _signal(chosen, signal.SIGSTOP)
            time.sleep(float(seconds))
            _signal(chosen, signal.SIGCONT)
            frozen += 1
    print(f"frozen {frozen} times, seed {seed}", file=sys.stderr)
    return process.returncode


def _choose(chance: random.Random, pids: list[int]) -> list[int]:
    return chance.choice([pids, pids[:1], [chance.choice(pids)]])


def _running_below(root: int) -> list[int]:
    """Descendants of the process `root`, except those that a test has stopped."""
    children: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
            children.setdefault(int(parent), []).append((int(stat.parent.name), state))
    found, ask = list[int](), [root]
    while ask:
        below = children.get(ask.pop(), [])
        ask += [pid for pid, _ in below]
        found += [pid for pid, state in below if state not in STOPPED_OR_DEAD]
    return found


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
