"""Finds the devices that ResourceClaims have for administration only (`adminAccess`), as those of
monitors do: the driver gives such a device to other claims as if this one did not exist. The
kubelet does not say which they are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from mizar_core.names import DRA_DRIVER
from mizar_kube.client import KubeClient
from mizar_kube.errors import Forbidden, KubeError, NotFound
from mizar_kube.kinds import RESOURCE_CLAIM, Object, Ref
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

    async def of(self, devices: Collection[DraDevice]) -> dict[DraDevice, bool]:
        """For each of the devices whether its claim has it for administration only. Devices whose
        claims cannot be read now are left out."""
        names = sorted({(one.namespace, one.claim) for one in devices})
        answers = await asyncio.gather(*(self._places(*one) for one in names))
        places = dict(zip(names, answers, strict=True))
        known = ((one, places[one.namespace, one.claim]) for one in devices)
        return {one: one.place in found for one, found in known if found is not None}

    async def _places(self, namespace: str, claim: str) -> frozenset[Place] | None:
        """The devices that the claim has for administration only; None if it cannot be read now. A
        claim that is gone, or that the agent may not read, counts as one that holds its devices."""
        ref = Ref(RESOURCE_CLAIM, claim, namespace)
        try:
            found = await self._client.get(ref, timeout=self._timeout)
        except NotFound:
            return frozenset()
        except Forbidden as error:
            self._tell(error)
            return frozenset()
        except KubeError as error:
            log.info("the cards of a claim are not known yet", error=error)
            return None
        return _administered(found)

    def _tell(self, error: Forbidden) -> None:
        """Log once that monitors count as owners of the cards, since their claims are not known."""
        (log.debug if self._told else log.warning)("a ResourceClaim cannot be read", error=error)
        self._told = True


def _administered(claim: Object) -> frozenset[Place]:
    """The devices that the claim has for administration only. One that it has both ways is held."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    own = [one for one in results if one.get("driver") == DRA_DRIVER]
    held = {(one["pool"], one["device"]) for one in own if not one.get("adminAccess")}
    return frozenset((one["pool"], one["device"]) for one in own) - held
