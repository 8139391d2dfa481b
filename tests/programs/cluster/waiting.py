"""Waits for a component, for a limited time and only while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cluster.errors import ComponentFailed
from cluster.processes import Processes

T = TypeVar("T")
LIMIT = 240.0
INTERVAL = 0.05


def wait_until(
    what: str,
    probe: Callable[[], T | None],
    processes: Processes,
    names: Sequence[str],
    limit: float | None = None,
) -> T:
    """Call `probe` until it gives something true, and return that.

    Raises ComponentFailed with the last log lines of the processes called `names` when one of
    them ends, or after `limit` seconds (LIMIT by default). A probe's OSError means "not yet".
    """
    limit = LIMIT if limit is None else limit
    deadline = time.monotonic() + limit
    reason = ""
    while True:
        try:
            if seen := probe():
                return seen
        except OSError as not_yet:
            reason = f" ({not_yet})"
        processes.check(names)
        if time.monotonic() > deadline:
            what = f"{what} did not happen within {limit:.0f} s{reason}"
            raise ComponentFailed(what, processes.tails(names))
        time.sleep(INTERVAL)
