"""What a computation costs."""

from collections.abc import Callable
from cProfile import Profile


def calls_of(do: Callable[[], object]) -> int:
    """How many calls it takes: as good as its time, and always the same."""
    counting = Profile()
    counting.runcall(do)
    return sum(one.callcount for one in counting.getstats())
