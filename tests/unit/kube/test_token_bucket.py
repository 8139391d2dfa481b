"""Turns: a few at once, then one after the other."""

from mizar_kube.token_bucket import TokenBucket


def test_a_token_is_refused_when_there_is_none() -> None:
    bucket = TokenBucket(burst=3, every=10, now=100)
    assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(109)
    assert bucket.take(110)
    assert not bucket.take(111)


def test_tokens_may_be_reserved_ahead() -> None:
    bucket = TokenBucket(burst=3, every=0.1, now=0)
    assert [round(bucket.reserve(0), 2) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]
    assert round(bucket.reserve(0.1), 2) == 0.2
    assert bucket.reserve(10) == 0


def test_long_rest_gives_no_more_than_a_burst() -> None:
    bucket = TokenBucket(burst=2, every=1, now=0)
    assert bucket.is_full(0)
    assert [bucket.take(1000) for _ in range(3)] == [True, True, False]
    assert not bucket.is_full(1001)
    assert bucket.is_full(1002)
