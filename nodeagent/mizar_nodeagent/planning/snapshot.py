"""The snapshot of the node that a plan is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def live_claims(self) -> Iterable[Claim]:
        """The claims but for pods that have ended, or were deleted after the kubelet's answer."""
        for claim in self.claims.all:
            key = claim.namespace, claim.pod
            if self.gone_at.get(key, float("-inf")) >= self.claims.asked_at:
                continue
            pod = (self.pods or {}).get(key)
            if pod is None or not pod.ended:
                yield claim

    def holders(self) -> Mapping[DeviceID, Holder]:
        """The holder of each held virtual device."""
        return self._holders

    @cached_property
    def _holders(self) -> dict[DeviceID, Holder]:
        live = Claims(tuple(self.live_claims()))
        return {device: claim.holder for device, claim in live.share()}

    def claims_of(self, pod: Pod, resource: str) -> tuple[Claim, ...]:
        """The pod's claims, if the kubelet was asked after this very pod had been seen."""
        if self.claims.asked_at < self.seen_at.get(pod.uid, float("inf")):
            return ()
        return self.claims.of_pod(pod.namespace, pod.name, resource)

    def waiting_pods(self, resource: str) -> tuple[Pod, ...]:
        """Pods bound to this node that request the resource and have got nothing yet."""
        return tuple(
            pod
            for pod in (self.pods or {}).values()
            if pod.requested(resource)
            and not (pod.ended or pod.admitted)
            and not self.claims_of(pod, resource)
        )
