"""A node of simulated cards with the node agent's part of it: containers as they are deployed."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import simgpu
from bench.figures import ROOT
from mizar_core.models import ComputeMode

LIBRARY = ROOT / "build" / "shim" / "testing" / "libmizar.so"


@dataclass(frozen=True)
class Division:
    """How the shadow pod that holds a card divides it. `memory`: bytes of each device; None for an
    even part of the card's."""

    devices: int = 16
    memory: int | None = None
    compute: ComputeMode = "None"
    core_scaling: str = "1"


class Node:
    """`divisions`: how each of the machine's cards is divided; None for a card that is not shared.
    Use it as a context manager: the agent runs in it, as the process `pid`."""

    pid: int

    def __init__(
        self, folder: Path, machine: simgpu.Machine, divisions: Sequence[Division | None]
    ) -> None:
        self.machine = machine
        self._uuids = [card.uuid for card in machine.cards]
        folder.mkdir(parents=True, exist_ok=True)
        self._divisions = self._by_card(divisions)
        self._given = {
            "folder": str(folder),
            "library": str(LIBRARY),
            "divisions": self._divisions,
            "driver": str(machine.directory / "driver"),
            "environment": simgpu.environment(machine.directory),
        }

    def __enter__(self) -> Self:
        self._connection, agents = socket.socketpair()
        with agents:
            socket.send_fds(_agents(), [json.dumps(self._given).encode()], [agents.fileno()])
        self._told = self._connection.makefile("r")
        self.pid = int(self._answer())
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection, self._told, suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            self._told.read()  # until it has ended

    def container(
        self, devices: Mapping[str, int] | None = None, priority: int = 0, **env: str
    ) -> dict[str, str]:
        """The environment of the programs of one more container, which may start now. `devices`:
        how many it has of each card, by the card's UUID; None for one of each shared card.
        `priority`: its pod's."""
        devices = devices or dict.fromkeys(self._divisions, 1)
        slot = self._do(do="container", devices=devices, priority=priority)
        return self._environment(slot, env)

    def borrower(self, uuid: str, **env: str) -> dict[str, str]:
        """The same for a container that borrows the card."""
        return self._environment(self._do(do="borrower", uuid=uuid), env)

    def _environment(self, slot: str, env: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(LIBRARY),
            "MIZAR_DIR": slot,
            **simgpu.environment(self.machine.directory),
            **env,
        }

    def permit(self, divisions: Sequence[Division | None]) -> None:
        """Divide the cards so from now on, into as many devices as before; None for a card that
        stays as it is. Returns when the containers' limits are written."""
        self._do(do="permit", divisions=self._by_card(divisions))

    def _by_card(self, divisions: Sequence[Division | None]) -> dict[str, Mapping[str, Any]]:
        pairs = zip(self._uuids, divisions, strict=True)
        return {uuid: asdict(division) for uuid, division in pairs if division}

    def _do(self, **command: object) -> str:
        self._connection.sendall(f"{json.dumps(command)}\n".encode())
        return self._answer()

    def _answer(self) -> str:
        line = self._told.readline()
        if not line:
            raise RuntimeError("the node agent has ended; it says why on standard error")
        return line.rstrip("\n")


@cache
def _agents() -> socket.socket:
    """Where agents are ordered: from a process that ends with this one."""
    orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "support.node_agent", str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def end() -> None:
        orders.close()
        process.wait()

    atexit.register(end)
    return orders
