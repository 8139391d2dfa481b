"""The ways to give a container its cards: environment, device nodes, volume mounts or CDI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOLUME_MARKS = "/var/run/nvidia-container-devices"


def names_device_nodes(access: CardAccess) -> bool:
    """Whether the answer names device nodes, by the cards' minor numbers."""
    return access.strategy == "Mounts"


def add_cards(
    answer: pb.ContainerAllocateResponse,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool] = Path.exists,
) -> None:
    """Add to the answer of Allocate what gives the container these cards, by the configured
    strategy. `minors`: numbers of their device nodes, where `names_device_nodes`."""
    for name, value in access.env.items():
        answer.envs[name] = value
    _STRATEGIES[access.strategy](answer, uuids, minors, access, exists)


def _env_var(
    answer: pb.ContainerAllocateResponse,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    answer.envs[VISIBLE] = ",".join(uuids)


def _mounts(
    answer: pb.ContainerAllocateResponse,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    _env_var(answer, uuids, minors, access, exists)
    common = [name for name in access.device_nodes if exists(access.dev_root / name)]
    for name in [*(f"nvidia{minors[uuid]}" for uuid in uuids), *common]:
        answer.devices.add(
            container_path=f"/dev/{name}", host_path=str(access.dev_root / name), permissions="rw"
        )
    for mount in access.mounts:
        answer.mounts.add(
            container_path=str(mount.container_path),
            host_path=str(mount.host_path),
            read_only=mount.read_only,
        )


def _volume_mounts(
    answer: pb.ContainerAllocateResponse,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    answer.envs[VISIBLE] = VOLUME_MARKS
    for uuid in uuids:
        answer.mounts.add(container_path=f"{VOLUME_MARKS}/{uuid}", host_path="/dev/null")


def _cdi(
    answer: pb.ContainerAllocateResponse,
    uuids: Sequence[str],
    minors: Mapping[str, int],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    for uuid in uuids:
        answer.cdi_devices.add(name=f"{access.cdi_kind}={uuid}")


_STRATEGIES = {
    "EnvVar": _env_var,
    "Mounts": _mounts,
    "VolumeMounts": _volume_mounts,
    "CDI": _cdi,
}
