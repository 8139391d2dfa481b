"""From what a card did in each millisecond to what the figures of compute shares say."""

import pytest

from bench.compute.windows import (
    as_long_as_all,
    begun_after,
    disturbed,
    jain,
    least,
    least_spread,
    ratio_error,
    settled_after,
    shares,
    usual,
    woken_after,
    worst,
)

MS = 1_000_000


def _work(*parts: tuple[int, float]) -> list[int]:
    """This many milliseconds, with this share of each."""
    return [round(share * MS) for length, share in parts for _ in range(length)]


def test_each_window_has_its_share() -> None:
    assert shares(_work((10, 1), (10, 0)), 10) == [100 - 10 * i for i in range(11)]


def test_windows_begin_after_the_start() -> None:
    assert shares(_work((10, 1), (10, 0.25)), 10, start=10) == [25]


def test_the_worst_window_counts() -> None:
    work = _work((1000, 0.3), (100, 0.5), (1000, 0.3))
    assert worst(work, 30, 100, 0) == pytest.approx(20)
    assert worst(work, 30, 1000, 0) == pytest.approx(2)


def test_the_usual_error_is_what_nearly_all_windows_keep() -> None:
    few = _work((1000, 0.3), (20, 0.5), (2000, 0.3))
    assert (usual(few, 30, 100, 0), worst(few, 30, 100, 0)) == (0, pytest.approx(4))
    many = _work((1000, 0.3), (80, 0.5), (1000, 0.3))
    assert usual(many, 30, 100, 0) > 2


def test_a_long_piece_of_work_moves_windows() -> None:
    assert least_spread(5, 10) == pytest.approx(4.5)
    pieces = _work((200, 0.1), (5, 1), (1000, 0.1))
    assert settled_after(pieces, 10, 0, len(pieces)) > 100
    assert settled_after(pieces, 10, 0, len(pieces), piece_ms=5) == 0


def test_too_short_a_run_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="too short"):
        worst(_work((500, 0.3)), 30, 1000, 0)


def test_a_control_that_was_recorded_a_moment_shorter_judges_all_the_same() -> None:
    """Recordings are closed one after the other, those of the controls first."""
    (control,), (work,) = as_long_as_all([[_work((1997, 1))], [_work((2000, 0.3))]])
    assert len(control) == len(work) == 1997
    assert settled_after(work, 30, 0, len(work), control) == 0
    assert worst(work, 30, 100, 0, control) == 0


def test_settled_is_when_every_tenth_of_a_second_is_near() -> None:
    assert settled_after(_work((2000, 0.5)), 50, 0, 2000) == 0
    # of a window that begins after 40 ms, at most 3 of 100 ms are wrong by 100 points
    assert settled_after(_work((200, 1), (1800, 0)), 0, 0, 2000) == 197
    assert settled_after(_work((2000, 0.5)), 10, 0, 2000) == 2000


def test_one_window_in_twenty_may_be_off_when_it_is_settled() -> None:
    made_up_for = _work((200, 0.5), (8, 1), (8, 0), (1000, 0.5))
    assert worst(made_up_for, 50, 100, 0) == pytest.approx(4)
    assert settled_after(made_up_for, 50, 0, len(made_up_for)) == 0
    left = _work((200, 0.5), (8, 1), (1000, 0.5))
    assert settled_after(left, 50, 0, len(left)) > 100


def test_what_comes_a_second_after_it_settled_does_not_count() -> None:
    work = _work((50, 1), (1500, 0.5), (50, 1), (400, 0.5))
    assert settled_after(work, 50, 0, len(work)) == pytest.approx(47, abs=3)


def test_a_change_is_settled_from_its_own_time() -> None:
    work = _work((1000, 0.5), (20, 0.5), (980, 0.2))
    assert settled_after(work, 20, 1000, 2000) == 10


def test_the_ratio_of_two_is_of_their_own_work() -> None:
    assert ratio_error(_work((2000, 0.3)), _work((2000, 0.3)), 50, 0) == 0
    assert ratio_error(_work((2000, 0.2)), _work((2000, 0.6)), 30, 0) == pytest.approx(5)
    assert ratio_error([0] * 2000, [0] * 2000, 50, 0) == 100


def test_windows_in_which_the_machine_was_busy_do_not_count() -> None:
    work = _work((1000, 0.5), (10, 0), (1000, 0.5))
    stalled = _work((1000, 1), (10, 0), (1000, 1))
    assert worst(work, 50, 100, 0) == pytest.approx(5)
    assert worst(work, 50, 100, 0, stalled) < 1
    assert worst(work, 50, 100, 0, _work((2010, 1))) == pytest.approx(5)
    assert worst(work, 50, 100, 0, _work((2010, 0))) is None
    assert usual(work, 50, 100, 0, _work((2010, 0))) is None
    assert ratio_error(work, work, 50, 0, _work((2010, 0))) is None
    assert settled_after(work[700:], 50, 0, 1310) > 0
    assert settled_after(work[700:], 50, 0, 1310, stalled[700:]) == 0
    assert ratio_error(work, _work((2010, 0.5)), 50, 0, stalled) < 0.2


def test_disturbed_windows_are_unknown_and_not_settled() -> None:
    work = _work((2000, 0.5))
    assert settled_after(work, 50, 0, 2000, _work((2000, 0))) is None
    assert settled_after(work, 50, 0, 2000, _work((900, 0), (1100, 1))) == 999
    quiet_then_off = _work((1000, 0.5), (1000, 0.1))
    assert settled_after(quiet_then_off, 10, 0, 2000, _work((600, 1), (1400, 0))) is None


def test_how_much_is_unknown_is_told() -> None:
    assert disturbed(_work((1100, 1)), 100) == 0
    assert disturbed(_work((1100, 0)), 100) == 100
    assert disturbed(_work((1000, 1), (500, 0), (600, 1)), 0) == pytest.approx(36, abs=3)


def test_a_stall_of_any_processor_counts() -> None:
    assert least([_work((2, 1), (1, 0.5)), _work((1, 0), (2, 1))]) == [0, MS, MS // 2]


def test_a_share_that_never_settles_is_found_out_beside_a_stall() -> None:
    stalled = _work((1000, 1), (10, 0), (1000, 1))
    assert settled_after(_work((2010, 0.4)), 50, 0, 2010, stalled) == 2010


def test_a_container_that_wakes_is_timed_until_it_begins_and_until_it_has_its_share() -> None:
    late = _work((1000, 0), (5, 0), (1, 0.1), (14, 0), (100, 0.7))
    assert (begun_after(late, 1000), woken_after(late, 70, 1000)) == (5, 20)
    assert (begun_after(_work((1040, 0)), 1000), woken_after(_work((1040, 0)), 70, 1000)) == (
        40,
        40,
    )


def test_jains_index() -> None:
    assert jain([3, 3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0
