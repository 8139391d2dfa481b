"""The watcher that runs beside the end-to-end tests reports when it has not watched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from e2e import watcher
from e2e.watcher import NodeWatch, Watcher
from support.waiting import wait_for
from support.watcher_faults import Held, Look


class Node:
    """Stands in for a node: each of its looks is the next of `answers`, then an error."""

    def __init__(self, answers: Iterator[Look | None]) -> None:
        self._answers = answers

    def look(self) -> Look | None:
        return next(self._answers)


def watcher_of(*answers: Look | None) -> Watcher:
    return Watcher([cast(NodeWatch, Node(iter(answers)))])


@contextmanager
def at_work(one: Watcher) -> Iterator[None]:
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        yield
    finally:
        one.end()
        thread.join()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "EVERY_S", 0.0)


LOOK = Look("node-1")


def test_too_few_looks_are_told() -> None:
    one = watcher_of(*[LOOK] * 1_000_000)
    with at_work(one):
        wait_for("looks", lambda: one.rounds >= 30)
    one.check(one.rounds)
    with pytest.raises(AssertionError, match=f"looked {one.rounds} times in {one.rounds + 1} s"):
        one.check(one.rounds + 1)


def test_blind_rounds_are_no_looks_and_no_time() -> None:
    one = watcher_of(*[None] * 1_000_000)
    with at_work(one):
        wait_for("blind rounds", lambda: one.blind >= 30)
    assert one.rounds == 0
    assert one.blind_s > 0
    one.check(one.blind_s)
    one.blind_s = 3600.0
    one.check(3605.0)
    with pytest.raises(AssertionError, match="looked 0 times in 20 s"):
        one.check(3620.0)


def test_what_broke_it_is_told() -> None:
    one = watcher_of(LOOK)
    with at_work(one):
        wait_for("its end", lambda: one._broken is not None)
    with pytest.raises(StopIteration):
        one.check(1.0)


def test_a_fault_that_two_looks_show_is_told_with_the_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    user = Held(
        "team-a/one", "main", "team-a.mizar.share/gpu.2", frozenset({"team-a/shadow-2-x7k4q-0"})
    )
    wrong = Look("node-1", (user,))
    once = watcher_of(wrong, LOOK, wrong, LOOK)
    twice = watcher_of(wrong, wrong, wrong)
    for one in (once, twice):
        while one.looks < 3:
            one._round()
    assert once.found() == []
    (fault,) = twice.found()
    assert "holds no card" in fault
    assert str(wrong) in capsys.readouterr().out
    assert twice.found() == []
