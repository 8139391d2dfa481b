"""Reads the node's CDI files: which cards and MIG devices the container runtime can give by name.

Other programs write these files, and not whenever the cards change. A MIG device that was created
after them is in none: the runtime would refuse its container with an error that names no remedy.
And they name device nodes by the numbers that cards had when they were written: if the driver has
numbered its cards anew, the runtime would give a container another card than the one it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from mizar_core.names import DRA_DRIVER
from mizar_kube.logs import get_logger
from mizar_nodeagent import mig
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.errors import NotYet

log = get_logger(__name__)

VENDOR: Final = "nvidia.com"
"""The vendor in the kinds of CDI devices that nvidia-ctk writes."""
MADE_BY_RUNTIME: Final = f"runtime.{VENDOR}/"
"""Kinds for which NVIDIA's runtime makes the specification itself: no file has them."""
MADE_BY_DRA: Final = f"k8s.{DRA_DRIVER}/"
"""Kinds of NVIDIA's DRA driver, under which a device is a claim's and not named by a UUID. The
kubelet says which device that is; its file exists only as long as the claim is in use."""
KINDS: Final = (f"{VENDOR}/gpu", f"k8s.device-plugin.{VENDOR}/gpu")
"""Kinds (vendor/class) under which CDI files name cards: the files of nvidia-ctk, and those of
NVIDIA's device plugin, which nodes of the GPU Operator have."""
WRITE_ANEW: Final = (
    "run `nvidia-ctk cdi generate` on the node again, with the same --output as before, or, if "
    "NVIDIA's device plugin wrote the file, delete the plugin's pod, so that the next one writes it"
)
"""What to do about CDI files that are older than the node's cards, as a clause for a message."""
NEW_CLAIM: Final = (
    "delete the pod that has the claim, which is the shadow pod of a share pod's card, so that a "
    "new pod gets a new claim"
)
"""What to do about the CDI file of a claim that is older than the node's numbers, as a clause for a
message."""
NO_NAMES: Final[Mapping[str, str]] = {}
"""Names of no CDI devices."""
_CARDS_NODE: Final = re.compile(r"nvidia([0-9]+)")


@dataclass(frozen=True)
class Device:
    """A device in a CDI file. `kind`: vendor and class. `minors`: numbers in the names of the
    cards' device nodes that it gives."""

    kind: str
    name: str
    minors: frozenset[int]


def kind_in_use(access: CardAccess) -> str:
    """The kind (vendor/class) by which containers get their cards: the configured one, or else the
    first of KINDS under which files name cards."""
    if access.cdi_kind:
        return access.cdi_kind
    named = kinds_of_cards(access)
    return next((kind for kind in KINDS if kind in named), KINDS[0])


def kinds_of_cards(access: CardAccess) -> frozenset[str]:
    """The kinds under which files of `cdi_dirs` name cards or MIG devices by UUID."""
    return frozenset(one.kind for one in _devices(access) if one.name.startswith(mig.UUIDS))


def named_cards(access: CardAccess) -> frozenset[str]:
    """The UUIDs of cards and MIG devices that files of `cdi_dirs` name, of the kind in use."""
    return frozenset(_cards(access))


def is_by_claims(access: CardAccess) -> bool:
    """Whether containers get their cards by the CDI devices of the claims that NVIDIA's DRA driver
    has given these cards to."""
    return access.cdi_kind.startswith(MADE_BY_DRA)


def minors_of_nodes(
    access: CardAccess, uuids: Collection[str], claimed: Mapping[str, str] = NO_NAMES
) -> dict[str, frozenset[int]]:
    """The numbers in the names of the device nodes that the files give for these cards, by UUID. A
    card for which they name no such node is left out. `claimed`: names of the cards' CDI devices,
    with their kind, where `is_by_claims`."""
    cards = _of_claims(access, claimed) if is_by_claims(access) else _cards(access)
    found = {uuid: cards[uuid].minors for uuid in uuids if uuid in cards}
    return {uuid: minors for uuid, minors in found.items() if minors}


def check_minors(
    named: Mapping[str, frozenset[int]], now: Mapping[str, int], remedy: str = WRITE_ANEW
) -> None:
    """Raise NotYet if the files name the device node of another card. `named`: what they name (see
    `minors_of_nodes`). `now`: minor numbers of the cards' device nodes. `remedy`: what to do, as a
    clause."""
    for uuid, minors in sorted(named.items()):
        if minors != {now[uuid]}:
            names = ", ".join(f"nvidia{minor}" for minor in sorted(minors))
            raise NotYet(
                f"the node's CDI files give {names} for card {uuid}, whose device node is "
                f"nvidia{now[uuid]} now: they were written before the driver numbered its cards "
                f"anew; {remedy}"
            )


def kind_of(access: CardAccess, extra: str) -> str:
    """The kind (vendor/class) of an extra besides cards, such as gds: its vendor is nvidia-ctk's,
    unless files have the extra under the cards' vendor."""
    own = f"{kind_in_use(access).partition('/')[0]}/{extra}"
    return own if any(one.kind == own for one in _devices(access)) else f"{VENDOR}/{extra}"


def kind_problem(access: CardAccess) -> str:
    """A sentence that says why no container can get any card by CDI; empty if one can."""
    if access.cdi_kind.startswith((MADE_BY_RUNTIME, MADE_BY_DRA)) or named_cards(access):
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


def check_named(
    access: CardAccess, uuids: Collection[str], claimed: Mapping[str, str] = NO_NAMES
) -> None:
    """Raise NotYet if no file names one of these cards: the runtime would not create the
    container. `claimed`: as for `minors_of_nodes`."""
    if not uuids or access.cdi_kind.startswith(MADE_BY_RUNTIME):
        return
    if is_by_claims(access):
        _check_claimed(access, uuids, claimed)
        return
    if problem := kind_problem(access):
        raise NotYet(problem)
    if missing := sorted(set(uuids) - named_cards(access)):
        folders = ", ".join(map(str, access.cdi_dirs))
        raise NotYet(
            f"its card {missing[0]} is in no CDI file of the node (in {folders}, of the kind "
            f"{kind_in_use(access)}), though others are: the files are older than the card or MIG "
            f"device; {WRITE_ANEW}"
        )


def _check_claimed(access: CardAccess, uuids: Collection[str], claimed: Mapping[str, str]) -> None:
    if missing := sorted(set(uuids) - _of_claims(access, claimed).keys()):
        folders = ", ".join(map(str, access.cdi_dirs))
        name = claimed.get(missing[0], f"of the kind {access.cdi_kind}")
        raise NotYet(
            f"no CDI file of the node (in {folders}: cardAccess.cdiDirs) has the device {name}, by "
            f"which NVIDIA's DRA driver gives card {missing[0]} to a claim"
        )


def _of_claims(access: CardAccess, claimed: Mapping[str, str]) -> dict[str, Device]:
    """The CDI devices with these names, by UUID of their card."""
    named = {f"{one.kind}={one.name}": one for one in _devices(access)}
    return {uuid: named[name] for uuid, name in claimed.items() if name in named}


def _cards(access: CardAccess) -> dict[str, Device]:
    """The cards and MIG devices of the kind in use, by UUID. A device in a later folder has
    precedence, as for the container runtime."""
    wanted = kind_in_use(access)
    return {
        one.name: one
        for one in _devices(access)
        if one.kind == wanted and one.name.startswith(mig.UUIDS)
    }


def _devices(access: CardAccess) -> Iterator[Device]:
    """Each device in the files of `cdi_dirs`."""
    for path in _files(access):
        try:
            now = path.stat()
        except OSError:
            continue  # it was there a moment ago
        yield from _devices_in(path, now.st_ino, now.st_mtime_ns, now.st_size)


def _files(access: CardAccess) -> Iterator[Path]:
    for folder in access.cdi_dirs:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in (".json", ".yaml"):
                yield path


@lru_cache(maxsize=64)
def _devices_in(path: Path, inode: int, written: int, size: int) -> tuple[Device, ...]:
    """Each device in one file; none if it cannot be read. Cached for each state of the file, since
    parsing takes a tenth of a second."""
    try:
        spec = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        log.warning("a CDI file cannot be read", path=path, error=error)
        return ()
    if not isinstance(spec, dict):
        return ()
    kind = str(spec.get("kind"))
    devices = (one for one in _list(spec, "devices") if isinstance(one, dict))
    return tuple(Device(kind, str(one.get("name")), frozenset(_minors(one))) for one in devices)


def _minors(device: Mapping[str, Any]) -> Iterator[int]:
    """The numbers in the names of the cards' device nodes that a device gives. Of a node that has
    another path on the host, that one counts."""
    edits = device.get("containerEdits")
    for node in _list(edits, "deviceNodes") if isinstance(edits, dict) else ():
        path = (node.get("hostPath") or node.get("path")) if isinstance(node, dict) else ""
        if found := _CARDS_NODE.fullmatch(PurePosixPath(str(path)).name):
            yield int(found[1])


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    found = body.get(key)
    return found if isinstance(found, list) else []
