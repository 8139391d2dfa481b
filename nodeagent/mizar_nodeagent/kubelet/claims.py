"""Claims: which container holds which devices, by the kubelet's podresources API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.models import Holder
from mizar_core.names import SPOT_RESOURCE, parse_resource
from mizar_nodeagent import mig
from mizar_nodeagent.proto import podresources_pb2 as pb

Numa = tuple[int, ...]
"""Numbers of NUMA nodes; empty if they are not known."""


@dataclass(frozen=True)
class Claim:
    """The devices of one resource that a container holds. `ids`: their IDs. `numa`: the NUMA nodes
    of each device, if known."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: frozenset[str]
    numa: Mapping[str, Numa] = field(default_factory=dict, compare=False)

    @property
    def holder(self) -> Holder:
        """The container as it is named in the status of a ShadowPod."""
        return _holder(self.namespace, self.pod, self.container)

    @property
    def is_share(self) -> bool:
        """Whether the devices are virtual ones, which shadow pods' cards are divided into."""
        return parse_resource(self.resource) is not None

    @property
    def is_of_mizar(self) -> bool:
        """Whether a node agent offers the devices: virtual ones, or cards to borrow. The IDs of the
        latter begin with their card's UUID."""
        return self.is_share or self.resource == SPOT_RESOURCE


# Each plan needs all holders again, and validating a model's fields is slow.
@lru_cache(maxsize=4096)
def _holder(namespace: str, pod: str, container: str) -> Holder:
    return Holder(namespace=namespace, name=pod, container=container)


@dataclass(frozen=True)
class Claims:
    """All claims of the node; `asked_at`: when the kubelet was asked (monotonic seconds)."""

    all: tuple[Claim, ...] = ()
    asked_at: float = float("-inf")

    @property
    def are_known(self) -> bool:
        """Whether the kubelet has answered since the agent's start."""
        return self.asked_at > float("-inf")

    @cached_property
    def pods(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of each pod that has a claim."""
        return frozenset((one.namespace, one.pod) for one in self.all)

    def of_pod(self, namespace: str, pod: str, resource: str) -> tuple[Claim, ...]:
        """The claims of one pod on one resource."""
        return self._by_pod.get((namespace, pod, resource), ())

    @cached_property
    def _by_pod(self) -> dict[tuple[str, str, str], tuple[Claim, ...]]:
        """The claims by pod and resource: each plan looks up those of every pod, which would take
        quadratic time without this index."""
        found: dict[tuple[str, str, str], tuple[Claim, ...]] = {}
        for one in self.all:
            key = one.namespace, one.pod, one.resource
            found[key] = (*found.get(key, ()), one)
        return found

    def exactly(self, resource: str, ids: Iterable[str]) -> tuple[Claim, ...]:
        """The claims of containers that hold exactly these devices of the resource."""
        wanted = frozenset(ids)
        return tuple(one for one in self.all if one.resource == resource and one.ids == wanted)

    def share(self) -> Iterable[tuple[DeviceID, Claim]]:
        """Each held virtual device with its claim; other device IDs are skipped."""
        for claim in self.all:
            if claim.is_share:
                for text in claim.ids:
                    try:
                        yield DeviceID.parse(text), claim
                    except DeviceIDRefused:
                        continue

    def cards(self) -> set[str]:
        """UUIDs of the held cards and MIG devices; IDs of other kinds are skipped."""
        others = (claim for claim in self.all if not claim.is_of_mizar)
        uuids = {card_uuid(one) for claim in others for one in claim.ids}
        return {one for one in uuids if one.startswith(mig.UUIDS)}


def card_uuid(device: str) -> str:
    """The card's UUID in a device ID of NVIDIA's device plugin, which appends `::{n}` to it where
    it gives a card to several pods."""
    return device.partition("::")[0]


def from_list(answer: pb.ListPodResourcesResponse, asked_at: float) -> Claims:
    """The claims in the kubelet's answer, which lists every device separately. `asked_at`: when the
    kubelet was asked (monotonic seconds)."""
    return Claims(
        tuple(
            claim
            for pod in answer.pod_resources
            for container in pod.containers
            for claim in _of_container(pod, container)
        ),
        asked_at,
    )


def _of_container(pod: pb.PodResources, container: pb.ContainerResources) -> Iterable[Claim]:
    devices: dict[str, dict[str, Numa]] = {}
    for entry in container.devices:
        numa = tuple(node.ID for node in entry.topology.nodes)
        devices.setdefault(entry.resource_name, {}).update(dict.fromkeys(entry.device_ids, numa))
    for resource, ids in devices.items():
        yield Claim(pod.namespace, pod.name, container.name, resource, frozenset(ids), ids)
