"""Finds out how a node's container runtime can give cards, for cardAccess.strategy Auto.

Only observed features count: a container without its card is worse than a way that a tenant can
override.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.config import CardAccess, Way
from mizar_nodeagent.container import cdi_files, containerd_config
from mizar_nodeagent.container.containerd_config import Containerd

log = get_logger(__name__)

CONTAINERD: Final = "containerd"
"""The name by which containerd appears in the node's status."""
CRIO: Final = "cri-o"
"""The name by which CRI-O appears in the node's status."""
_RUNTIME: Final = re.compile(rf"({CONTAINERD}|{CRIO})(?:://| )v?(\d+)\.(\d+)(?:\.(\d+))?")
"""A runtime's name and version, as in the node's status, such as containerd://2.2.9, or as the
runtime gives them by NRI, such as containerd v2.2.9."""
_OWN_CONTAINERD: Final = "k3s"
"""Part of the version of the containerd that k3s and RKE2 ship."""
DEFAULT_CONFIG: Final = CardAccess().containerd_config
"""Path of containerd's configuration if none is configured."""
VOLUME_MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
"""Key in the configuration of NVIDIA's runtime by which it takes cards from volume mounts."""
VARIABLE: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
"""Key there by which it takes cards from NVIDIA_VISIBLE_DEVICES; true unless it says false."""
CONNECT_WITHIN_S: Final = 1.0
"""Seconds within which the runtime must accept a connection to count as taking NRI plugins."""


@dataclass(frozen=True)
class Discovery:
    """The ways that the node supports. `nri`: the runtime accepts NRI plugins. `way`: the best of
    the other ways. `beside_cdi`: the best of these if CDI is left out."""

    nri: bool
    way: Way
    beside_cdi: Way = "EnvVar"


async def discover(access: CardAccess, runtime: str) -> Discovery:
    """Find out which ways the node supports. `runtime`: as in the node's status, such as
    containerd://2.2.9."""
    nri = await _listens(access.nri_socket)
    way = await asyncio.to_thread(best_way, access, runtime)
    return Discovery(nri, way, await asyncio.to_thread(best_beside_cdi, access))


def best_way(access: CardAccess, runtime: str) -> Way:
    """The best way other than NRI: CDI, else volume mounts, else device nodes where mounts for the
    driver's files are configured, else the variable. `runtime`: as for `discover`."""
    return "CDI" if gives_cdi(access, runtime) else best_beside_cdi(access)


def best_beside_cdi(access: CardAccess) -> Way:
    """The best way other than NRI and CDI."""
    if _takes_volume_mounts(access.nvidia_runtime_config):
        return "VolumeMounts"
    return "Mounts" if access.mounts else "EnvVar"


def gives_cdi(access: CardAccess, runtime: str) -> bool:
    """Whether containers can get cards by CDI: the runtime reads CDI devices, and the node's CDI
    files name cards. Those of NVIDIA's DRA driver exist only while cards are allocated, so its kind
    counts if it is configured."""
    if not reads_cdi(access, runtime):
        return False
    return cdi_files.is_by_claims(access) or bool(cdi_files.named_cards(access))


def reads_cdi(access: CardAccess, runtime: str) -> bool:
    """Whether the runtime reads the CDI devices that the kubelet passes on; a runtime that does not
    ignores them silently. containerd does by default from 2.0, and 1.7 if its configuration enables
    it; CRI-O does from 1.28, the first that reads them from the CRI's own field."""
    name, version = named(runtime)
    if name == CRIO:
        return version >= (1, 28)
    if version < (1, 7):
        return False
    found = containerd(access, runtime)
    told = found.cdi if found else None
    return version >= (2,) if told is None else told


def gives_cdi_by_nri(runtime: str) -> bool | None:
    """Whether the runtime gives containers the CDI devices that an NRI plugin asks for; one that
    does not drops them silently. None if the runtime or its version is not known."""
    name, version = named(runtime)
    if not name:
        return None
    if name == CRIO:
        return version >= (1, 34)
    return version >= (2, 1) or (1, 7, 30) <= version < (2,)


def named(runtime: str) -> tuple[str, tuple[int, ...]]:
    """The runtime's name and its version's three numbers; both empty if it is neither containerd
    nor CRI-O. `runtime`: as in the node's status or as given by NRI."""
    found = _RUNTIME.match(runtime)
    if found is None:
        return "", ()
    return found[1], (int(found[2]), int(found[3]), int(found[4] or 0))


def containerd(access: CardAccess, runtime: str) -> Containerd | None:
    """The settings in containerd's configuration; None if they are unknown, or not those of the
    node's runtime."""
    path = access.containerd_config
    name, version = named(runtime)
    if name != CONTAINERD:
        return None
    if _OWN_CONTAINERD in runtime and path == DEFAULT_CONFIG:
        return None  # the file of a containerd that the kubelet does not use
    return containerd_config.read(path, version[0])


async def _listens(socket: Path) -> bool:
    try:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, writer = await asyncio.open_unix_connection(str(socket))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def refuses_variable(access: CardAccess) -> bool:
    """Whether the configuration of NVIDIA's container runtime has it ignore NVIDIA_VISIBLE_DEVICES
    in containers that are not privileged, which then start without their card."""
    return _nvidias(access.nvidia_runtime_config).get(VARIABLE) is False


def _takes_volume_mounts(path: Path) -> bool:
    """Whether the configuration of NVIDIA's container runtime enables volume mounts."""
    return _nvidias(path).get(VOLUME_MOUNTS) is True


def _nvidias(path: Path) -> Mapping[str, Any]:
    """The configuration of NVIDIA's container runtime; empty if it cannot be read."""
    try:
        now = path.stat()
    except OSError:
        return {}
    return _parsed(path, now.st_ino, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=8)
def _parsed(path: Path, inode: int, written: int, size: int) -> Mapping[str, Any]:
    """The parsed file. Cached for each state of the file, since it is looked at every other second:
    one that cannot be read is logged once."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        log.warning("the configuration of NVIDIA's runtime cannot be read", path=path, error=error)
        return {}
