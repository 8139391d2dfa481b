"""How soon a card was lendable, and for how much of its idle time it was lent."""

from __future__ import annotations

import pytest

from bench.spot.timeline import Look, Sleep, lendable_after, lent_percent, lent_seconds


def looks(*moments: str) -> list[Look]:
    """Looks, one a second: "l" lendable, "b" borrowed (and so lendable too), "-" neither."""
    return [Look(at, one in "lb", one == "b") for at, one in enumerate("".join(moments))]


def test_a_card_is_lendable_when_it_becomes_so() -> None:
    assert lendable_after(looks("---lll"), 1.5) == 1.5


def test_what_the_kubelet_still_had_of_an_owner_that_worked_does_not_count() -> None:
    assert lendable_after(looks("ll--l"), 0.5) == 3.5


def test_a_card_that_never_becomes_lendable() -> None:
    assert lendable_after(looks("lll"), 1) is None
    assert lendable_after(looks("-l--"), 2) is None


def test_a_card_is_lent_between_looks_that_both_say_so() -> None:
    assert lent_seconds(looks("-bbb-b-"), Sleep(0, 6)) == 2
    assert lent_seconds(looks("bbbbb"), Sleep(1.25, 3)) == 1.75


def test_idle_time_begins_when_the_owner_has_slept_for_long_enough() -> None:
    lent, never = looks("---bbbbbb"), looks("-" * 9)
    assert lent_percent([(lent, [Sleep(1, 8)])], 2) == 100
    assert lent_percent([(lent, [Sleep(1, 8)])], 1) == pytest.approx(100 * 5 / 6)
    assert lent_percent([(lent, [Sleep(1, 8)]), (never, [Sleep(1, 8)])], 2) == 50


def test_sleeps_that_are_too_short_to_lend_anything() -> None:
    assert lent_percent([(looks("---bbb"), [Sleep(0, 1), Sleep(3, 5)])], 1) == 100
    with pytest.raises(ValueError, match="no owner slept"):
        lent_percent([(looks("---"), [Sleep(0, 1)])], 1)
