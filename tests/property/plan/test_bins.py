"""First fit, against the obvious way to write it."""

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.planning.bins import Bins
from mizar_core.planning.snapshot import Pairs
from support.effort import effort

labels = st.frozensets(st.sampled_from([("zone", "a"), ("zone", "b"), ("arch", "x")]), max_size=2)
steps = st.lists(
    st.tuples(st.just("add"), st.integers(0, 5), labels)
    | st.tuples(st.just("put"), st.integers(1, 4), labels),
    max_size=40,
)


@effort()
@given(steps)
def test_like_the_naive_one(steps: list[tuple[str, int, Pairs]]) -> None:
    bins, naive = Bins(), list[list[object]]()
    for what, count, pairs in steps:
        if what == "add":
            bins.add(count, pairs)
            naive.append([count, pairs])
            continue
        fits = (
            n
            for n, (free, labels) in enumerate(naive)
            if free >= count and pairs <= labels  # type: ignore[operator]
        )
        expected = next(fits, None)
        assert bins.put(count, pairs) == expected
        if expected is not None:
            naive[expected][0] -= count  # type: ignore[operator]
    assert [bins.left(n) for n in range(len(naive))] == [free for free, _ in naive]
