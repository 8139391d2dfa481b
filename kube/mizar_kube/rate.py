"""Not more often than agreed: a bucket of turns that fills at a steady rate."""


class Rate:
    """`burst` turns at once, and one more every `every` seconds. Times are seconds of one clock,
    which the caller reads."""

    def __init__(self, burst: int, every: float, now: float) -> None:
        self._burst = burst
        self._every = every
        self._turns = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take a turn if there is one."""
        self._fill(now)
        if self._turns < 1:
            return False
        self._turns -= 1
        return True

    def reserve(self, now: float) -> float:
        """Take the next turn there will be; the seconds until then."""
        self._fill(now)
        self._turns -= 1
        return max(0.0, -self._turns * self._every)

    def is_full(self, now: float) -> bool:
        """Whether all turns are there, as in a new one."""
        self._fill(now)
        return self._turns == self._burst

    def _fill(self, now: float) -> None:
        self._turns = min(self._burst, self._turns + (now - self._at) / self._every)
        self._at = now
