"""Computes the parts that give a container its cards: environment, device nodes, volume mounts or
CDI devices; also those of GPUDirect Storage, RDMA and GDRCopy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.config import CardAccess, MountConfig, Way
from mizar_nodeagent.container import cdi_files
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

log = get_logger(__name__)

Look = Callable[[Path, str], Iterable[Path]]
"""Returns the files of a folder that match a pattern."""
Found = Mapping[str, Sequence[Path]]
"""The device nodes that each pattern matches, as paths in the agent's container."""

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
"""The variable from which NVIDIA's runtime reads which cards a container gets."""
VOLUME_MARKS: Final = "/var/run/nvidia-container-devices"
"""The folder in a container in which NVIDIA's runtime takes the names of mounts for names of cards;
as the value of NVIDIA_VISIBLE_DEVICES, it says that the cards are named there."""
NO_CARD: Final = "void"
"""Value of NVIDIA_VISIBLE_DEVICES with which NVIDIA's runtime gives a container nothing."""

CDI_ANNOTATION: Final = "mizar_cards"
"""The part after the prefix in the key of the annotation that names CDI devices."""


@dataclass(frozen=True)
class Extra:
    """A feature that containers may get besides cards. `variable`: the environment variable by
    which NVIDIA's runtime gives it. `kind`: the class of its CDI devices. `nodes`: patterns of its
    device nodes, below /dev."""

    variable: str
    kind: str
    nodes: tuple[str, ...]


GDS: Final = Extra("NVIDIA_GDS", "gds", ("nvidia-fs*",))
"""GPUDirect Storage."""
MOFED: Final = Extra("NVIDIA_MOFED", "mofed", ("infiniband/uverbs*", "infiniband/rdma_cm"))
"""Access to RDMA network adapters (NVIDIA's MLNX_OFED)."""
GDRCOPY: Final = Extra("NVIDIA_GDRCOPY", "gdrcopy", ("gdrdrv",))
"""GDRCopy, by which the processor copies to and from a card's memory."""
NEEDED: Final = ("nvidiactl", "nvidia-uvm")
"""Device nodes without which no program can use a card. The other nodes that containers get by
default do not exist on every node of a cluster."""


@dataclass(frozen=True)
class Parts:
    """The parts that give a container its cards. `devices`: paths of device nodes on the node, by
    their paths in the container. `annotations`: on the container, for the container runtime."""

    env: Mapping[str, str]
    devices: Mapping[str, Path]
    mounts: tuple[MountConfig, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


def names_device_nodes(way: Way | None, access: CardAccess) -> bool:
    """Whether containers that get their cards in this way get device nodes, which takes the cards'
    minor numbers."""
    return way is not None and ("Mounts" in (way, *access.also) or access.pass_device_specs)


def parts(
    way: Way | None,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    look: Look = Path.glob,
    claimed: Mapping[str, str] = cdi_files.NO_NAMES,
) -> Parts:
    """The parts that give a container these cards in this way and in those of `access.also`. `way`:
    None for no parts, since the container gets them later. `minors`: minor numbers of the cards'
    device nodes by UUID, if `names_device_nodes`. `look`: finds device nodes. `claimed`: full names
    of cards' CDI devices, by UUID, that differ from {kind}={UUID}."""
    if way is None:
        return Parts({}, {})
    ways = {way, *access.also}
    extras = tuple(_extras(access))
    devices: Mapping[str, Path] = {}
    if names_device_nodes(way, access):
        found = _find_nodes(access, look)
        devices = _device_nodes(uuids, minors, access, found)
        for one in _missing(access, found):
            log.warning("a device node is missing on the node", path=access.dev_root / one)
    mounts = access.mounts if "Mounts" in ways else ()
    if "VolumeMounts" in ways:
        mounts += tuple(map(_volume_mark, uuids))
    cdi = tuple(_cdi_devices(ways, uuids, access, extras, claimed))
    annotated = {f"{access.cdi_annotation_prefix}{CDI_ANNOTATION}": ",".join(cdi)}
    return Parts(
        {
            **access.env,
            **{one.variable: "enabled" for one in extras},
            VISIBLE: _visible(ways, uuids),
        },
        devices,
        mounts,
        cdi if "CDI" in ways else (),
        annotated if "CDIAnnotations" in ways else {},
    )


def _visible(ways: Collection[Way], uuids: Sequence[str]) -> str:
    if not {"EnvVar", "Mounts"}.isdisjoint(ways):
        return ",".join(uuids)
    # With CDI alone: NVIDIA's runtime, if it is in use too, would otherwise obey the pod's
    # variable.
    return VOLUME_MARKS if "VolumeMounts" in ways else NO_CARD


def _extras(access: CardAccess) -> Iterator[Extra]:
    for wanted, extra in ((access.gds, GDS), (access.mofed, MOFED), (access.gdrcopy, GDRCOPY)):
        if wanted:
            yield extra


def _cdi_devices(
    ways: Collection[Way],
    uuids: Sequence[str],
    access: CardAccess,
    extras: Iterable[Extra],
    claimed: Mapping[str, str],
) -> Iterator[str]:
    """The names of CDI devices for these cards and extras; none if nothing is given by CDI."""
    if not {"CDI", "CDIAnnotations"}.isdisjoint(ways):
        kind = cdi_files.kind_in_use(access)
        yield from (claimed.get(uuid, f"{kind}={uuid}") for uuid in uuids)
        yield from (f"{cdi_files.kind_of(access, one.kind)}=all" for one in extras)


def _device_nodes(
    uuids: Sequence[str], minors: Mapping[str, int], access: CardAccess, found: Found
) -> dict[str, Path]:
    seen = access.seen(access.dev_root)
    names = [f"nvidia{minors[uuid]}" for uuid in uuids]
    names += [str(path.relative_to(seen)) for paths in found.values() for path in paths]
    return {f"/dev/{name}": access.dev_root / name for name in names}


def _nodes_of_extras(access: CardAccess) -> Iterator[str]:
    return (pattern for extra in _extras(access) for pattern in extra.nodes)


def missing_nodes(access: CardAccess) -> list[str]:
    """The patterns of device nodes, below `dev_root`, that match nothing there: those that were
    asked for, and those that every program needs."""
    return _missing(access, _find_nodes(access, Path.glob))


def _missing(access: CardAccess, found: Found) -> list[str]:
    asked = "device_nodes" in access.model_fields_set
    patterns = [one for one in access.device_nodes if asked or one in NEEDED]
    patterns += _nodes_of_extras(access)
    return [one for one in patterns if not found[one]]


def _find_nodes(access: CardAccess, look: Look) -> Found:
    seen = access.seen(access.dev_root)
    patterns = (*access.device_nodes, *_nodes_of_extras(access))
    return {one: sorted(look(seen, one)) for one in patterns}


def _volume_mark(uuid: str) -> MountConfig:
    marks = Path(VOLUME_MARKS)
    return MountConfig(host_path=Path("/dev/null"), container_path=marks / uuid, read_only=False)


def with_nodes(found: Parts, names: Iterable[str], access: CardAccess) -> Parts:
    """The same parts with these device nodes as well. `names`: below /dev."""
    more = {f"/dev/{name}": access.dev_root / name for name in names}
    return replace(found, devices={**found.devices, **more})


def add_parts(answer: pb.ContainerAllocateResponse, found: Parts) -> None:
    """Add these parts to the answer to Allocate."""
    for name, value in found.env.items():
        answer.envs[name] = value
    for inside, outside in found.devices.items():
        answer.devices.add(container_path=inside, host_path=str(outside), permissions="rw")
    for mount in found.mounts:
        answer.mounts.add(
            container_path=str(mount.container_path),
            host_path=str(mount.host_path),
            read_only=mount.read_only,
        )
    for name in found.cdi_devices:
        answer.cdi_devices.add(name=name)
    for key, value in found.annotations.items():
        answer.annotations[key] = value
