"""Handles Ctrl-C and similar signals: the first one stops the work, later ones are ignored while it
cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user asked the program to stop."""


def _under_nohup(number: signal.Signals) -> bool:
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def interruptible_once() -> Iterator[None]:
    """Within the block, the first SIGINT, SIGTERM or SIGHUP raises Interrupted, and later ones are
    ignored, so that a second Ctrl-C does not interrupt the cleaning up after the first.

    Does nothing outside the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def once(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if not seen:
            seen = True
            raise Interrupted(signal.Signals(number).name)

    heeded = [number for number in SIGNALS if not _under_nohup(number)]
    before = {number: signal.signal(number, once) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
