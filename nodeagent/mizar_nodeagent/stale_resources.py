"""Removes stale resources, those of former tenants and of lending that was switched off, from the
node's status.

A kubelet that has forgotten a resource leaves it there as 0, for ever. As each tenant and profile
has a resource of its own, the list would only ever grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mizar_core.names import SPOT_RESOURCE, parse_resource
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)

FIRST_AFTER_S = 60.0
"""Seconds from the start to the first round: by then, the agent serves again the resources that it
served before its restart."""

EVERY_S = 600.0
"""Seconds between two rounds. After a plugin has gone, the kubelet remembers its resource for a
shorter time: if it writes the resource again in that time, the next round removes it."""


class StaleResources:
    """Removes the stale resources of one node. `served` returns the resources that plugins of this
    agent serve now."""

    def __init__(
        self, client: KubeClient, node: str, served: Callable[[], Collection[str]]
    ) -> None:
        self._client = client
        self._ref = Ref(NODE, node)
        self._served = served

    async def run(self) -> None:
        """Remove stale resources every EVERY_S, for ever."""
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self.remove()
            except KubeError as error:
                log.info("former tenants' resources stay on the node for now", error=error)
            await asyncio.sleep(EVERY_S)

    async def remove(self) -> None:
        """Remove the stale resources from the node's status once. Raises KubeError."""
        status = (await self._client.get(self._ref, cached=True)).get("status") or {}
        gone = stale(status, self._served())
        if not gone:
            return
        nothing = dict.fromkeys(gone)
        patch = {"status": {"capacity": nothing, "allocatable": nothing}}
        await self._client.patch_merge(self._ref, patch, subresource="status")
        log.info("former tenants' resources taken off the node", resource=", ".join(gone))


def stale(status: Mapping[str, Any], served: Collection[str]) -> list[str]:
    """Mizar's resources in a node's status that are 0 and that no plugin serves, sorted."""
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    return sorted(
        name
        for name in {*capacity, *allocatable}
        if name not in served
        and _is_ours(name)
        and capacity.get(name, "0") == allocatable.get(name, "0") == "0"
    )


def _is_ours(name: str) -> bool:
    parsed = parse_resource(name)
    return name == SPOT_RESOURCE or (parsed is not None and parsed.form == "slashed")
