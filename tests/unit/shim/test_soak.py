"""`make soak` in seconds: it looks for the same faults as the run of minutes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any, cast

import pytest

import soak.container as container_module
from soak.container import USABLE, WAYS, Container
from support.effort import EFFORT, SEED, times

from .shell import Shell
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
    assert truth.usable_again >= USABLE


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


class NoShell:
    """Stands in for a program's shell, which is handed to `_usable` alone."""

    def __enter__(self) -> NoShell:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_what_the_first_try_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([70.0, 99.0, 98.5, 100.0])
    monkeypatch.setattr(container_module, "Shell", lambda _env: NoShell())
    monkeypatch.setattr(container_module, "LOOK_S", 0.0)
    monkeypatch.setattr(Container, "_usable", lambda _self, _shell: next(tries))
    monkeypatch.setattr(Container, "_account", lambda _self: (0, 0))
    monkeypatch.setattr(Container, "watch", lambda _self: None)
    stub = object.__new__(Container)
    stub.env, stub.survivor, stub._over = {}, cast(Shell, NoShell()), 0
    truth = stub.truth()
    assert (truth.usable, truth.usable_again) == (70.0, 98.5)
