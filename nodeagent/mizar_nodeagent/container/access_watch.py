"""Repeatedly checks in which ways the node can give cards to containers: files may appear after the
agent's start, as those of NVIDIA's device plugin do when a node boots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.access_doubts import doubts
from mizar_nodeagent.container.auto_strategy import discover, gives_cdi

LOOK_EVERY_S: Final = 2.0
ASK_EVERY_S: Final = 10.0
"""Seconds between two reads of the node's container runtime while the API server does not
answer."""


class AccessWatch:
    """Looks at the node for AccessChoice. `runtime`: reads the node's container runtime from its
    status; empty if that is not known. `reads_variable`: see `doubts`."""

    def __init__(
        self, access: AccessChoice, runtime: Callable[[], Awaitable[str]], reads_variable: bool
    ) -> None:
        self._access = access
        self._ask = runtime
        self._runtime = ""
        self._reads_variable = reads_variable

    async def start(self) -> None:
        """Look for the first time, before any call of the kubelet is answered."""
        await self._ask_runtime()
        if self._access.looks:
            self._access.settle(await discover(self._access.config, self._runtime))
        await self.look()

    async def run(self) -> None:
        """Look every LOOK_EVERY_S, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S if self._runtime else ASK_EVERY_S)
            await self._ask_runtime()
            await self.look()

    async def look(self) -> None:
        """Look once, in a thread, since files may be long. If only EnvVar was found before, CDI
        replaces it as soon as it is available."""
        access = self._access
        if (
            access.looks
            and access.found.way == "EnvVar"
            and await asyncio.to_thread(gives_cdi, access.config, self._runtime)
        ):
            access.settle(replace(access.found, way="CDI"))
        access.doubts = await asyncio.to_thread(
            doubts, access.ways, access.config, self._runtime, self._reads_variable
        )

    async def _ask_runtime(self) -> None:
        access = self._access
        if not self._runtime and (access.looks or access.ways == {"EnvVar"}):
            self._runtime = await self._ask()
