"""Ends the agent when its event loop hangs.

A kubelet waits for an answer to Allocate without a deadline, and meanwhile handles no failed probe:
an agent that hangs there would hold up the node until it is killed.
"""

from __future__ import annotations

import asyncio
import faulthandler

HANGS_AFTER_S = 60.0
"""Seconds for which the event loop may be busy: longer than any of its work takes on a busy node,
but short enough that a hang ends before users investigate."""


async def end_when_hanging(after: float = HANGS_AFTER_S) -> None:
    """End the process with exit code 1, and the stacks of all threads on stderr, when the loop that
    runs this does nothing for `after` seconds; until cancelled.

    faulthandler's thread needs no lock of the interpreter, so it can end the process even while a
    thread holds that lock.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(after, exit=True)
            await asyncio.sleep(after / 6)
    finally:
        faulthandler.cancel_dump_traceback_later()
