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

    `lowered`: until a scheduler that counted on a device has bound its pod. `blocked`: longer than
    any Allocate that the kubelet may have begun with an older list. `leaving`: how long IDs stay
    listed, since removing them too soon crashes the kubelet. `taken`: how long the kubelet must
    report that another pod has a card. `gone`: how long NVML must not have listed a card, which is
    longer than a reset takes. `going`: how long before the end of a deleted shadow pod's own grace
    period its users are stopped, since clocks differ. `withdraw`: until a pod that was bound before
    the scheduler learned of the agent's end has arrived.
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
    """The node at one moment. Times are monotonic seconds, except `time`.

    `pods`: None until the API server has listed them. `seen_at`: when each pod (by UID) was first
    seen; `gone_at`: when each pod was seen to be gone. `claims`: the kubelet's last answer.
    `cards_problem`: why NVML could not be read; None if it could. `kubelet`: for each resource, the
    devices that the kubelet last reported as healthy; None if it does not answer. `kubelet_at`:
    when it was asked. `allocating`: devices in answers to Allocate that no claim names yet.
    `node`: the counts that were last written to the node's status; `node_at`: for each resource,
    when the last write that the API server confirmed began.
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
        """The claims, except those of pods that have ended or were gone after the kubelet was
        asked."""
        return self._live

    def live_claims_on(self, resource: str) -> tuple[Claim, ...]:
        """The live claims on one resource."""
        return self._live_by_resource.get(resource, ())

    # Each shadow pod's step needs these, so they are computed once for each snapshot.

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
        """The pod's claims on the resource; none if the kubelet was asked before this very pod was
        first seen, since they may be those of an earlier pod of the same name."""
        if self.claims.asked_at < self.seen_at.get(pod.uid, float("inf")):
            return ()
        return self.claims.of_pod(pod.namespace, pod.name, resource)

    def waiting_pods(self, resource: str) -> tuple[Pod, ...]:
        """Pods bound to this node that request the resource, but are not admitted and hold no
        device of it yet."""
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
