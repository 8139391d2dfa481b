"""Finds out how a node's container runtime can give cards, for cardAccess.strategy Auto.

Only observed features count: a container without its card is worse than a way that a tenant can
override.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mizar_kube.logs import get_logger
from mizar_nodeagent.config import CardAccess, Way
from mizar_nodeagent.container import cdi_files, containerd_config
from mizar_nodeagent.container.containerd_config import Containerd

log = get_logger(__name__)

_CONTAINERD: Final = re.compile(r"containerd://v?(\d+)\.(\d+)")
_OWN_CONTAINERD: Final = "k3s"
"""Part of the version of the containerd that k3s and RKE2 ship."""
DEFAULT_CONFIG: Final = CardAccess().containerd_config
VOLUME_MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
CONNECT_WITHIN_S: Final = 1.0
"""Seconds within which the runtime must accept a connection to count as taking NRI plugins."""


@dataclass(frozen=True)
class Discovery:
    """The ways that the node supports. `nri`: the runtime accepts NRI plugins. `way`: the best of
    the other ways."""

    nri: bool
    way: Way


async def discover(access: CardAccess, runtime: str) -> Discovery:
    """Find out which ways the node supports. `runtime`: as in the node's status, such as
    containerd://2.2.9."""
    nri = await _listens(access.nri_socket)
    return Discovery(nri, await asyncio.to_thread(best_way, access, runtime))


def best_way(access: CardAccess, runtime: str) -> Way:
    """The best way beside NRI: CDI, volume mounts, device nodes where mounts for them are
    configured, and else the variable."""
    if gives_cdi(access, runtime):
        return "CDI"
    if _takes_volume_mounts(access.nvidia_runtime_config):
        return "VolumeMounts"
    return "Mounts" if access.mounts else "EnvVar"


def gives_cdi(access: CardAccess, runtime: str) -> bool:
    """Whether containers can get cards by CDI."""
    return reads_cdi(access, runtime) and bool(cdi_files.named_cards(access))


def reads_cdi(access: CardAccess, runtime: str) -> bool:
    """Whether the runtime reads CDI; a runtime that does not ignores it silently. containerd reads
    it by default from 2.0, and 1.7 does if its configuration enables it."""
    version = _CONTAINERD.match(runtime)
    if version is None or (int(version[1]), int(version[2])) < (1, 7):
        return False
    found = containerd(access, runtime)
    told = found.cdi if found else None
    return int(version[1]) >= 2 if told is None else told


def containerd(access: CardAccess, runtime: str) -> Containerd | None:
    """The settings in containerd's configuration; None if they are unknown, or not those of the
    node's runtime."""
    path = access.containerd_config
    version = _CONTAINERD.match(runtime)
    if not version:
        return None
    if _OWN_CONTAINERD in runtime and path == DEFAULT_CONFIG:
        return None  # the file of a containerd that the kubelet does not use
    return containerd_config.read(path, int(version[1]))


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


def _takes_volume_mounts(path: Path) -> bool:
    """Whether the configuration of NVIDIA's container runtime enables volume mounts."""
    try:
        return tomllib.loads(path.read_text()).get(VOLUME_MOUNTS) is True
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        log.warning("the configuration of NVIDIA's runtime cannot be read", path=path, error=error)
        return False
