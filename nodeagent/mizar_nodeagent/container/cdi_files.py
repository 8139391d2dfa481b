"""Reads the node's CDI files: which cards and MIG devices the container runtime can give by name.

Other programs write these files, and not whenever the cards change: a MIG device that was created
after them is in none. The runtime would refuse its container with an error that names no remedy.
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

VENDOR: Final = "nvidia.com"
MADE_BY_RUNTIME: Final = f"runtime.{VENDOR}/"
"""Kinds for which NVIDIA's runtime makes the specification itself: no file has them."""
KINDS: Final = (f"{VENDOR}/gpu", f"k8s.device-plugin.{VENDOR}/gpu")
"""Kinds (vendor/class) under which CDI files name cards: the files of nvidia-ctk, and those of
NVIDIA's device plugin, which nodes of the GPU Operator have."""


def kind_in_use(access: CardAccess) -> str:
    """The kind (vendor/class) by which containers get their cards: the configured one, or else the
    first of KINDS under which files name cards."""
    if access.cdi_kind:
        return access.cdi_kind
    named = kinds_of_cards(access)
    return next((kind for kind in KINDS if kind in named), KINDS[0])


def kinds_of_cards(access: CardAccess) -> frozenset[str]:
    """The kinds under which files of `cdi_dirs` name cards or MIG devices by UUID."""
    return frozenset(kind for kind, name in _names(access) if name.startswith(mig.UUIDS))


def named_cards(access: CardAccess) -> frozenset[str]:
    """The UUIDs of cards and MIG devices that files of `cdi_dirs` name, of the kind in use."""
    wanted = kind_in_use(access)
    return frozenset(
        name for kind, name in _names(access) if kind == wanted and name.startswith(mig.UUIDS)
    )


def kind_of(access: CardAccess, extra: str) -> str:
    """The kind (vendor/class) of an extra besides cards, such as gds: its vendor is nvidia-ctk's,
    unless files have the extra under the cards' vendor."""
    own = f"{kind_in_use(access).partition('/')[0]}/{extra}"
    return own if any(kind == own for kind, _ in _names(access)) else f"{VENDOR}/{extra}"


def kind_problem(access: CardAccess) -> str:
    """A sentence that says why no container can get any card by CDI; empty if one can."""
    if named_cards(access) or access.cdi_kind.startswith(MADE_BY_RUNTIME):
        return ""
    folders = ", ".join(map(str, access.cdi_dirs))
    wanted = access.cdi_kind or " or ".join(KINDS)
    others = ", ".join(sorted(kinds_of_cards(access)))
    remedy = (
        f"they name cards under {others}, so leave cdiKind empty or set it to that"
        if others
        else "have NVIDIA's device plugin write them (cdi-cri), or nvidia-ctk cdi generate with "
        "--device-name-strategy=uuid; if the container runtime reads other folders, set cdiDirs"
    )
    return (
        f"no CDI file of the node (in {folders}: cardAccess.cdiDirs) names cards by UUID under the "
        f"kind {wanted} (cardAccess.cdiKind), so no container gets a card by CDI: {remedy}"
    )


def check_named(access: CardAccess, uuids: Collection[str]) -> None:
    """Raise NotYet if no file names one of these cards: the runtime would not create the
    container."""
    if not uuids or access.cdi_kind.startswith(MADE_BY_RUNTIME):
        return
    if problem := kind_problem(access):
        raise NotYet(problem)
    if missing := sorted(set(uuids) - named_cards(access)):
        folders = ", ".join(map(str, access.cdi_dirs))
        raise NotYet(
            f"its card {missing[0]} is in no CDI file of the node (in {folders}, of the kind "
            f"{kind_in_use(access)}), though others are: the files are older than the card or MIG "
            "device; run `nvidia-ctk cdi generate` on the node again, with the --output of before, "
            "or start the pod of NVIDIA's device plugin again if the file is the plugin's"
        )


def _names(access: CardAccess) -> Iterator[tuple[str, str]]:
    """Kind and name of each device in the files of `cdi_dirs`."""
    for path in _files(access):
        try:
            now = path.stat()
        except OSError:
            continue  # it was there a moment ago
        yield from _names_in(path, now.st_ino, now.st_mtime_ns, now.st_size)


def _files(access: CardAccess) -> Iterator[Path]:
    for folder in access.cdi_dirs:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in (".json", ".yaml"):
                yield path


@lru_cache(maxsize=64)
def _names_in(path: Path, inode: int, written: int, size: int) -> tuple[tuple[str, str], ...]:
    """Kind and name of each device in one file; none if it cannot be read. Cached for each state of
    the file, since parsing takes a tenth of a second."""
    try:
        spec = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        log.warning("a CDI file cannot be read", path=path, error=error)
        return ()
    if not isinstance(spec, dict):
        return ()
    devices = [one for one in spec.get("devices") or () if isinstance(one, dict)]
    return tuple((str(spec.get("kind")), str(one.get("name"))) for one in devices)
