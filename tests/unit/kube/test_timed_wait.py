"""A waiting task is woken, or goes on when the time is up."""

import asyncio

import pytest

from mizar_kube.timed_wait import wait_until_set


async def test_woken_or_not() -> None:
    event = asyncio.Event()
    assert not await wait_until_set(event, within=0.001)
    assert not await wait_until_set(event, within=-1)
    waiting = asyncio.create_task(wait_until_set(event, within=None))
    await asyncio.sleep(0)
    event.set()
    assert await waiting
    assert await wait_until_set(event, within=0)


async def test_a_cancellation_that_meets_the_event_is_not_lost() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_until_set(event, within=60))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
