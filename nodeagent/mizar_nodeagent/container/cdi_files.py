"""The node's CDI files: which cards and MIG devices the container runtime can give by name.

They are made by others, and do not follow the cards: a MIG device that was made after its file is
in none. The runtime would refuse the container with a sentence that names no remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import yaml

from mizar_kube.logs import get_logger
from mizar_nodeagent import mig
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.errors import NotYet

log = get_logger(__name__)

UUIDS: Final = ("GPU-", mig.PREFIX)
"""How the names of cards and of MIG devices begin, where files name them by UUID."""


def named_cards(access: CardAccess) -> frozenset[str]:
    """The UUIDs of cards and MIG devices that files of `cdi_dirs` name, of the kind in use."""
    return frozenset(
        name
        for path in _files(access)
        for kind, name in _names_in(path)
        if kind == access.cdi_kind and name.startswith(UUIDS)
    )


def check_named(access: CardAccess, uuids: Collection[str]) -> None:
    """Raises NotYet where files name cards by UUID, but not these. Where none does, the agent may
    look into other folders than the runtime, which then tells by itself."""
    named = named_cards(access)
    missing = sorted(set(uuids) - named)
    if named and missing:
        folders = ", ".join(map(str, access.cdi_dirs))
        raise NotYet(
            f"its card {missing[0]} is in no CDI file of the node (in {folders}, of the kind "
            f"{access.cdi_kind}), though others are: the files are older than the card or MIG "
            "device; run `nvidia-ctk cdi generate` on the node again, with the --output of before"
        )


def _files(access: CardAccess) -> Iterator[Path]:
    for folder in access.cdi_dirs:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in (".json", ".yaml"):
                yield path


def _names_in(path: Path) -> tuple[tuple[str, str], ...]:
    """Kind and name of each device of a file; of one that cannot be read, none."""
    try:
        now = path.stat()
        return _parsed(path, now.st_ino, now.st_mtime_ns, now.st_size)
    except (OSError, ValueError, yaml.YAMLError) as error:
        log.warning("a CDI file cannot be read", path=path, error=error)
        return ()


@lru_cache(maxsize=64)
def _parsed(path: Path, inode: int, written: int, size: int) -> tuple[tuple[str, str], ...]:
    """Read once for each state of the file: parsing takes a tenth of a second."""
    spec = yaml.safe_load(path.read_text())
    if not isinstance(spec, dict):
        return ()
    devices = [one for one in spec.get("devices") or () if isinstance(one, dict)]
    return tuple((str(spec.get("kind")), str(one.get("name"))) for one in devices)
