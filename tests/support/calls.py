"""What a computation costs."""

import sys
from collections import Counter
from collections.abc import Callable


def calls_of(do: Callable[[], object]) -> int:
    """How many calls it takes: as good as its time, and always the same."""
    seen = Counter[str]()
    sys.setprofile(lambda frame, event, arg: seen.update((event,)))
    try:
        do()
    finally:
        sys.setprofile(None)
    return seen["call"] + seen["c_call"]
