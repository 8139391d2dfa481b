"""A token bucket: limits how often something is done."""


class TokenBucket:
    """`burst` tokens at first and at most, and one more each `every` seconds. The caller passes the
    times, in seconds of one clock."""

    def __init__(self, burst: int, every: float, now: float) -> None:
        self._burst = burst
        self._every = every
        self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take a token, if there is one. Returns whether there was."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def reserve(self, now: float) -> float:
        """Take the next token, which may be a future one. Returns the seconds until it is
        available."""
        self._fill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens * self._every)

    def is_full(self, now: float) -> bool:
        """Whether the bucket is full, like a new one."""
        self._fill(now)
        return self._tokens == self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._at) / self._every)
        self._at = now
