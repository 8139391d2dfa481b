"""Back-off: delays that grow with each failure, up to a bound, with jitter.

For the delay that an API server asks for (Retry-After), see `KubeError.retry_after`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Backoff:
    """Delays in seconds that double from `first` to at most `most`.

    Each is drawn between half of it and all of it; `random` gives numbers in [0, 1).
    """

    first: float = 0.2
    most: float = 30.0
    random: Callable[[], float] = random.random
    failures: int = 0

    def next(self) -> float:
        """The delay after one more failure."""
        # The exponent is bounded so that years of failures don't overflow a float.
        whole = min(self.most, self.first * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return whole * (0.5 + self.random() / 2)

    def reset(self) -> None:
        """Start again from `first`, after a success."""
        self.failures = 0
