"""A CUDA program under the shim that executes commands: programs/shell.c."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from support.waiting import PATIENCE_S

from .slot import BUILD

SUCCESS = 0
OUT_OF_MEMORY = 2
SYSTEM_NOT_READY = 802


class Answer(NamedTuple):
    code: int
    detail: int


class Shell:
    """One process, killed at the end of the `with` block."""

    def __init__(self, env: dict[str, str], start: bool = True, under: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*under, str(BUILD / "tests" / "shell")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if start:
            assert self("init").code == SUCCESS
            self("use", 0)

    def __call__(self, command: str, number: int = 0) -> Answer:
        """Sends one command and waits for its answer."""
        self.send(command, number)
        return self.answer()

    def answer(self) -> Answer:
        """The answer to the last command."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"died: {self.errors()}"
        code, detail = line.split()
        return Answer(int(code), int(detail))

    def send(self, command: str, number: int = 0) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{command} {number}\n")
        self.process.stdin.flush()

    def alloc(self, size: int) -> int:
        """The CUDA result of an allocation."""
        return self("alloc", size).code

    def free_and_total(self) -> tuple[int, int]:
        answer = self("info")
        return answer.code, answer.detail

    def kill(self) -> None:
        """SIGKILL; the process stays a zombie until wait()."""
        self.process.send_signal(signal.SIGKILL)

    def errors(self) -> str:
        """Ends the process and returns what it wrote to stderr."""
        return self.process.communicate(timeout=PATIENCE_S)[1]

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)
