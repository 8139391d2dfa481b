"""The ways to give a container its cards: environment, device nodes, volume mounts or CDI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_nodeagent.config import CardAccess, MountConfig, Way
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
VOLUME_MARKS: Final = "/var/run/nvidia-container-devices"
NO_CARD: Final = "void"
"""With this in VISIBLE, NVIDIA's runtime gives a container nothing."""


@dataclass(frozen=True)
class Parts:
    """What a container gets for its cards. `devices`: the node's device nodes, by their paths in
    the container."""

    env: Mapping[str, str]
    devices: Mapping[str, Path]
    mounts: tuple[MountConfig, ...] = ()
    cdi_devices: tuple[str, ...] = ()


def names_device_nodes(way: Way | None) -> bool:
    """Whether containers get device nodes, by the cards' minor numbers."""
    return way == "Mounts"


def parts(
    way: Way | None,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool] = Path.exists,
) -> Parts:
    """What gives a container these cards in that way. `way`: None for nothing, since the container
    gets it later. `minors`: numbers of their device nodes, where `names_device_nodes`."""
    if way is None:
        return Parts({}, {})
    visible = ",".join(uuids)
    devices: Mapping[str, Path] = {}
    mounts: tuple[MountConfig, ...] = ()
    cdi: tuple[str, ...] = ()
    match way:
        case "Mounts":
            devices, mounts = _device_nodes(uuids, minors, access, exists), access.mounts
        case "VolumeMounts":
            visible, mounts = VOLUME_MARKS, tuple(map(_volume_mark, uuids))
        case "CDI":
            # NVIDIA's runtime, where it is in use as well, would take a variable of the pod's.
            visible, cdi = NO_CARD, tuple(f"{access.cdi_kind}={uuid}" for uuid in uuids)
    return Parts({**access.env, VISIBLE: visible}, devices, mounts, cdi)


def _device_nodes(
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> dict[str, Path]:
    common = [name for name in access.device_nodes if exists(access.dev_root / name)]
    names = [*(f"nvidia{minors[uuid]}" for uuid in uuids), *common]
    return {f"/dev/{name}": access.dev_root / name for name in names}


def _volume_mark(uuid: str) -> MountConfig:
    marks = Path(VOLUME_MARKS)
    return MountConfig(host_path=Path("/dev/null"), container_path=marks / uuid, read_only=False)


def add_parts(answer: pb.ContainerAllocateResponse, found: Parts) -> None:
    """Add what a container gets to the answer of Allocate."""
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
