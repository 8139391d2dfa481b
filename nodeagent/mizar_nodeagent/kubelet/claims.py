"""Claims: which container holds which devices, by the kubelet's podresources API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.models import Holder
from mizar_core.names import DRA_DRIVER, PHYSICAL_RESOURCE, SPOT_RESOURCE, parse_resource
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


@dataclass(frozen=True, order=True)
class DraDevice:
    """A device that NVIDIA's DRA driver has given to a ResourceClaim. `namespace`, `claim`: the
    claim's names. `pool`, `name`: the device's. `share`: the ID of the claim's part of the device,
    if the driver lets several claims have parts of it; otherwise empty. `cdi`: names of the CDI
    devices by which the driver gives the device to containers, with their kinds."""

    namespace: str
    claim: str
    pool: str
    name: str
    share: str = ""
    cdi: tuple[str, ...] = field(default=(), compare=False)

    @property
    def place(self) -> tuple[str, str]:
        """The device's pool and name."""
        return self.pool, self.name

    def id(self, uuid: str | None) -> str:
        """The ID by which containers hold the device: its card's UUID, with `::{share}` for a part;
        as long as the card is not known (None), a name that no card has."""
        if uuid is None:
            return f"{DRA_DRIVER}/{self.pool}/{self.name}"
        return f"{uuid}::{self.share}" if self.share else uuid

    def __str__(self) -> str:
        return f"{self.name} of pool {self.pool} (ResourceClaim {self.namespace}/{self.claim})"


@dataclass(frozen=True)
class Claims:
    """All claims of the node; `asked_at`: when the kubelet was asked (monotonic seconds). `dra`: of
    each device of NVIDIA's DRA driver among them, the card's UUID; empty if it is not a whole card,
    None if it is not known."""

    all: tuple[Claim, ...] = ()
    asked_at: float = float("-inf")
    dra: Mapping[DraDevice, str | None] = field(default_factory=dict, compare=False)

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


def dra_devices(answer: pb.ListPodResourcesResponse) -> frozenset[DraDevice]:
    """The devices in the kubelet's answer that NVIDIA's DRA driver has given to claims."""
    return frozenset(
        device
        for pod in answer.pod_resources
        for container in pod.containers
        for device in _dra_devices(container)
    )


def from_list(
    answer: pb.ListPodResourcesResponse,
    asked_at: float,
    dra: Mapping[DraDevice, str | None] | None = None,
    resource_of: Callable[[str], str] = lambda uuid: PHYSICAL_RESOURCE,
) -> Claims:
    """The claims in the kubelet's answer, which lists every device separately. `asked_at`: when the
    kubelet was asked (monotonic seconds). `dra`: the cards of `dra_devices`, as in Claims; without
    it, these devices are left out. `resource_of`: returns the resource by which pods hold the card
    with a UUID."""
    cards = dra or {}
    return Claims(
        tuple(
            claim
            for pod in answer.pod_resources
            for container in pod.containers
            for claim in _of_container(pod, container, cards, resource_of)
        ),
        asked_at,
        cards,
    )


def _of_container(
    pod: pb.PodResources,
    container: pb.ContainerResources,
    cards: Mapping[DraDevice, str | None],
    resource_of: Callable[[str], str],
) -> Iterable[Claim]:
    devices: dict[str, dict[str, Numa]] = {}
    for entry in container.devices:
        numa = tuple(node.ID for node in entry.topology.nodes)
        devices.setdefault(entry.resource_name, {}).update(dict.fromkeys(entry.device_ids, numa))
    for one in _dra_devices(container):
        if (uuid := cards.get(one, "")) != "":
            devices.setdefault(resource_of(uuid or ""), {})[one.id(uuid)] = ()
    for resource, ids in devices.items():
        yield Claim(pod.namespace, pod.name, container.name, resource, frozenset(ids), ids)


def _dra_devices(container: pb.ContainerResources) -> Iterable[DraDevice]:
    for claim in container.dynamic_resources:
        for one in claim.claim_resources:
            if one.driver_name == DRA_DRIVER:
                yield DraDevice(
                    claim.claim_namespace,
                    claim.claim_name,
                    one.pool_name,
                    one.device_name,
                    one.share_id,
                    tuple(_cdi_names(one)),
                )


def _cdi_names(device: pb.ClaimResource) -> Iterable[str]:
    """The names of the device's CDI devices. The kubelet also lists those of the claim's devices
    before it; the driver's names end with the device's own name."""
    ends = f"-{device.device_name}", f"={device.device_name}"
    return (one.name for one in device.cdi_devices if one.name.endswith(ends))
