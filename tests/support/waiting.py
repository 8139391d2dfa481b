"""Waiting for conditions, never for seconds: machines are shared, so bounds are generous."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Seconds for fast tests, whose conditions come true within milliseconds on an idle machine."""


class WaitedTooLong(AssertionError):
    """A condition did not come true in time; the message says which, and what was seen last."""


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    timeout: float = 120.0,
    interval: float = 0.2,
    explain: Callable[[], str] | None = None,
) -> T:
    """Call `probe` every `interval` seconds until it gives something true, and return that.

    `what` names the condition in the error; `explain` is called once on failure for details.
    Raises WaitedTooLong after `timeout` seconds. A probe may raise AssertionError or LookupError
    to say "not yet, because"; the last such reason is kept for the message.
    """
    deadline = time.monotonic() + timeout
    reason = ""
    while True:
        try:
            if seen := probe():
                return seen
        except (AssertionError, LookupError) as not_yet:
            reason = str(not_yet)
        if time.monotonic() > deadline:
            details = "\n".join(filter(None, [reason, explain() if explain else ""]))
            raise WaitedTooLong(f"waited {timeout:.0f} s for {what}\n{details}")
        time.sleep(interval)


async def until(true: Callable[[], object]) -> None:
    """Let the event loop go on until it is true. Raises WaitedTooLong after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise WaitedTooLong(f"waited {PATIENCE_S:.0f} s for what {true.__qualname__} says")
        await asyncio.sleep(0.005)
