"""What a container got of a card, from the card's own account of each millisecond. Pure."""

from collections.abc import Sequence
from itertools import accumulate

MS_NS = 1_000_000
SECOND, TENTH = 1000, 100  # ms
NEAR = 3.0  # points: what counts as settled
STAYS_MS = 1000


def shares(work: Sequence[int], length: int, start: int = 0) -> list[float]:
    """Percent of the time in every window of `length` ms that begins at `start` ms or later.

    `work` is the ns of each millisecond.
    """
    sums = [0, *accumulate(work)]
    ends = range(start + length, len(sums))
    return [(sums[end] - sums[end - length]) / (length * MS_NS) * 100 for end in ends]


def worst(work: Sequence[int], asked: float, length: int, start: int) -> float:
    """The largest distance from `asked` percent, in points."""
    found = shares(work, length, start)
    if not found:
        raise ValueError(f"{len(work)} ms are too short for a window of {length} ms from {start}")
    return max(abs(share - asked) for share in found)


def settled_after(work: Sequence[int], asked: float, start: int, end: int) -> int:
    """ms from `start` until each window of a tenth of a second is near `asked`, and stays so for
    a second (or until `end`). The whole time where it never is."""
    near = [abs(share - asked) <= NEAR for share in shares(work[:end], TENTH, start)]
    since = 0
    for at, good in enumerate(near):
        if not good:
            since = at + 1
        elif at - since >= STAYS_MS:
            return since
    return since if since < len(near) else end - start


def ratio_error(first: Sequence[int], second: Sequence[int], asked: float, start: int) -> float:
    """The largest distance of the first's part of both one's work from `asked` percent, over all
    windows of a second, in points."""
    pairs = zip(shares(first, SECOND, start), shares(second, SECOND, start), strict=True)
    return max(abs(100 * a / (a + b) - asked) if a + b else 100.0 for a, b in pairs)


def jain(works: Sequence[float]) -> float:
    """1 when all are equal, 1 / n when one has everything."""
    squares = sum(each * each for each in works)
    return sum(works) ** 2 / (len(works) * squares) if squares else 0.0
