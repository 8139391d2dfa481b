"""The ways to give a container its cards: environment, device nodes, volume mounts or CDI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mizar_nodeagent.cards import Card
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
VOLUME_MARKS = "/var/run/nvidia-container-devices"


def add_cards(
    answer: pb.ContainerAllocateResponse,
    cards: Sequence[Card],
    access: CardAccess,
    exists: Callable[[Path], bool] = Path.exists,
) -> None:
    """Add to the answer of Allocate what gives the container these cards, by the configured
    strategy."""
    for name, value in access.env.items():
        answer.envs[name] = value
    _STRATEGIES[access.strategy](answer, cards, access, exists)


def _env_var(
    answer: pb.ContainerAllocateResponse,
    cards: Sequence[Card],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    answer.envs[VISIBLE] = ",".join(card.uuid for card in cards)


def _mounts(
    answer: pb.ContainerAllocateResponse,
    cards: Sequence[Card],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    _env_var(answer, cards, access, exists)
    common = [name for name in access.device_nodes if exists(access.dev_root / name)]
    for name in [*(f"nvidia{card.minor}" for card in cards), *common]:
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
    cards: Sequence[Card],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    answer.envs[VISIBLE] = VOLUME_MARKS
    for card in cards:
        answer.mounts.add(container_path=f"{VOLUME_MARKS}/{card.uuid}", host_path="/dev/null")


def _cdi(
    answer: pb.ContainerAllocateResponse,
    cards: Sequence[Card],
    access: CardAccess,
    exists: Callable[[Path], bool],
) -> None:
    for card in cards:
        answer.cdi_devices.add(name=f"{access.cdi_kind}={card.uuid}")


_STRATEGIES = {
    "EnvVar": _env_var,
    "Mounts": _mounts,
    "VolumeMounts": _volume_mounts,
    "CDI": _cdi,
}
