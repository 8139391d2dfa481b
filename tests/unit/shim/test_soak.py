"""`make soak` in seconds: what minutes of it look for is looked for here too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.container import WAYS, Container
from support.effort import EFFORT, SEED, times

from .slot import ROOT


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Iterator[Container]:
    with Container(tmp_path) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_random_work_stays_within_the_limit(way: str, container: Container) -> None:
    container.work(SEED, seconds=0.1 * EFFORT, operations=times(100), way=WAYS[way])
    truth = container.truth()
    assert (truth.over, truth.lost) == (0, 0)


def test_nobody_takes_more_once_the_limit_was_lowered(container: Container) -> None:
    container.lower(SEED, seconds=EFFORT / 3)
    truth = container.truth()
    assert (truth.over, truth.lost) == (0, 0)


def test_launches_go_on_when_others_of_the_container_die(container: Container) -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    container.launch(SEED, kills=40)


def test_no_moment_to_die_hangs_others_or_loses_a_byte(container: Container) -> None:
    container.kill(SEED, kills=times(100))
    assert container.truth().lost == 0
