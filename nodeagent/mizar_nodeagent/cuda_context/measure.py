"""Measures the memory of a CUDA context: a process creates one on the card, and NVML reports the
bytes that this process holds."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from mizar_kube.logs import get_logger

log = get_logger(__name__)

WITHIN_S: Final = 10.0
"""Most seconds for a measurement."""
END_WITHIN_S: Final = 2.0
"""Seconds after a signal by which a process must have ended; one that has not is stuck in a hanging
driver and is left behind."""
LOOK_S: Final = 0.05
"""Seconds between two queries of NVML."""

Workers = Callable[[Collection[str]], Awaitable[Mapping[str, Mapping[int, int]]]]
"""Returns the bytes of each process by card and PID: `workers` of a CardSource."""


async def context_bytes(workers: Workers, uuid: str) -> int:
    """Bytes of a context on the card with this UUID, once NVML has reported the same number twice
    in a row; 0 if they cannot be measured."""
    try:
        async with asyncio.timeout(WITHIN_S), _context_on(uuid) as process:
            return await _settled(workers, uuid, process.pid)
    except (OSError, TimeoutError, EOFError) as error:
        log.info("no context can be measured", card=uuid, error=repr(error))
        return 0


async def _settled(workers: Workers, uuid: str, pid: int) -> int:
    before = 0
    while True:
        found = (await workers([uuid])).get(uuid, {}).get(pid, 0)
        if found and found == before:
            return found
        before = found
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _context_on(uuid: str) -> AsyncIterator[Process]:
    """A process with a context on the card and nothing else. Raises EOFError if no context can be
    created."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mizar_nodeagent.cuda_context.holder"),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        assert process.stdout
        if not await process.stdout.readline():
            raise EOFError("it says why on standard error")
        yield process
    finally:
        await _end(process, uuid)


async def _end(process: Process, uuid: str) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    try:
        async with asyncio.timeout(END_WITHIN_S):
            await process.communicate()
    except TimeoutError:
        log.warning("a process that created a context did not stop", card=uuid)
