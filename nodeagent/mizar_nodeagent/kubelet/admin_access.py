"""Finds the devices that ResourceClaims have for administration only (`adminAccess`), as those of
monitors do: the driver gives such a device to other claims as if this one did not exist. The
kubelet does not say which they are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from mizar_core.names import DRA_DRIVER
from mizar_kube.client import KubeClient
from mizar_kube.errors import Forbidden, NotFound
from mizar_kube.kinds import RESOURCE_CLAIM, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.kubelet.claims import DraDevice

log = get_logger(__name__)

Place = tuple[str, str]
"""A device's pool and name."""


class AdminAccess:
    """Reads ResourceClaims. `timeout`: seconds that a read may take."""

    def __init__(self, client: KubeClient, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._told = False

    async def among(self, devices: Collection[DraDevice]) -> frozenset[DraDevice]:
        """Those of the devices that their claims have for administration only. Raises KubeError."""
        names = sorted({(one.namespace, one.claim) for one in devices})
        places = await asyncio.gather(*(self._places(*one) for one in names))
        known = dict(zip(names, places, strict=True))
        return frozenset(one for one in devices if one.place in known[one.namespace, one.claim])

    async def _places(self, namespace: str, claim: str) -> frozenset[Place]:
        ref = Ref(RESOURCE_CLAIM, claim, namespace)
        try:
            found = await self._client.get(ref, timeout=self._timeout)
        except NotFound:
            return frozenset()
        except Forbidden as error:
            self._tell(error)
            return frozenset()
        allocation = (found.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        own = [one for one in results if one.get("driver") == DRA_DRIVER]
        held = {(one["pool"], one["device"]) for one in own if not one.get("adminAccess")}
        return frozenset((one["pool"], one["device"]) for one in own) - held

    def _tell(self, error: Forbidden) -> None:
        """Log once that monitors count as owners of the cards, since their claims are not known."""
        (log.debug if self._told else log.warning)("a ResourceClaim cannot be read", error=error)
        self._told = True
