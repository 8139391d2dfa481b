"""`make soak` in seconds: it looks for the same faults as the run of minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import soak.container as container_module
from bench.figures import Report
from soak.__main__ import KILLS, OPERATIONS, Soak, is_bad
from soak.code import LazyContainer
from soak.container import LATE_S, USABLE, WAYS, Container, Truth, waited_s
from support.effort import EFFORT, SEED, times
from support.node import Node
from support.waiting import wait_for

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
    waited = iter([5.0, 5.1])
    monkeypatch.setattr(container_module, "waited_s", lambda _pid: next(waited))
    stub = object.__new__(Container)
    stub.env, stub.survivor, stub._over = {}, cast(Shell, NoShell()), 0
    stub._node = cast(Node, SimpleNamespace(pid=1))
    truth = stub.truth()
    assert (truth.usable, truth.usable_again) == (70.0, 98.5)
    assert truth.late_s == pytest.approx(0.1)


def test_two_that_share_a_processor_wait_for_each_other() -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        both = [stack.enter_context(subprocess.Popen(spin)) for _ in range(2)]
        for one in both:
            stack.callback(one.kill)
            os.sched_setaffinity(one.pid, {min(os.sched_getaffinity(0))})
        before = [waited_s(one.pid) for one in both]
        wait_for(
            "both to wait",
            lambda: all(
                waited_s(one.pid) > was + 0.05 for one, was in zip(both, before, strict=True)
            ),
        )


class Done:
    """Stands in for a container that has done all that a soak needs."""

    operations = OPERATIONS


GOOD = Truth(over=0, lost=0, uncounted=0, usable=99.4, late_s=0.0, took_s=0.1, usable_again=99.4)


def report(*truths: Truth) -> Report:
    soak = Soak(cast(Container, Done()), cast(LazyContainer, None), 0, 0)
    soak.truths, soak._killed = list(truths), KILLS
    return soak._report()


@pytest.mark.parametrize(
    "bad", [{"over": 1}, {"lost": 1}, {"uncounted": 1}, {"usable": 97.9}, {"usable_again": 97.9}]
)
def test_a_round_in_which_a_promise_was_broken_fails_the_soak(
    bad: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIMGPU_PROFILE", raising=False)
    assert not is_bad(report(GOOD, GOOD))
    assert is_bad(report(GOOD, replace(GOOD, **bad)))
    monkeypatch.setenv("SIMGPU_PROFILE", "harsh")
    assert is_bad(report(GOOD, replace(GOOD, **bad))) == ("usable" not in bad)


def test_a_first_try_without_the_agent_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMGPU_PROFILE", raising=False)
    unknown = replace(GOOD, usable=10.0, late_s=LATE_S + 0.1)
    found = report(GOOD, unknown, GOOD, GOOD)
    (usable,) = [one for one in found.figures if one.name == "usable_percent"]
    assert (usable.value, usable.runs, usable.disturbed_percent) == (99.4, 3, 25)
    assert not is_bad(found)
    assert is_bad(report(unknown))
