"""Turns: a few at once, then one after the other."""

from mizar_kube.rate import Rate


def test_turns_are_refused_when_there_is_none() -> None:
    rate = Rate(burst=3, every=10, now=100)
    assert [rate.take(100) for _ in range(4)] == [True, True, True, False]
    assert not rate.take(109)
    assert rate.take(110)
    assert not rate.take(111)


def test_turns_may_be_reserved_ahead() -> None:
    rate = Rate(burst=3, every=0.1, now=0)
    assert [round(rate.reserve(0), 2) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]
    assert round(rate.reserve(0.1), 2) == 0.2
    assert rate.reserve(10) == 0


def test_long_rest_gives_no_more_than_a_burst() -> None:
    rate = Rate(burst=2, every=1, now=0)
    assert rate.is_full(0)
    assert [rate.take(1000) for _ in range(3)] == [True, True, False]
    assert not rate.is_full(1001)
    assert rate.is_full(1002)
