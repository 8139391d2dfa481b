"""The clock and the random numbers that the parts of a program use; a simulation provides its
own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Clock:
    """`seconds` only grow, from any start; `now` is the time of day in UTC; `random` gives numbers
    in [0, 1). Sleeping is the event loop's."""

    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    random: Callable[[], float] = random.random
