"""What a node's container runtime can do, as far as it shows: for cardAccess.strategy Auto.

What cannot be observed is not relied on: a container without its card is worse than a way that a
tenant can override.
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
from mizar_nodeagent.container import cdi_files

log = get_logger(__name__)

_CONTAINERD: Final = re.compile(r"containerd://v?(\d+)\.")
VOLUME_MOUNTS: Final = "accept-nvidia-visible-devices-as-volume-mounts"
CONNECT_WITHIN_S: Final = 1.0


@dataclass(frozen=True)
class Discovery:
    """`nri`: the runtime takes plugins. `way`: the best of the other ways that it has."""

    nri: bool
    way: Way


async def discover(access: CardAccess, runtime: str) -> Discovery:
    """Look at the node. `runtime`: as in a node's status, such as containerd://2.2.9."""
    nri = await _listens(access.nri_socket)
    return Discovery(nri, await asyncio.to_thread(best_way, access, runtime))


def best_way(access: CardAccess, runtime: str) -> Way:
    """The best way beside NRI: CDI, volume mounts, device nodes where mounts for them are
    configured, and else the variable."""
    if reads_cdi(runtime) and cdi_files.named_cards(access):
        return "CDI"
    if _takes_volume_mounts(access.nvidia_runtime_config):
        return "VolumeMounts"
    return "Mounts" if access.mounts else "EnvVar"


def reads_cdi(runtime: str) -> bool:
    """Whether the runtime reads CDI unless it was turned off: others ignore it without a word."""
    found = _CONTAINERD.match(runtime)
    return found is not None and int(found[1]) >= 2


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
    """Whether NVIDIA's container runtime was told to."""
    try:
        return tomllib.loads(path.read_text()).get(VOLUME_MOUNTS) is True
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        log.warning("the configuration of NVIDIA's runtime cannot be read", path=path, error=error)
        return False
