"""What tests/gpu needs beside a card: else it would fail on the day that there is one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import simgpu
from gpu.conftest import answers, command
from gpu.test_driver import KERNEL_NS, constant
from support.waiting import PATIENCE_S

QUESTIONS = {
    "events": [],
    "captures": [],
    "names": [],
    "kernels": ["3", str(KERNEL_NS)],
}


def ask(folder: Path, *arguments: str) -> list[list[str]]:
    """The answers of questions.c on a simulated card, a list of words for each line."""
    with simgpu.create(folder / "machine", cards=1) as machine:
        done = subprocess.run(
            command(*arguments),
            env=os.environ | simgpu.environment(machine.directory),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    return answers(done.stdout)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_is_answered(question: str, tmp_path: Path, layout: dict[str, Any]) -> None:
    assert ask(tmp_path, question, *QUESTIONS[question])


def test_answers_are_compared_with_what_the_shim_defines() -> None:
    assert constant("AT_ONCE") > 0
