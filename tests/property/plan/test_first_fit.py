"""First fit, against the obvious way to write it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.planning.first_fit import Accepts, Bins
from mizar_core.planning.node_fit import HOSTNAME, Needs, Pairs
from support.effort import effort

GROUPS = st.frozensets(st.sampled_from(["g", "h"]), max_size=1)
PAIRS = [("zone", "a"), ("arch", "x"), (HOSTNAME, "n1"), (HOSTNAME, "n2")]
labels = st.frozensets(st.sampled_from(PAIRS), max_size=2)
steps = st.lists(
    st.tuples(st.just("add"), st.integers(0, 5), labels, GROUPS)
    | st.tuples(st.just("put"), st.integers(1, 4), labels, GROUPS),
    max_size=40,
)


@effort()
@given(steps)
def test_like_the_naive_one(steps: list[tuple[str, int, Pairs, frozenset[str]]]) -> None:
    bins, naive = Bins(), list[_Naive]()
    for what, count, pairs, groups in steps:
        if what == "add":
            pins = frozenset(one for one in pairs if one[0] == HOSTNAME)
            accepts = Accepts(lambda needs, has=pairs: needs.selector <= has, pins)  # type: ignore[misc]
            bins.add(count, accepts, groups)
            naive.append(_Naive(count, pairs, set(groups)))
            continue
        expected = next((n for n, one in enumerate(naive) if one.takes(count, pairs, groups)), None)
        assert bins.put(count, Needs(selector=pairs), groups) == expected
        if expected is not None:
            naive[expected].free -= count
            naive[expected].groups |= groups
    assert [bins.left(n) for n in range(len(naive))] == [one.free for one in naive]
    assert [bins.groups(n) for n in range(len(naive))] == [one.groups for one in naive]


@dataclass
class _Naive:
    free: int
    labels: Pairs
    groups: set[str]

    def takes(self, count: int, selector: Pairs, groups: frozenset[str]) -> bool:
        return self.free >= count and selector <= self.labels and not groups & self.groups
