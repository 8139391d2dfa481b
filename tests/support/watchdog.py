"""Ends pytest where a test goes on past its time limit: pytest-timeout's signal does not reach one
that waits in C, such as for a lock, and the run would never end."""

import faulthandler
from collections.abc import Generator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

LATE_S = 600.0
"""Seconds that a test has to clean up after pytest-timeout has ended it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process with the stacks of all threads, LATE_S after the test's time limit."""
    if not (limit := _limit(item)):
        return (yield)
    file = item.config.stash.get(fault_handler_stderr_fd_key, 2)  # what is captured is lost then
    faulthandler.dump_traceback_later(limit + LATE_S, exit=True, file=file)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit(item: pytest.Item) -> float:
    """The test's time limit in seconds; 0 where it has none."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return float(item.config.getini("timeout") or 0)
    found: float = marker.args[0] if marker.args else marker.kwargs["timeout"]
    return float(found)
