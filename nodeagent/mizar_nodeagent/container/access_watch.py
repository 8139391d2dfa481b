"""Repeatedly checks in which ways the node can give cards to containers: files may appear after the
agent's start, as those of NVIDIA's device plugin do when a node boots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.access_doubts import NONE, cdi_dropped, doubts
from mizar_nodeagent.container.auto_strategy import discover, gives_cdi, named

LOOK_EVERY_S: Final = 2.0
"""Seconds between two looks at the node, once its container runtime is known."""
ASK_EVERY_S: Final = 10.0
"""Seconds between two reads of the node's status, which names the container runtime, while the
runtime is not known, or its version is the reason why containers get no card."""


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
            await asyncio.sleep(ASK_EVERY_S if self._asks else LOOK_EVERY_S)
            await self._ask_runtime()
            await self.look()

    async def look(self) -> None:
        """Look once, in a thread, since files may be long. If only EnvVar was found before, CDI
        replaces it as soon as it is available."""
        access = self._access
        if await asyncio.to_thread(self._finds_cdi):
            access.settle(replace(access.found, way="CDI"))
        access.doubts = await asyncio.to_thread(
            doubts, access.ways, access.config, self._runtime, self._reads_variable, access.by_nri
        )
        access.works_beside_cdi = await asyncio.to_thread(self._works_beside_cdi)

    def connected(self, runtime: str) -> None:
        """Use the name and version that the container runtime gives by NRI: the node's status may
        not be known yet, and has the old version for a while after an upgrade. Looks for CDI files
        at once, since the runtime creates containers right after this."""
        if not named(runtime)[0] or named(runtime) == named(self._runtime):
            return
        self._set_runtime(runtime)
        if self._finds_cdi():
            self._access.settle(replace(self._access.found, way="CDI"))
        self._access.works_beside_cdi = self._works_beside_cdi()

    def _works_beside_cdi(self) -> bool:
        ways, config = self._access.ways_beside_cdi, self._access.config
        found = doubts(ways, config, self._runtime, self._reads_variable)
        if not {"CDI"}.issuperset(config.also):  # whoever configures a way expects it to work
            return not found.problem
        return bool(ways) and found == NONE

    def _finds_cdi(self) -> bool:
        access = self._access
        looks = access.looks and access.found.way == "EnvVar"
        return looks and gives_cdi(access.config, self._runtime)

    @property
    def _asks(self) -> bool:
        """Whether to read the runtime from the node's status: it is not known, or its version is
        the problem, and no NRI connection would show that it has been upgraded."""
        access = self._access
        by_its_version = access.ways == {"CDI"} and bool(access.doubts.problem)
        return not self._runtime or (by_its_version and not access.may_use_nri)

    async def _ask_runtime(self) -> None:
        access, before = self._access, self._runtime
        matters = access.looks or access.by_nri or access.ways in ({"EnvVar"}, {"CDI"})
        if not matters or not self._asks:
            return
        found = await self._ask()
        if found and self._runtime == before:  # the runtime itself may have told meanwhile
            self._set_runtime(found)

    def _set_runtime(self, runtime: str) -> None:
        self._runtime = runtime
        self._access.cdi_dropped = cdi_dropped(runtime)
