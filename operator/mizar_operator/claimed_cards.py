"""The cards that pods hold by ResourceClaims of their own, not by a request for `nvidia.com/gpu`.

Claims are read one by one, and only those of pods on nodes whose free cards matter for a plan: a
cluster may have many claims, most of them of other drivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mizar_core.names import DRA_DRIVER
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.kinds import RESOURCE_CLAIM, Object, Ref

KNOWN_MOST: Final = 10_000
"""The most claims whose devices are remembered."""

Device = tuple[str, str]
"""(pool, device), which names a device of one driver."""

Claim = tuple[str, str, str]
"""(namespace, name, UID of a pod that has it)."""


class ClaimedCards:
    """Finds the devices of NVIDIA's DRA driver that claims have. A claim keeps its devices for as
    long as a pod with it has a node, so each claim is read once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[Claim, frozenset[Device]] = {}

    async def of(self, claim: Claim) -> frozenset[Device]:
        """The devices of the claim; none if it is gone or has none yet. Raises KubeError."""
        if claim in self._known:
            return self._known[claim]
        namespace, name, _ = claim
        try:
            found = await self._client.get(Ref(RESOURCE_CLAIM, name, namespace), cached=True)
        except NotFound:
            return frozenset()
        if not (found.get("status") or {}).get("allocation"):
            return frozenset()
        if len(self._known) >= KNOWN_MOST:
            self._known.clear()
        self._known[claim] = devices = frozenset(_devices(found))
        return devices


def claims_of(pod: Object) -> Iterator[Claim]:
    """The claims that the pod's spec names or has a template for, as far as they exist. The claim
    that the scheduler makes for the pod's extended resources is not among them: these count by the
    pod's requests."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    if not (wanted := spec.get("resourceClaims")):
        return
    made = {one["name"]: one for one in status.get("resourceClaimStatuses") or ()}
    for one in wanted:
        found = {**one, **made.get(one["name"], {})}
        if name := found.get("resourceClaimName"):
            yield meta["namespace"], str(name), meta.get("uid", "")


def _devices(claim: Object) -> Iterator[Device]:
    allocated = claim["status"]["allocation"].get("devices") or {}
    for one in allocated.get("results") or ():
        # A claim with admin access, such as a monitor's, takes a device from no other claim.
        if one.get("driver") == DRA_DRIVER and not one.get("adminAccess"):
            yield one["pool"], one["device"]
