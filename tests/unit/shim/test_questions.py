"""Everything that tests/gpu needs, except a card: otherwise its tests would fail on the day that
there is one."""

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

from .test_relaxed import HARMLESS, relaxed_calls

QUESTIONS = {
    "events": [],
    "captures": [],
    "names": [],
    "kernels": ["3", str(KERNEL_NS)],
}


NOT_ASKED = {
    "cuCtxFromGreenCtx": "takes a green context, whose making differs by card and driver",
    "cuDestroyExternalMemory": "takes memory of Vulkan or another such library",
    "cuIpcCloseMemHandle": "takes memory of another process",
}
"""Calls of the shim about which `questions captures` does not ask, and why."""


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


def test_all_that_the_shim_calls_beside_captures_is_asked(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    asked = {name: (bare, relaxed) for name, bare, relaxed in ask(tmp_path, "captures")}
    called = relaxed_calls() | HARMLESS
    assert called - set(asked) == set(NOT_ASKED)
    assert [name for name in called & set(asked) if asked[name][1] != "allowed"] == []
    assert [name for name in HARMLESS if asked[name][0] != "allowed"] == []


def test_answers_are_compared_with_what_the_shim_defines() -> None:
    assert constant("AT_ONCE") > 0
