"""Slots: one folder for each Allocate, with the files that the container mounts.

A slot lives as long as the kubelet may start a container with it: the kubelet restarts a container
with the paths that Allocate returned once, from its cache.

Every container has its own copy of the shim, although it is read-only: root in one container can
hold a lease on a file that two containers share, and then each program that the other one starts
waits until the kernel breaks the lease.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol

from mizar_kube.logs import get_logger
from mizar_nodeagent.container.limits import ContainerLimits
from mizar_nodeagent.container.shim_install import PRELOAD, Shim
from mizar_nodeagent.container.spare_slots import (
    LIBRARY,
    LIMITS,
    PRELOAD_LIST,
    RECORD,
    USAGE,
    SpareSlots,
)
from mizar_nodeagent.files import read_promptly, rewrite_promptly, write_atomically
from mizar_nodeagent.regions import limits_file, usage_file
from mizar_nodeagent.regions.limits_file import BY_THE_SHIM, ContainerIdentity, ShimTimes

log = get_logger(__name__)

VERSION = 1
"""Version of the format of slot.json."""
_NAME_MAX = 63


@dataclass(frozen=True)
class Owner:
    """The container that a slot belongs to, once the kubelet has named it. `pod_uid`: empty if not
    known."""

    namespace: str
    pod: str
    pod_uid: str
    container: str

    @property
    def names(self) -> dict[str, str]:
        """The container as the keys and values of a log line."""
        return {"namespace": self.namespace, "pod": self.pod, "container": self.container}

    def of_pod(self, other: Owner) -> bool:
        """Whether both are containers of one pod, as far as its UID is known."""
        uids = {self.pod_uid, other.pod_uid} - {""}
        return (self.namespace, self.pod) == (other.namespace, other.pod) and len(uids) < 2


Notify = Callable[[Owner, str, str], None]
"""Emits an event on a container's pod: called with the container, the event's reason and
message."""


class NotifyGranted(Protocol):
    """Emits an event on a container's pod about the devices that it was given."""

    def __call__(
        self, owner: Owner, reason: str, message: str, warning: bool = False, /
    ) -> None: ...


@dataclass(frozen=True)
class Slot:
    """The slot of one Allocate. `ids`: IDs of the devices; empty if slot.json was lost. `created`:
    seconds since the epoch. `owner`: None before the container's first start. `shim`: the container
    has the shim, which cannot be added later. `minors`: minor numbers of the device nodes that the
    container was given, by the card's UUID. `by_nri`: the container gets its cards by NRI only.
    `by_cdi`: the answer to Allocate names CDI devices; False also if an older agent gave it.
    `boot`: ID of the node's boot in which the slot was created; empty if unknown. `opted_out`: the
    container has the shim mounted, but nothing that loads it; `shim` is False then."""

    name: str
    folder: Path
    resource: str
    ids: frozenset[str]
    created: float
    owner: Owner | None = None
    shim: bool = True
    minors: Mapping[str, int] = field(default_factory=dict, compare=False)
    by_nri: bool = False
    by_cdi: bool = False
    boot: str = ""
    opted_out: bool = False

    @property
    def names(self) -> dict[str, str]:
        """The slot and its container as the keys and values of a log line."""
        return {"slot": self.name, **(self.owner.names if self.owner else {})}

    @cached_property
    def limits(self) -> Path:
        """Path of the file with the container's limits, which the agent writes."""
        return self.folder / LIMITS

    @cached_property
    def usage(self) -> Path:
        """Path of the file with the container's usage, which its shim writes."""
        return self.folder / USAGE

    @property
    def library(self) -> Path:
        """Path of the container's copy of the shim."""
        return self.folder / LIBRARY

    @property
    def preload(self) -> Path:
        """Path of the container's ld.so.preload, which loads the shim."""
        return self.folder / PRELOAD_LIST


class Slots:
    """All slots of the node, as folders below `root` and in memory. `boot`: ID of this boot.
    `times`: how long the shims of all containers wait for the agent and for lent memory."""

    def __init__(
        self, root: Path, shim: Shim, boot: str = "", times: ShimTimes = BY_THE_SHIM
    ) -> None:
        self.root = root
        self.boot = boot
        self.shim = shim
        self.times = times
        self.spares = SpareSlots(shim)
        self._slots: dict[str, Slot] = {}
        self._changes, self._changed = count(1), 0
        self._by_age: tuple[int, tuple[Slot, ...]] = 0, ()
        self._incomplete: set[str] = set()
        self._loaded: frozenset[str] = frozenset()

    def write_limits(
        self, slot: Slot, identity: ContainerIdentity, limits: ContainerLimits
    ) -> None:
        """Write a container's limits to its slot. Raises as `limits_file.write` does."""
        limits_file.write(
            slot.limits, identity, limits.cards, limits.physical, limits.contexts, self.times
        )

    def load(self, now: float) -> None:
        """Read the slots that an earlier run left. `now`: creation time of those whose slot.json
        was lost, in seconds since the epoch."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir():
                self._slots[folder.name] = _read(folder, now)
        self._loaded = frozenset(self._slots)
        self._changed = next(self._changes)

    def is_certain(self, slot: Slot, owner: Owner) -> bool:
        """Whether the slot certainly belongs to the owner's pod: the pod's UID is known to be the
        same, or this agent made the slot. A slot without an owner that an earlier agent made may be
        that of a container which never started; and a slot whose owner has no UID may be that of
        another pod of the same name."""
        if slot.owner is None:
            return slot.name not in self._loaded
        return bool(owner.pod_uid) and slot.owner.pod_uid == owner.pod_uid

    def all(self) -> list[Slot]:
        """Every slot, oldest first."""
        return list(self.by_age())

    def by_age(self) -> tuple[Slot, ...]:
        """Every slot, oldest first: the same tuple until something changes. May be called from any
        thread."""
        changed, found = self._changed, self._by_age
        if found[0] != changed:
            slots = sorted(self._slots.values(), key=_age)
            # Outdated at once if something has changed meanwhile: the next call sees that.
            self._by_age = found = changed, tuple(slots)
        return found[1]

    def of(self, resource: str, ids: Iterable[str]) -> list[Slot]:
        """The slots of exactly these devices, oldest first."""
        wanted = frozenset(ids)
        found = [one for one in self._slots.values() if one.ids == wanted]
        return sorted((one for one in found if one.resource == resource), key=_age)

    def create(
        self,
        resource: str,
        ids: Iterable[str],
        now: float,
        name: str = "",
        shim: bool = True,
        minors: Mapping[str, int] | None = None,
        by_nri: bool = False,
        by_cdi: bool = False,
    ) -> Slot:
        """Create a slot with an empty limits file. If its files cannot be written now, `complete`
        writes them later.

        `now`: seconds since the epoch. `name`: that of a slot that was lost from the disk while the
        kubelet still mounts it; empty for a new name. `minors`: minor numbers of the device nodes
        in the answer to Allocate, by the card's UUID. `by_nri`: that answer gives no card.
        `by_cdi`: it names CDI devices.
        """
        ids = frozenset(ids)
        name = name or _new_name(ids)
        slot = Slot(
            name,
            self.root / name,
            resource,
            ids,
            now,
            shim=shim,
            minors=dict(minors or {}),
            by_nri=by_nri,
            by_cdi=by_cdi,
            boot=self.boot,
        )
        self._incomplete.add(name)
        try:
            self.complete(slot)
        except OSError as error:
            log.warning("a slot's files cannot be created yet", error=error, **slot.names)
        self._put(slot)
        return slot

    def complete(self, slot: Slot) -> None:
        """Create all missing files of the slot (an earlier agent may have been stopped while it
        created them), and replace a shim that a power cut has truncated. Raises OSError."""
        if slot.name not in self._incomplete:
            self._make_missing(slot)
            return
        try:
            self._make(slot)
        except OSError:
            shutil.rmtree(slot.folder, ignore_errors=True)
            raise
        self._incomplete.discard(slot.name)

    def _make(self, slot: Slot) -> None:
        folder = self.spares.take()
        try:
            # Not durable, since the kubelet waits; its record restores slot.json after a power cut.
            (folder / RECORD).write_bytes(_to_json(slot))
            folder.rename(slot.folder)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _make_missing(self, slot: Slot) -> None:
        """Create the files that are missing. For a mounted file that is missing, the runtime would
        create a folder of that name, and the container would start without limits. So it would with
        a shim that is cut off: the dynamic loader prints one line, and the program runs without
        it."""
        makers = {
            slot.limits: limits_file.create_empty,
            slot.usage: usage_file.create,
            slot.library: self.shim.copy_library,
            slot.preload: self.shim.copy_preload,
        }
        for path, make in makers.items():
            if path.is_dir():
                path.rmdir()
            if not path.exists() or (path == slot.library and self.shim.is_cut_off(path)):
                log.warning("a file of a slot is created again", path=path, **slot.names)
                make(path)
        wanted = _preload(slot.opted_out)
        if read_promptly(slot.preload) != wanted:
            rewrite_promptly(slot.preload, wanted)  # a container may have it mounted

    def describe(self, slot: Slot, resource: str, ids: Iterable[str]) -> Slot:
        """Write a slot.json that was lost, or differs from the kubelet's record, with these
        devices. Returns the changed slot. Raises OSError."""
        return self._keep(replace(slot, resource=resource, ids=frozenset(ids)))

    def assign(self, slot: Slot, owner: Owner) -> Slot:
        """Record the slot's owner. Returns the changed slot. Raises OSError."""
        if slot.owner == owner:
            return slot
        return self._keep(replace(slot, owner=owner), durable=False)

    def opt_out(self, slot: Slot, out: bool) -> Slot:
        """Have the slot's container start without the shim (`out`), or with it again; a slot that
        never had it stays as it is. Returns the changed slot. Raises OSError."""
        if slot.opted_out == out or not (slot.shim or slot.opted_out):
            return slot
        # Rewrite it in place: a container that restarts has this file mounted.
        rewrite_promptly(slot.preload, _preload(out))
        return self._keep(replace(slot, opted_out=out, shim=not out))

    def remove(self, slot: Slot) -> None:
        """Remove the slot's folder: no container will use it again."""
        self._slots.pop(slot.name, None)
        self._changed = next(self._changes)
        self._incomplete.discard(slot.name)
        shutil.rmtree(slot.folder, ignore_errors=True)

    def _keep(self, slot: Slot, durable: bool = True) -> Slot:
        write_atomically(slot.folder / RECORD, _to_json(slot), durable=durable)
        self._put(slot)
        return slot

    def _put(self, slot: Slot) -> None:
        self._slots[slot.name] = slot
        self._changed = next(self._changes)


_age: Final = attrgetter("created", "name")


def _preload(opted_out: bool) -> bytes:
    """The content of a slot's ld.so.preload."""
    return b"" if opted_out else PRELOAD


def _new_name(ids: frozenset[str]) -> str:
    """A new name for a slot, which begins with the name of one of its devices, for people."""
    first = min(ids).rpartition("/")[2]
    token = secrets.token_hex(6)
    return f"{first[: _NAME_MAX - len(token) - 1]}-{token}"


def _to_json(slot: Slot) -> bytes:
    body = {
        "version": VERSION,
        "resource": slot.resource,
        "ids": sorted(slot.ids),
        "created": slot.created,
        "shim": slot.shim,
        "minors": dict(slot.minors),
        "byNRI": slot.by_nri,
        "byCDI": slot.by_cdi,
        "boot": slot.boot,
        "optedOut": slot.opted_out,
        "owner": None if slot.owner is None else vars(slot.owner),
    }
    return json.dumps(body, indent=1).encode()


def _read(folder: Path, now: float) -> Slot:
    try:
        return _parsed(folder, json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        log.warning("a slot does not say what it is for", slot=folder.name, error=error)
        return Slot(folder.name, folder, "", frozenset(), now)


def _parsed(folder: Path, body: dict[str, Any]) -> Slot:
    owner = body["owner"]
    return Slot(
        name=folder.name,
        folder=folder,
        resource=str(body["resource"]),
        ids=frozenset(map(str, body["ids"])),
        created=float(body["created"]),
        owner=None if owner is None else Owner(**owner),
        shim=bool(body.get("shim", True)),
        minors={str(uuid): int(minor) for uuid, minor in dict(body.get("minors", {})).items()},
        by_nri=bool(body.get("byNRI", False)),
        by_cdi=bool(body.get("byCDI", False)),
        boot=str(body.get("boot", "")),
        opted_out=bool(body.get("optedOut", False)),
    )


def slot_of_path(root: Path, path: str) -> str | None:
    """The slot's name in the host path of one of its files; None for any other path."""
    folder, file = os.path.split(path)
    parent, name = os.path.split(folder)
    return name if parent == str(root) and file == LIMITS else None
