"""Which case a figure of compute shares is taken from, and what the machine took of that case."""

import pytest

from bench.area_compute import _Found, _ratio, _worst
from bench.compute.rig import Case, Tenant, Work
from bench.compute.runner import SETTLING_MS, Result, Value

MS = 1_000_000
LENGTH = SETTLING_MS + 1000


def work(share: float, but: float = 0, after: int = LENGTH) -> Work:
    """A share of each millisecond, and another one after so many."""
    return [round((share if at < after else but) * MS) for at in range(LENGTH)]


def result(share: float, lost_after: int = LENGTH) -> Result:
    """A container with this share, but nothing from the time on at which the machine is busy."""
    case = Case("case", (Tenant(("us_20",)),))
    return Result(case, [work(share, 0, lost_after)], work(1, 0, lost_after), 100 * share)


def test_a_figure_was_disturbed_as_much_as_the_case_that_it_is_taken_from() -> None:
    values = [Value(1.0, 0.0), Value(3.0, 40.0), Value(2.0, 90.0)]
    highest, lowest = _worst("a", values, "points"), _worst("a", values, "points", "", min)
    assert (highest.value, highest.disturbed_percent) == (3, 40)
    assert (lowest.value, lowest.disturbed_percent) == (1, 0)
    assert (highest.spread, highest.runs) == ((1, 3), 3)


def test_each_figure_of_a_part_has_its_own() -> None:
    calm, busy = result(0.5), result(0.5, lost_after=LENGTH - 500)
    found = _Found()
    found.add("20 us", "of_busy", 5.0, busy)
    found.add("20 us", "of_busy", 1.0, calm)
    found.add("5 ms", "of_calm", 1.0, busy)
    found.add("5 ms", "of_calm", 5.0, calm)
    found.add("5 ms", "of_calm", None, busy)
    assert found.figure("of_busy", "points").disturbed_percent == busy.disturbed > 40
    assert found.figure("of_calm", "points").disturbed_percent == 0


def test_a_mean_is_of_known_windows() -> None:
    (share,) = result(0.5, lost_after=LENGTH - 500).percents()
    assert share == pytest.approx(50, abs=0.2)


def test_of_a_case_of_which_nothing_is_known_the_mean_means_nothing() -> None:
    lost = result(0.5, lost_after=0)
    assert (lost.percents(), lost.disturbed) == ([0], 100)


def test_a_ratio_is_as_uncertain_as_the_worse_of_both_cases() -> None:
    calm, busy = result(0.5), result(0.25, lost_after=LENGTH - 500)
    assert _ratio((calm, busy)).value == pytest.approx(0.5, abs=0.01)
    assert _ratio((calm, busy)).disturbed == _ratio((busy, calm)).disturbed == busy.disturbed
