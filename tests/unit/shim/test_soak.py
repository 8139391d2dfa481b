"""`make soak` in seconds: what minutes of it look for is looked for here too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from soak.container import USABLE, WAYS, Container
from support.effort import EFFORT, SEED, times

from .slot import ROOT


@pytest.fixture(scope="module")
def container(
    tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any]
) -> Iterator[Container]:
    with Container(tmp_path_factory.mktemp("soak")) as made:
        yield made


def check(container: Container) -> None:
    truth = container.truth()
    assert (truth.over, truth.lost, truth.uncounted) == (0, 0, 0)
    assert truth.usable >= USABLE


@pytest.mark.parametrize("way", WAYS)
def test_random_work_stays_within_the_limit(way: str, container: Container) -> None:
    container.work(SEED, seconds=0.1 * EFFORT, operations=times(100), way=WAYS[way])
    check(container)


def test_nobody_takes_more_once_the_limit_was_lowered(container: Container) -> None:
    container.lower(SEED, seconds=EFFORT / 3)
    check(container)


def test_launches_go_on_when_others_of_the_container_die(container: Container) -> None:
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    container.launch(SEED, kills=40)


def test_no_moment_to_die_hangs_others_or_loses_a_byte(container: Container) -> None:
    container.kill(SEED, kills=times(100))
    check(container)
