"""Computes the NRI adjustment by which a container gets its cards and no others."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from mizar_core.names import ANNOTATION_CARDS
from mizar_nodeagent.config import MountConfig
from mizar_nodeagent.container.card_access import VOLUME_MARKS, Parts
from mizar_nodeagent.errors import ContainerRefused
from mizar_nodeagent.proto import nri_pb2 as pb

OTHER_CARDS: Final = "give it access to cards beyond its share"
NEIGHBOURS_MEMORY: Final = "reserve memory of its card that others have a share of"
FORBIDDEN: Final = {
    "NVIDIA_MIG_CONFIG_DEVICES": OTHER_CARDS,
    "NVIDIA_MIG_MONITOR_DEVICES": OTHER_CARDS,
    "NVIDIA_GPU_MEMORY_REQUEST": NEIGHBOURS_MEMORY,
    "NVIDIA_GPU_MEMORY_LIMIT": NEIGHBOURS_MEMORY,
}
"""Variables of NVIDIA's runtime that no share container may have, and what they would do.
NVIDIA_VISIBLE_DEVICES, which is replaced, is not among them."""
MARKS: Final = tuple(map(PurePosixPath, (VOLUME_MARKS, VOLUME_MARKS.removeprefix("/var"))))
"""The folder in a container where NVIDIA's runtime takes the names of mounts for names of cards, by
both of its paths: /var/run is a link to /run."""

Stat = Callable[[Path], os.stat_result]
"""Returns the status of a device node. Raises OSError."""


def adjustment(
    container: pb.Container, uuids: Iterable[str], parts: Parts, look: Stat = os.stat
) -> pb.ContainerAdjustment:
    """The changes that give the container these parts, whatever its pod or image says. `uuids`: its
    cards, for an annotation. `look`: returns the status of a device node. Raises ContainerRefused
    if it cannot get them."""
    adjust = pb.ContainerAdjustment(annotations={ANNOTATION_CARDS: ",".join(uuids)})
    adjust.env.extend(_env(container, parts))
    adjust.mounts.extend(_mounts(container, parts))
    adjust.CDI_devices.extend(pb.CDIDevice(name=name) for name in parts.cdi_devices)
    if parts.devices:
        found = [_device(inside, outside, look) for inside, outside in parts.devices.items()]
        adjust.linux.devices.extend(found)
    return adjust


def _env(container: pb.Container, parts: Parts) -> Iterator[pb.KeyValue]:
    there = Counter(one.partition("=")[0] for one in container.env)
    for name, effect in FORBIDDEN.items():
        if there[name]:
            raise ContainerRefused(
                f"it sets {name}, which would {effect}, and the container runtime cannot unset "
                "variables: remove it from the image and the pod"
            )
    for name, value in parts.env.items():
        # The runtime replaces the first of several, but the last one counts.
        if there[name] > 1:
            raise ContainerRefused(
                f"its image and its pod both set {name}, and the container runtime cannot "
                "replace more than one of them: remove it from the pod's env and envFrom"
            )
        yield pb.KeyValue(key=name, value=value)


def _mounts(container: pb.Container, parts: Parts) -> Iterator[pb.Mount]:
    ours = {str(mount.container_path) for mount in parts.mounts}
    for mount in container.mounts:
        # NVIDIA's runtime takes the names of mounts there for names of cards.
        inside = PurePosixPath(os.path.normpath(mount.destination))
        if mount.destination not in ours and any(
            mark in (inside, *inside.parents) for mark in MARKS
        ):
            yield pb.Mount(destination=_removed(mount.destination))
    yield from map(_mount, parts.mounts)


def _mount(mount: MountConfig) -> pb.Mount:
    return pb.Mount(
        destination=str(mount.container_path),
        type="bind",
        source=str(mount.host_path),
        options=["rbind", "rprivate", "ro" if mount.read_only else "rw"],
    )


def _removed(name: str) -> str:
    """The name as NRI marks something that is to be removed."""
    return f"-{name}"


def _device(inside: str, outside: Path, look: Stat) -> pb.LinuxDevice:
    try:
        found = look(outside)
    except OSError as error:
        raise ContainerRefused(f"its device node is not on the node: {error}") from error
    if not stat.S_ISCHR(found.st_mode):
        raise ContainerRefused(f"{outside} on the node is no device node")
    return pb.LinuxDevice(
        path=inside,
        type="c",
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        file_mode=pb.OptionalFileMode(value=stat.S_IMODE(found.st_mode)),
    )
