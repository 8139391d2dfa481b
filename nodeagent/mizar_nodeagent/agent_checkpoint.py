"""The agent's checkpoint: its carvings, the cards' faults and when cards were taken back from
borrowers, in one file that is complete or not used.

The carvings can be rebuilt from the API server, podresources and NVML. The checkpoint lets a
restarted agent offer the same devices before any of these answers, and keeps what was promised to
others (a completed drain). Faults are reported once, by an event of NVML; and a dead link of a card
can only be recognised by knowing that it was up. After a reboot of the node, carvings wait for the
kubelet to confirm them. Faults and health are forgotten then, since the cards were reset, and so
are the times at which cards were taken back, since the monotonic clock has begun anew.

A file of an earlier version is read; one of a later version is set aside, like a damaged one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mizar_kube.logs import get_logger
from mizar_nodeagent.card_health import KnownHealth
from mizar_nodeagent.files import overwrite, write_atomically
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.plan import Carvings
from mizar_nodeagent.pods import Key
from mizar_nodeagent.reserved_room import ReservedRoom
from mizar_nodeagent.spot.loan import REST_MAX_S

log = get_logger(__name__)

VERSION = 4
"""The version that is written; the older ones below can be read."""
_VERSION_3 = 3
"""An earlier version, without the cards' health."""
_VERSION_2 = 2
"""An earlier version, without the cards' health and the times at which cards were taken back."""
_VERSION_1 = 1
"""The first version: carvings alone, without the boot's ID."""

Faults = Mapping[str, int]
"""The last XID of each card that is faulty, by UUID."""

Health = Mapping[str, KnownHealth]
"""The part of each card's health that the checkpoint keeps, by UUID."""

Promise = tuple[Key, str]
"""A shadow pod, and its pod's UID, whose drain is complete: the operator may delete it."""

Places = frozenset[tuple[tuple[Key, str], tuple[str, ...]]]
"""Shadow pods, with their pods' UIDs, and the UUIDs of their cards."""

TakenBack = Mapping[str, tuple[float, ...]]
"""When owners recently took each card back from its borrowers (monotonic seconds), by UUID."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint. After a reboot of the node, none of the carvings is confirmed,
    and the rest is empty."""

    carvings: Carvings = field(default_factory=dict)
    faults: Faults = field(default_factory=dict)
    taken_back: TakenBack = field(default_factory=dict)
    health: Health = field(default_factory=dict)


def to_bytes(known: Checkpoint, boot: str) -> bytes:
    """The file's content: the same input always gives the same bytes. `boot`: the boot's ID."""
    saved = {
        "boot": boot,
        "carvings": [known.carvings[key].to_dict() for key in sorted(known.carvings)],
        "faults": dict(known.faults),
        "health": {uuid: asdict(one) for uuid, one in known.health.items()},
        "takenBack": {uuid: list(times) for uuid, times in known.taken_back.items()},
    }
    body = {"version": VERSION, "checksum": _checksum(saved), **saved}
    return json.dumps(body, indent=1, sort_keys=True).encode()


def load(path: Path, now: float, boot: str) -> Checkpoint:
    """The checkpoint of the last agent. Empty if there is no file or it is damaged; a damaged file
    is set aside. `now`: monotonic seconds. `boot`: the ID of this boot."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        log.error("the checkpoint cannot be read: the state is rebuilt without it", error=error)
        return Checkpoint()
    try:
        return _parsed(json.loads(raw), now, boot)
    except Exception as error:  # any error that damaged content may cause
        _set_aside(path, error)
        return Checkpoint()


def _set_aside(path: Path, error: Exception) -> None:
    """Rename a damaged file, replacing an earlier one, so that people can examine it."""
    aside = path.with_suffix(".damaged")
    try:
        path.replace(aside)
    except OSError as why:
        log.error("a damaged checkpoint cannot be set aside", path=path, copy=aside, error=why)
    log.error(
        "the checkpoint is damaged: it is set aside, and the state is rebuilt",
        path=path,
        copy=aside,
        error=repr(error),
    )


def _parsed(body: dict[str, Any], now: float, boot: str) -> Checkpoint:
    names = ("boot", "carvings", "faults", "health", "takenBack")
    saved: Any = {name: body[name] for name in names if name in body}
    if body["version"] not in (VERSION, _VERSION_3, _VERSION_2, _VERSION_1):
        raise ValueError(f"version {body['version']} instead of {VERSION}")
    if body["checksum"] != _checksum(body["carvings"] if body["version"] == _VERSION_1 else saved):
        raise ValueError("the checksum is wrong")
    same_boot = bool(boot) and saved.get("boot") == boot
    carvings = [Carving.from_dict(one, now) for one in saved["carvings"]]
    if not same_boot:
        carvings = [replace(one, confirmed=False) for one in carvings]
    found = {one.key: one for one in carvings}
    if not same_boot:
        return Checkpoint(found)
    faults = {str(uuid): int(xid) for uuid, xid in saved["faults"].items()}
    taken_back = _taken_back(saved.get("takenBack", {}), now)
    return Checkpoint(found, faults, taken_back, _health(saved.get("health", {})))


def _health(saved: dict[str, dict[str, Any]]) -> Health:
    return {
        str(uuid): KnownHealth(int(one["links"]), tuple(map(str, one["signs"])))
        for uuid, one in saved.items()
    }


def _taken_back(saved: dict[str, list[float]], now: float) -> TakenBack:
    """Cap the times, so that none is later than the end of the longest rest from now."""
    return {
        str(uuid): tuple(sorted(min(float(at), now + REST_MAX_S) for at in times))
        for uuid, times in saved.items()
    }


def _checksum(saved: Any) -> str:
    return hashlib.sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest()


def _promises(carvings: Carvings) -> frozenset[Promise]:
    """The completed drains."""
    drained = (one for one in carvings.values() if one.stage is DrainStage.DRAINED)
    return frozenset((one.key, one.pod_uid) for one in drained)


def _places(carvings: Carvings) -> Places:
    """The shadow pods and their cards."""
    return frozenset(
        ((one.key, one.pod_uid), tuple(card.uuid for card in one.cards))
        for one in carvings.values()
    )


class CheckpointFile:
    """Writes the newest checkpoint in the background whenever it has changed. `loaded`: the content
    that the file has already."""

    def __init__(self, path: Path, boot: str, loaded: Checkpoint | None = None) -> None:
        self._path = path
        self._room = ReservedRoom(path)
        self._boot = boot
        self._known: Checkpoint | None = None
        self._wanted = self._saved = b""
        self._promises: frozenset[Promise] = frozenset()
        self._kept = _promises(loaded.carvings) if loaded else frozenset()
        self._there: Places | None = _places(loaded.carvings) if loaded else frozenset()
        """What the file names; None if it was removed."""
        self._told: set[str] = set()
        """What was logged since the disk had room for the last time."""
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()

    def reserve(self) -> None:
        """Reserve room for times at which the disk is full."""
        self._room.reserve(0)

    async def keep(self, known: Checkpoint) -> frozenset[Key]:
        """Request a write. Returns at once, unless a drain has been completed: the operator acts on
        that, so it must be on the disk before it is reported. Returns the shadow pods whose drain
        must not be reported yet, since it could not be written: the next agent would offer their
        devices."""
        if known == self._known and self._wanted == self._saved:
            return frozenset()
        self._known = known
        self._wanted = to_bytes(known, self._boot)
        self._promises = _promises(known.carvings)
        if self._promises - self._kept:
            await self.write()
        elif self._wanted != self._saved:
            self._wake.set()
        return frozenset(key for key, _ in self._promises - self._kept)

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.write()

    async def write(self) -> None:
        """Write the checkpoint now. Errors are only logged, since all of it can be found out
        anew, except completed drains: see `keep`."""
        async with self._writing:
            content, promises = self._wanted, self._promises
            places = _places(self._known.carvings) if self._known else frozenset()
            if content == self._saved:
                return
            if await asyncio.to_thread(self._write, content, places):
                self._saved, self._kept, self._there = content, promises, places
                return
            self._saved = b""  # the file may have been replaced before the error
            if self._there is None:
                self._kept = promises

    def _write(self, content: bytes, places: Places) -> bool:
        """Returns whether the file has the content."""
        try:
            write_atomically(self._path, content)
        except OSError as error:
            return self._write_without_room(content, places, error)
        self._told.clear()
        self._room.reserve(len(content))
        return True

    def _write_without_room(self, content: bytes, places: Places, why: OSError) -> bool:
        """Write it into the reserved room after an error. If that does not do, and the file names
        other shadow pods or cards than there are, rewrite it where it is, which a power cut would
        damage, or else remove it. Returns whether the file has the content."""
        if self._room.put(content):
            self._tell(log.warning, "the checkpoint is written into its reserved room", why)
            return True
        self._tell(log.error, "the checkpoint cannot be written", why)
        if self._there in (None, places):
            return False
        if self._rewrite(content):
            return True
        self._remove()
        return False

    def _rewrite(self, content: bytes) -> bool:
        """Replace the content where it is, if that needs no room: an agent that found no room to
        reserve when it started can do that. Returns whether it was replaced."""
        try:
            size = self._path.stat().st_size
            if len(content) > size:
                return False
            overwrite(self._path, content.ljust(size))
        except OSError:
            return False
        return True

    def _remove(self) -> None:
        """Remove the file, which names other shadow pods or cards than there are: the next agent
        would offer devices of these at once, and others would be missing from its first lists.
        Without the file it first asks the API server and the kubelet, and offers nothing of a
        shadow pod that is to be drained: what was promised stays true."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._tell(log.error, "an outdated checkpoint cannot be removed", error)
            return
        self._there = None

    def _tell(self, log_it: Callable[..., object], message: str, error: OSError) -> None:
        """Log it once: a completed drain is written again with each plan."""
        say = log.debug if message in self._told else log_it
        self._told.add(message)
        say(message, error=error)
