"""Computes a container's share of a card from the card's account of each millisecond. Pure
functions.

`control` is the work of a load that always has work: windows in which it did not work are unknown,
since the machine was too busy. A value that could only be computed from unknown windows is None.
"""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

MS_NS = 1_000_000
SECOND, TENTH, MOMENT = 1000, 100, 20  # ms
NEAR = 3.0  # points: what counts as settled
USUAL = 0.95  # of the windows
KNOWN = 0.5  # of them, at least
STAYS_MS = 1000
MAY_LOSE_MS, MAY_LOSE_PART = 1.0, 0.002


def shares(work: Sequence[int], length: int, start: int = 0) -> list[float]:
    """Percent of the time in every window of `length` ms that begins at `start` ms or later.

    `work` is the ns of each millisecond.
    """
    sums = [0, *accumulate(work)]
    ends = range(start + length, len(sums))
    return [(sums[end] - sums[end - length]) / (length * MS_NS) * 100 for end in ends]


def as_long_as_all(cards: Sequence[Sequence[list[int]]]) -> list[list[list[int]]]:
    """The works of each card's tenants, cut to the shortest, since recordings begin at the same
    time and are closed one after the other."""
    end = min((len(work) for card in cards for work in card), default=0)
    return [[work[:end] for work in card] for card in cards]


def least(works: Sequence[Sequence[int]]) -> list[int]:
    """The least of several works, in each millisecond."""
    return [min(each) for each in zip(*works, strict=True)]


def undisturbed(control: Sequence[int], length: int, start: int = 0) -> list[bool]:
    """Whether each such window is known: the control worked through the window and the tenth of a
    second before it. Otherwise the machine was busy with other things."""
    lost = [0, *accumulate(MS_NS - each for each in control)]
    most = max(MAY_LOSE_MS, MAY_LOSE_PART * length) * MS_NS
    ends = range(start + length, len(lost))
    return [lost[end] - lost[max(0, end - length - TENTH)] <= most for end in ends]


def _errors(
    found: Sequence[float], asked: float, work: Sequence[int], control: Sequence[int], length: int
) -> list[float]:
    """Errors of the known windows; of all windows, if there is no control."""
    errors = [abs(share - asked) for share in found]
    if not control:
        return errors
    fair = undisturbed(control, length, len(work) - length - len(found) + 1)
    return [each for each, good in zip(errors, fair, strict=True) if good]


def disturbed(control: Sequence[int], start: int) -> float:
    """Percent of the windows of a tenth of a second that are unknown."""
    fair = undisturbed(control, TENTH, start)
    return 100 * (1 - sum(fair) / len(fair)) if fair else 0.0


def mean(work: Sequence[int], start: int, control: Sequence[int]) -> float:
    """Percent of the time in the known windows of a tenth of a second. If none is known, in all of
    them: `disturbed` tells that the value means nothing then."""
    found = shares(work, TENTH, start)
    fair = undisturbed(control, TENTH, start)
    return fmean([each for each, good in zip(found, fair, strict=True) if good] or found)


def worst(
    work: Sequence[int], asked: float, length: int, start: int, control: Sequence[int] = ()
) -> float | None:
    """The largest distance from `asked` percent, in points, over the known windows."""
    found = shares(work, length, start)
    if not found:
        raise ValueError(f"{len(work)} ms are too short for a window of {length} ms from {start}")
    return max(_errors(found, asked, work, control, length), default=None)


def usual(
    work: Sequence[int], asked: float, length: int, start: int, control: Sequence[int] = ()
) -> float | None:
    """The distance from `asked` percent, in points, that 95 % of the known windows do not
    exceed."""
    errors = sorted(_errors(shares(work, length, start), asked, work, control, length))
    return errors[int(len(errors) * USUAL)] if errors else None


def least_spread(piece_ms: float, asked: float, length: int = TENTH) -> float:
    """By how many points a piece of work that cannot be interrupted moves a window: it alone uses
    the card while it runs, during which the container's share would have grown by less."""
    return piece_ms * (100 - asked) / length


def settled_after(
    work: Sequence[int],
    asked: float,
    start: int,
    end: int,
    control: Sequence[int] = (),
    piece_ms: float = 0,
) -> int | None:
    """ms from `start` until the share is settled: a window of a tenth of a second is near `asked`
    (3 points, or as near as pieces of work of that length permit), and so are 95 % of the known
    windows that begin in the following second (or until `end`), of which at least half must be
    known. If it never settles, the whole time; None if too few windows are known to tell."""
    spread = max(NEAR, least_spread(piece_ms, asked))
    near = [abs(share - asked) <= spread for share in shares(work[:end], TENTH, start)]
    fair = undisturbed(control, TENTH, start)[: len(near)] if control else [True] * len(near)
    known = [0, *accumulate(fair)]
    good = [0, *accumulate(a and b for a, b in zip(near, fair, strict=True))]
    for at, is_near in enumerate(near):
        last = min(at + STAYS_MS, len(near))
        sure = known[last] - known[at]
        is_known = fair[at] and sure >= (last - at) * KNOWN
        if is_known and is_near and good[last] - good[at] >= USUAL * sure:
            return at
    return end - start if known[-1] >= len(near) * KNOWN else None


def woken_after(work: Sequence[int], asked: float, woke: int) -> int:
    """ms from waking until a fiftieth of a second begins in which the container has `asked`
    percent, or 3 points less. The whole time if there is none."""
    found = shares(work, MOMENT, woke)
    return next((at for at, share in enumerate(found) if share >= asked - NEAR), len(work) - woke)


def begun_after(work: Sequence[int], woke: int) -> int:
    """ms from waking until the first work."""
    return next((at for at, done in enumerate(work[woke:]) if done), len(work) - woke)


def ratio_error(
    first: Sequence[int],
    second: Sequence[int],
    asked: float,
    start: int,
    control: Sequence[int] = (),
) -> float | None:
    """The largest distance of the first container's part of both containers' work from `asked`
    percent, over all known windows of a second, in points."""
    pairs = zip(shares(first, SECOND, start), shares(second, SECOND, start), strict=True)
    parts = [100 * a / (a + b) if a + b else asked + 100.0 for a, b in pairs]
    return max(_errors(parts, asked, first, control, SECOND), default=None)


def jain(works: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all are equal, 1 / n if one has everything."""
    squares = sum(each * each for each in works)
    return sum(works) ** 2 / (len(works) * squares) if squares else 0.0
