"""Finds out which cards NVIDIA's DRA driver has allocated.

The kubelet names devices of the driver's pools, such as gpu-0, and the driver's ResourceSlices say
which card each device is. The slices are listed for each new claim, since a watch may be late and
have an earlier numbering. From when the kubelet first names such a device, they are also watched,
for the cards' health. On other nodes, the API server is not asked for slices.

A claim keeps the card that its device was when the agent first saw the claim. The driver names
devices by numbers, which may change when cards are taken out or the driver is loaded anew, and it
leaves out failed cards, but running containers keep theirs. A reboot ends that: the driver then
gives each claim the card that its device's name means by then. After a reboot, the kubelet names
the earlier claims as soon as it starts, but deletes the earlier slices only once the API server
answers. So if slices change soon after the boot, the cards of claims that the agent has seen
already are looked up again.

A claim that has a card for administration only, such as a monitor's, does not hold it.

A MIG device that an administrator has made is a card of its own, which pods hold by a resource of
its size, as those of NVIDIA's device plugin.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mizar_core.names import DRA_DRIVER, PHYSICAL_RESOURCE
from mizar_core.slice_devices import is_failing, newest, resource_of, text
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import RESOURCE_SLICE, Object
from mizar_kube.logs import get_logger
from mizar_nodeagent.files import write_atomically
from mizar_nodeagent.kubelet.admin_access import AdminAccess
from mizar_nodeagent.kubelet.claims import Claims, DraDevice

log = get_logger(__name__)

FILE = "dra-checkpoint.json"
"""Name of the file in the agent's state folder that keeps the cards of the present claims."""
LIST_WITHIN_S = 2.0
"""The most seconds that an answer of the kubelet waits for a list of ResourceSlices."""
LIST_AGAIN_S = 1.0
"""Seconds until ResourceSlices are listed again for a device that none of them names, unless the
watch shows a change before. The time doubles with each list."""
LIST_MOST_S = 60.0
"""The most seconds until they are listed again."""

SETTLES_S = 900.0
"""Seconds since the node's boot for which the agent may still have read slices from before it: if
slices change in this time, cards are looked up again."""


@dataclass(frozen=True)
class SliceDevice:
    """A device in a ResourceSlice. `uuid`: of the card or MIG device; empty for anything else.
    `usable`: no taint keeps pods from it. `resource`: by which pods request it."""

    uuid: str
    usable: bool
    resource: str = PHYSICAL_RESOURCE


@dataclass(frozen=True)
class ResourceSlice:
    """The part of a ResourceSlice that the agent needs. `generation`: that of the pool; slices of
    an earlier one are outdated. `devices`: by name."""

    pool: str
    generation: int
    devices: Mapping[str, SliceDevice]


class AllocatedDraCards:
    """The cards of one node that NVIDIA's DRA driver has allocated to claims. `folder`: the agent's
    state folder. `boot`: the boot's ID. `watch`: a copy of the driver's slices; by default an
    informer's. `clock` returns monotonic seconds, `uptime` those since the boot. `changed`: called
    when slices have changed; to be set."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        folder: Path,
        boot: str,
        watch: Informer[ResourceSlice] | None = None,
        clock: Callable[[], float] = time.monotonic,
        uptime: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._uptime = uptime or seconds_since_boot
        self._selector = f"spec.nodeName={node},spec.driver={DRA_DRIVER}"
        watched = Watched(RESOURCE_SLICE, field_selector=self._selector)
        self._watch = watch or Informer(client, watched, trim)
        self._watch.on_change(lambda old, new: self._slices_changed())
        self._clock = clock
        self._admins = AdminAccess(client, LIST_WITHIN_S)
        self._wanted = asyncio.Event()
        self._path = folder / FILE
        self._boot = boot
        self._resources: dict[str, str] = {}
        """The resource of each card, by UUID."""
        self._kept = self._load()
        self._new: dict[DraDevice, str | None] = {}
        """The cards, by the last list, of the devices that are not in `_kept` or are in
        `_doubted`."""
        self._doubted: set[DraDevice] = set()
        """Devices in `_kept` whose cards may come from slices from before the boot."""
        self._due: dict[DraDevice, float] = {}
        """When slices are to be listed again for each of the same devices."""
        self._pause = LIST_AGAIN_S
        self._changes = 0
        """How often slices have changed."""
        self._cdi = _cdi_names(self._kept)
        self.changed: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Watch the driver's ResourceSlices once they are needed, for ever."""
        await self._wanted.wait()
        await self._watch.run()

    async def cards_of(self, devices: Collection[DraDevice]) -> dict[DraDevice, str | None]:
        """The UUID of each device's card; empty if it is no card or its claim has it for
        administration only, None if no slice has named it yet or the API server does not answer
        for slices or for its claim."""
        if devices:
            self._wanted.set()
        self._doubted.intersection_update(devices)
        new = [one for one in devices if one not in self._kept or one in self._doubted]
        self._due = {one: self._due.get(one, float("-inf")) for one in new}
        if not new:
            self._pause = LIST_AGAIN_S
        self._new = {one: self._new.get(one) for one in new}
        due = [one for one in new if self._new[one] is None and self._due[one] <= self._clock()]
        if due:
            await self._look_up(due)
        known = self._new | self._kept
        return {one: known.get(one) for one in devices}

    async def _look_up(self, devices: Iterable[DraDevice]) -> None:
        """Ask the API server which card each of the devices is, and note it."""
        changes = self._changes
        self._due |= dict.fromkeys(devices, self._clock() + self._pause)
        self._pause = min(2 * self._pause, LIST_MOST_S)
        try:
            named = await self._list()
        except KubeError as error:
            log.info("the cards of claims are not known yet", error=error)
            return
        uuids = {one: named[one.place].uuid for one in devices if one.place in named}
        administered = await self._admins.of([one for one, uuid in uuids.items() if uuid])
        for one, uuid in uuids.items():
            # If slices have changed meanwhile, the list may have those from before the boot.
            if changes != self._changes and one in self._doubted:
                continue
            if not uuid or one in administered:
                self._note_card(one, "" if administered.get(one) else uuid)

    async def _list(self) -> dict[tuple[str, str], SliceDevice]:
        """List slices, and return the devices as `_devices`. Raises KubeError."""
        found = await self._client.list(
            RESOURCE_SLICE, field_selector=self._selector, timeout=LIST_WITHIN_S
        )
        devices = _devices(map(trim, found.items))
        self._resources |= {one.uuid: one.resource for one in devices.values()}
        return devices

    def _note_card(self, device: DraDevice, uuid: str) -> None:
        self._new[device] = uuid
        self._doubted.discard(device)
        if self._kept.get(device, uuid) != uuid:
            log.warning("a claim has another card than before the boot", device=str(device))
            del self._kept[device]

    @property
    def usable(self) -> Mapping[str, frozenset[str]]:
        """The UUIDs of the cards that the driver offers without a taint, by their resource; until
        slices have been listed, those of the present claims."""
        if not self._watch.synced.is_set():
            return _by_resource((self.resource(one), one) for one in self._kept.values() if one)
        devices = _devices(self._watch.values()).values()
        return _by_resource((one.resource, one.uuid) for one in devices if one.uuid and one.usable)

    def resource(self, uuid: str) -> str:
        """The resource by which pods hold the card that has this UUID."""
        return self._resources.get(uuid, PHYSICAL_RESOURCE)

    def cdi_names(self, uuid: str) -> tuple[str, ...]:
        """The names, with their kinds, of the CDI devices by which the driver gives this card to
        the containers of a claim; none if no claim has the card."""
        return self._cdi.get(uuid, ())

    def problem(self) -> str | None:
        """Why ResourceSlices cannot be relied on now; None if they can, or if none are needed."""
        return self._watch.problem() if self._wanted.is_set() else None

    def keep(self, claims: Claims) -> None:
        """Keep the cards of these claims, which are all claims of the node, also for the next
        agent. If a new claim has a card under another name than an older claim, the driver has
        numbered its cards anew and given the card away: the older claim has no card any more."""
        found = {one: uuid for one, uuid in claims.dra.items() if uuid is not None}
        self._cdi = _cdi_names(found)
        if found == self._kept:
            return
        renamed = {uuid: one.place for one, uuid in found.items() if uuid and one not in self._kept}
        self._kept = {
            one: uuid if renamed.get(uuid, one.place) == one.place else one.id(None)
            for one, uuid in found.items()
        }
        self._save()

    def _slices_changed(self) -> None:
        self._changes += 1
        if self._uptime() < SETTLES_S:
            self._doubted |= self._kept.keys()
            self._new = {one: uuid for one, uuid in self._new.items() if one not in self._kept}
        self._due.clear()
        self._pause = LIST_AGAIN_S
        self.changed()

    def _save(self) -> None:
        """Write the file. It is not synced to the disk, since it matters only until the next
        boot."""
        cards = [
            {"uuid": uuid, "resource": self.resource(uuid), "device": asdict(one)}
            for one, uuid in sorted(self._kept.items())
        ]
        content = json.dumps({"boot": self._boot, "cards": cards}).encode()
        try:
            write_atomically(self._path, content, durable=False)
        except OSError as error:
            log.warning("the cards of claims cannot be saved", path=self._path, error=error)

    def _load(self) -> dict[DraDevice, str]:
        """The cards of claims as an earlier agent saved them; empty if that was before the last
        boot."""
        try:
            body = json.loads(self._path.read_bytes())
            if not self._boot or body["boot"] != self._boot:
                return {}
            found = {_device_of(one["device"]): str(one["uuid"]) for one in body["cards"]}
            # Earlier versions saved whole cards only.
            resources = {str(one["uuid"]): one.get("resource") for one in body["cards"]}
            self._resources |= {uuid: str(one) for uuid, one in resources.items() if one}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("the saved cards of claims cannot be read", path=self._path, error=error)
            return {}
        return found


def seconds_since_boot() -> float:
    """Seconds since the node's boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _devices(slices: Iterable[ResourceSlice]) -> dict[tuple[str, str], SliceDevice]:
    """The devices by their pools and names, without those of outdated slices."""
    return {
        (one.pool, name): device for one in newest(slices) for name, device in one.devices.items()
    }


def _cdi_names(cards: Mapping[DraDevice, str]) -> dict[str, tuple[str, ...]]:
    """The names of CDI devices by UUID of their card. If several claims have a card, they are those
    of the first claim."""
    return {uuid: one.cdi for one, uuid in sorted(cards.items(), reverse=True) if uuid}


def _by_resource(cards: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """The UUIDs of the cards, given as (resource, UUID), by their resource."""
    found: dict[str, set[str]] = {}
    for resource, uuid in cards:
        found.setdefault(resource, set()).add(uuid)
    return {resource: frozenset(uuids) for resource, uuids in found.items()}


def _device_of(body: dict[str, Any]) -> DraDevice:
    """A device from the file. Raises TypeError if it has other fields."""
    return DraDevice(**body | {"cdi": tuple(body.get("cdi", ()))})


def trim(obj: Object) -> ResourceSlice:
    """The part of a ResourceSlice that the agent needs."""
    spec = obj.get("spec") or {}
    pool = spec.get("pool") or {}
    return ResourceSlice(
        str(pool.get("name", "")),
        int(pool.get("generation", 0)),
        {
            str(one["name"]): device
            for one in spec.get("devices") or ()
            if (device := _device(one)) is not None
        },
    )


def _device(body: Mapping[str, Any]) -> SliceDevice | None:
    """A device of a slice; None if it is a whole card without a UUID."""
    if (resource := resource_of(body)) is None:
        return SliceDevice("", not is_failing(body))
    uuid = text(body, "uuid")
    return None if uuid is None else SliceDevice(uuid, not is_failing(body), resource)
