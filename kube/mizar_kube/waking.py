"""Waiting until there is work, or until it is time to look anyway."""

import asyncio


async def woken(event: asyncio.Event, within: float | None) -> bool:
    """Wait until the event is set, for `within` seconds at most (None: for ever); whether it was.

    Not asyncio.wait_for, which can lose a cancellation that meets the event (until Python 3.12).
    """
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
