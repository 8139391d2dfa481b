"""What happens in simulated schedules, and what of it must happen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable


def joined(play: Callable[[int], list[str]], seeds: Iterable[int]) -> str:
    """What happens in the schedules of these seeds, a line each, without times."""
    return "\n".join(line.split(maxsplit=1)[1] for seed in seeds for line in play(seed))


def missed(patterns: Iterable[str], seen: str) -> list[str]:
    """The patterns that match no whole line."""
    return [one for one in patterns if not re.search(f"^{one}$", seen, re.MULTILINE)]
