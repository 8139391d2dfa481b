"""What a report says of its figures: whether goals are met, and whether they mean anything."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from bench import __main__ as program
from bench.area_shim import _many, _ratios
from bench.figures import DISTURBED_MOST, Figure, Report


def one(name: str, value: float, goal: str = "", disturbed: float = 0) -> Figure:
    return Figure(name, value, "ns", goal, 1, (value, value), "", disturbed)


def test_a_goal_is_met_or_missed() -> None:
    figures = [
        one("low", 5, "<= 5"),
        one("high", 4, ">= 5"),
        one("none", 9),
        one("more", 6, "<= 5"),
    ]
    assert [each.met for each in figures] == ["yes", "no", "", "no"]
    assert Report("x", figures).missed == ["high", "more"]


def test_what_was_disturbed_too_much_is_not_measured() -> None:
    figures = [one("a", 1, disturbed=DISTURBED_MOST), one("b", 1, disturbed=DISTURBED_MOST + 0.1)]
    report = Report("x", figures, unmeasured=["c: no card"])
    assert [each.split(":")[0] for each in report.problems] == ["c", "b"]


@pytest.mark.parametrize(
    ("figures", "strict", "code"),
    [
        ([one("a", 6, "<= 5")], False, 0),
        ([one("a", 6, "<= 5")], True, 1),
        ([one("a", 4, "<= 5")], True, 0),
        ([one("a", 4, "<= 5", disturbed=50)], False, 1),
    ],
)
def test_a_missed_goal_fails_where_that_is_asked_for(
    figures: list[Figure], strict: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report("shim", figures)
    area = SimpleNamespace(measure=lambda: report)
    monkeypatch.setattr(report, "write", lambda: "nowhere")
    monkeypatch.setattr(program.importlib, "import_module", lambda name: area)
    monkeypatch.setattr(program, "STRICT", strict)
    monkeypatch.setattr(sys, "argv", ["bench", "shim"])
    assert program.main() == code


def test_the_worst_way_to_launch_is_the_figure_for_many() -> None:
    figures = [one("launch_overhead_1t_ns", 3), one("launch_overhead_2_streams_ns", 9)]
    (worst,) = _many([*figures, one("launch_overhead_8t_ns", 20)])
    assert (worst.name, worst.value) == ("launch_overhead_many_ns", 9)
    assert worst.beside == "launch_overhead_2_streams_ns"


def test_ratios_are_to_what_was_measured_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    basics = {"call": 2.0, "add": 1.0, "swap": 5.0, "probe": 1.0}
    monkeypatch.setattr("bench.area_shim._run", lambda arguments, env: basics[arguments[0]])
    figures = [
        one("launch_overhead_1t_ns", 6),
        one("launch_overhead_many_ns", 20),
        one("alloc_free_overhead_ns", 60),
    ]
    found = {each.name: each.value for each in _ratios(figures)}
    assert (found["launch_ratio"], found["alloc_free_ratio"]) == (3, 5)
    assert found["launch_many_ratio"] == 10
