"""A node of simulated cards with the node agent's part of it: containers as they are deployed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import simgpu
from bench.figures import ROOT
from mizar_core.models import ComputeMode

LIBRARY = ROOT / "build" / "shim" / "testing" / "libmizar.so"


class Node:
    """Of each card of the machine, a container has that many bytes of `memory`. Use it as a context
    manager: the agent runs in it."""

    def __init__(
        self,
        folder: Path,
        machine: simgpu.Machine,
        memory: Sequence[int],
        compute: ComputeMode = "None",
        core_scaling: str = "1",
    ) -> None:
        self.machine = machine
        self._uuids = [card.uuid for card in machine.cards]
        folder.mkdir(parents=True, exist_ok=True)
        self._given = {
            "folder": str(folder),
            "library": str(LIBRARY),
            "memory": self._by_card(memory),
            "compute": compute,
            "core_scaling": core_scaling,
        }

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "support.node_agent", json.dumps(self._given)]
        self._agent = subprocess.Popen(
            command,
            env={**os.environ, **simgpu.environment(self.machine.directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        with self._agent:  # closes its pipes and waits for it
            self._agent.kill()

    def container(self, **env: str) -> dict[str, str]:
        """The environment of the programs of one more container, which may start now."""
        return {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(LIBRARY),
            "MIZAR_DIR": self._do(do="container"),
            **simgpu.environment(self.machine.directory),
            **env,
        }

    def permit(self, memory: Sequence[int]) -> None:
        """From now on containers have that many bytes of each card."""
        self._do(do="permit", memory=self._by_card(memory))

    def _by_card(self, memory: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._uuids, memory, strict=True))

    def _do(self, **command: object) -> str:
        assert self._agent.stdin
        self._agent.stdin.write(json.dumps(command) + "\n")
        self._agent.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._agent.stdout
        line = self._agent.stdout.readline()
        if not line:
            raise RuntimeError(f"the node agent ended with {self._agent.wait()}")
        return line.rstrip("\n")
