"""A machine's cards as NVIDIA's DRA driver describes them, and the ResourceSlice that lists them.

A card is called gpu-N after its minor number, as with NVIDIA's driver. So its name may change, and
another card may get the old one. A card with a critical error has a taint that keeps new claims
away. Lost cards are left out; of a card that MIG divides, its instances are offered instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mizar_kube.client import KubeClient
from mizar_kube.kinds import NODE, Kind, Ref
from simgpu.machine import MIB, Machine
from simgpu.mig import Profile, capability_nodes
from simgpu.state_file import MACHINE

DRIVER = "gpu.nvidia.com"
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
XID_TAINT = f"{DRIVER}/xid"
PROFILE_IDS = {1: 19, 2: 14, 3: 9, 4: 5, 7: 0}
"""NVML's numbers of an A100's GPU instance profiles, by their slices of compute."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Instance:
    """What a MIG instance has more than a card. `parent`: the UUID of its card; `nodes`: names of
    the device nodes of its capabilities."""

    parent: str
    profile: str
    gpu_instance: int
    nodes: tuple[str, ...]

    @property
    def placement(self) -> str:
        """The end of its name: profile, start and size. The simulated card knows no start."""
        slices = Profile.parse(self.profile).slices
        return f"{PROFILE_IDS[slices]}-{self.gpu_instance}-{slices}"


@dataclass(frozen=True)
class Device:
    """A card or MIG instance, as claims name it and as containers get it. `memory_mib`: its memory
    in MiB; `xid`: its last critical error, or 0; `versions`: attributes of type version."""

    minor: int
    uuid: str
    product: str
    memory_mib: int
    xid: int
    numa: int | None
    versions: tuple[tuple[str, str], ...] = ()
    instance: Instance | None = None

    @property
    def name(self) -> str:
        """The name by which claims have it."""
        card = f"gpu-{self.minor}"
        return f"{card}-mig-{self.instance.placement}" if self.instance else card

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its device nodes."""
        return f"nvidia{self.minor}", *(self.instance.nodes if self.instance else ())

    def published(self) -> Object:
        """The device as its ResourceSlice lists it."""
        device: Object = {
            "name": self.name,
            "attributes": self._attributes(),
            "capacity": {"memory": {"value": f"{self.memory_mib}Mi"}},
        }
        if self.xid:
            taint = {"key": XID_TAINT, "value": str(self.xid), "effect": "NoSchedule"}
            device["taints"] = [taint]
        return device

    def _attributes(self) -> Object:
        words = {
            "type": "gpu",
            "uuid": self.uuid,
            "productName": self.product,
            "brand": "Nvidia",
            "architecture": "Ampere",
        }
        if self.instance:
            more = {"parentUUID": self.instance.parent, "profile": self.instance.profile}
            words |= {"type": "mig", **more}
        attributes: Object = {key: {"string": value} for key, value in words.items()}
        attributes |= {key: {"version": value} for key, value in self.versions}
        if self.numa is not None:
            attributes["resource.kubernetes.io/numaNode"] = {"int": self.numa}
        return attributes


def devices(machine: Machine) -> tuple[Device, ...]:
    """The cards and instances that claims can get and those with an error, by their minor numbers
    and names."""
    return tuple(sorted(_devices(machine), key=lambda one: (one.minor, one.name)))


def _devices(machine: Machine) -> Iterator[Device]:
    state = machine.state
    for index in range(state.card_count()):
        if state.number(index, "lost") or state.number(index, "divided"):
            continue
        parent = machine.parent(index)
        card = parent - 1 if parent else index
        numa = state.number(index, "numa")
        yield Device(
            minor=state.number(card, "minor"),
            uuid=state.text(index, "uuid"),
            product=state.text(card, "name"),
            memory_mib=state.number(index, "memory_bytes") // MIB,
            xid=state.number(index, "last_xid"),
            numa=numa - 1 if numa else None,
            versions=tuple(_versions(machine, card)),
            instance=_instance(machine, index, card) if parent else None,
        )


def _instance(machine: Machine, index: int, card: int) -> Instance:
    state = machine.state
    numbers = (state.number(index, f"{what}_capability") for what in ("gpu", "compute"))
    return Instance(
        parent=state.text(card, "uuid"),
        profile=state.text(index, "profile"),
        gpu_instance=state.number(index, "gpu_instance"),
        nodes=tuple(capability_nodes(numbers)),
    )


def _versions(machine: Machine, index: int) -> Iterator[tuple[str, str]]:
    state = machine.state
    major, minor = (state.number(index, f"compute_{one}") for one in ("major", "minor"))
    yield "cudaComputeCapability", f"{major}.{minor}.0"
    cuda = state.number(MACHINE, "cuda_version")
    yield "cudaDriverVersion", f"{cuda // 1000}.{cuda % 1000 // 10}.0"
    driver = state.text(MACHINE, "driver_version")
    yield "driverVersion", ".".join(str(int(part)) for part in driver.split("."))


class Publisher:
    """Keeps the ResourceSlice of a node up to date with its cards."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._written: tuple[list[Object], str] = ([], "")
        """The devices that were written last, and the slice's version since then. New devices are
        compared with these and not with the slice, in which the API server writes quantities in its
        own way."""

    async def publish(self, found: Sequence[Device]) -> None:
        """Make the node have exactly one slice, with these devices. Raises KubeError."""
        wanted = [one.published() for one in found]
        selector = f"spec.nodeName={self._node},spec.driver={DRIVER}"
        listing = await self._client.list(RESOURCE_SLICE, field_selector=selector)
        for further in listing.items[1:]:
            await self._client.delete(Ref(RESOURCE_SLICE, further["metadata"]["name"]))
        if not listing.items:
            self._note(wanted, await self._create(wanted))
        elif self._written != (wanted, _version(kept := listing.items[0])):
            self._note(wanted, await self._replace(kept, wanted))

    def _note(self, wanted: list[Object], made: Object) -> None:
        self._written = wanted, _version(made)

    async def _create(self, wanted: list[Object]) -> Object:
        node = await self._client.get(Ref(NODE, self._node))
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
        pool = {"name": self._node, "generation": 1, "resourceSliceCount": 1}
        body = {
            "apiVersion": RESOURCE_SLICE.api_version,
            "kind": RESOURCE_SLICE.name,
            "metadata": {"generateName": f"{self._node}-{DRIVER}-", "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": wanted},
        }
        return await self._client.request("POST", RESOURCE_SLICE.path(), body=body)

    async def _replace(self, kept: Object, wanted: list[Object]) -> Object:
        pool = kept["spec"]["pool"]
        pool = {**pool, "generation": pool["generation"] + 1}
        changed = {**kept, "spec": {**kept["spec"], "pool": pool, "devices": wanted}}
        path = RESOURCE_SLICE.path(name=kept["metadata"]["name"])
        return await self._client.request("PUT", path, body=changed)


def _version(made: Object) -> str:
    return str(made["metadata"]["resourceVersion"])
