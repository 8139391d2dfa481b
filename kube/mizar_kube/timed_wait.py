"""Waiting for an event for a limited time."""

import asyncio


async def wait_until_set(event: asyncio.Event, within: float | None) -> bool:
    """Wait until the event is set, `within` seconds at most (None: for ever). Returns whether it
    was.

    Not asyncio.wait_for, which can lose a cancellation that meets the event (until Python 3.12).
    """
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
