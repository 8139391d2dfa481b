"""The snapshot of the node that a plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from mizar_core.device_ids import DeviceID
from mizar_core.models import Holder
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.pods import Key, Pod


@dataclass(frozen=True)
class Counts:
    """A resource's capacity and allocatable in the node's status."""

    capacity: int
    allocatable: int


@dataclass(frozen=True)
class GracePeriods:
    """How long, in seconds, something must have lasted before the agent acts on it.

    `lowered`: a scheduler that counted on a device has bound its pod by then. `blocked`: longer
    than any Allocate that the kubelet may have begun with an older list. `leaving`: IDs stay listed
    for so long, since removing them too soon crashes the kubelet. `taken`: the kubelet says for so
    long that a card is another pod's. `gone`: NVML has not listed a card for so long, more than a
    reset takes. `going`: the users of a deleted shadow pod are stopped so
    long before its own grace period ends, since clocks differ. `withdraw`: a pod bound before the
    scheduler learned of the agent's end has arrived by then.
    """

    lowered: float = 1.0
    blocked: float = 1.0
    leaving: float = 10.0
    taken: float = 1.0
    gone: float = 60.0
    going: float = 2.0
    withdraw: float = 0.5


@dataclass(frozen=True)
class NodeSnapshot:
    """The node at one moment. Times are monotonic seconds, but for `time`.

    `pods`: None until the API server has listed them. `seen_at`: when a pod (by UID) was first
    seen; `gone_at`: when a pod was seen to be gone. `claims`: the kubelet's last answer.
    `kubelet`: the healthy devices per resource by the kubelet's last answer, None if it does not
    answer; `kubelet_at`: when it was asked. `allocating`: devices that Allocate answered with and
    that no claim names yet. `node`: what was last written to the node's status; `node_at`: when the
    write that the API server confirmed last was begun.
    """

    now: float
    time: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    pods: Mapping[Key, Pod] | None = None
    seen_at: Mapping[str, float] = field(default_factory=dict)
    gone_at: Mapping[Key, float] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    cards: Mapping[str, Card] = field(default_factory=dict)
    cards_problem: str | None = None
    kubelet: Mapping[str, frozenset[str]] | None = None
    kubelet_at: float = float("-inf")
    allocating: frozenset[DeviceID] = frozenset()
    node: Mapping[str, Counts] = field(default_factory=dict)
    node_at: Mapping[str, float] = field(default_factory=dict)
    grace: GracePeriods = GracePeriods()

    def live_claims(self) -> tuple[Claim, ...]:
        """The claims but for pods that have ended, or were deleted after the kubelet's answer."""
        return self._live

    def live_claims_on(self, resource: str) -> tuple[Claim, ...]:
        """Those on one resource."""
        return self._live_by_resource.get(resource, ())

    # Each shadow pod's step asks for these: they are found out once for each snapshot.

    @cached_property
    def _live(self) -> tuple[Claim, ...]:
        return tuple(one for one in self.claims.all if self._is_live(one))

    def _is_live(self, claim: Claim) -> bool:
        key = claim.namespace, claim.pod
        if self.gone_at.get(key, float("-inf")) >= self.claims.asked_at:
            return False
        pod = (self.pods or {}).get(key)
        return pod is None or not pod.ended

    @cached_property
    def _live_by_resource(self) -> dict[str, tuple[Claim, ...]]:
        found: dict[str, list[Claim]] = {}
        for one in self._live:
            found.setdefault(one.resource, []).append(one)
        return {resource: tuple(claims) for resource, claims in found.items()}

    def holders(self) -> Mapping[DeviceID, Holder]:
        """The holder of each held virtual device."""
        return self._holders

    @cached_property
    def _holders(self) -> dict[DeviceID, Holder]:
        return {device: claim.holder for device, claim in Claims(self._live).share()}

    def claims_of(self, pod: Pod, resource: str) -> tuple[Claim, ...]:
        """The pod's claims, if the kubelet was asked after this very pod had been seen."""
        if self.claims.asked_at < self.seen_at.get(pod.uid, float("inf")):
            return ()
        return self.claims.of_pod(pod.namespace, pod.name, resource)

    def waiting_pods(self, resource: str) -> tuple[Pod, ...]:
        """Pods bound to this node that request the resource and have got nothing yet."""
        if resource not in self._waiting:
            self._waiting[resource] = self._find_waiting(resource)
        return self._waiting[resource]

    @cached_property
    def _waiting(self) -> dict[str, tuple[Pod, ...]]:
        return {}

    def _find_waiting(self, resource: str) -> tuple[Pod, ...]:
        return tuple(
            pod
            for pod in (self.pods or {}).values()
            if pod.requested(resource)
            and not (pod.ended or pod.admitted)
            and not self.claims_of(pod, resource)
        )
