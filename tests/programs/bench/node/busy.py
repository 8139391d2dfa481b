"""Containers that always work: writes their usage files as their shims would."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from struct import pack_into

from mizar_nodeagent.regions.layout import Compute, UsageCard, UsageHead

EVERY_S = 0.01
AT = UsageHead.cards.offset + UsageCard.compute.offset


@asynccontextmanager
async def busy(files: Iterable[Path]) -> AsyncIterator[None]:
    """While the block runs, the containers with these usage files want time of their first card and
    use some of it."""
    with ExitStack() as stack:
        maps = [stack.enter_context(_mapped(path)) for path in files]
        working = asyncio.create_task(_work(maps))
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait([working])


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


async def _work(maps: list[mmap.mmap]) -> None:
    charged = 0
    while True:
        now, charged = time.monotonic_ns(), charged + 1_000_000
        for one in maps:
            pack_into("<Q", one, AT + Compute.wanted_at.offset, now)
            pack_into("<Q", one, AT + Compute.charged_ns.offset, charged)
            pack_into("<Q", one, AT + Compute.busy_until.offset, now)
        await asyncio.sleep(EVERY_S)
