"""Answers GetPreferredAllocation and Allocate: quickly, and refusing only misuse.

An error in Allocate fails the pod for good; whether the container may start is decided later, in
PreStartContainer (prestart.py), whose errors are tried again. An agent that ends before it answers
leaves a slot: see slot_gc.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from mizar_core.device_ids import DeviceID, devices_from_value
from mizar_core.errors import DeviceIDRefused, MizarError
from mizar_core.names import container_devices_from
from mizar_core.preferred_allocation import preferred
from mizar_kube.logs import bind
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.device_nodes import Minors, minors_of
from mizar_nodeagent.container.limits import grouped, wants_shim
from mizar_nodeagent.container.share_environment import share_environment
from mizar_nodeagent.container.shim_mounts import shim_mounts
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.errors import AllocationRefused, CardsUnknown, KubeletAway
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.device_lists import refusal
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.regions.layout import CARD_MAX


class Allocator:
    """Answers the two calls. `minors`: returns the minor numbers of cards' device nodes. `poll`:
    returns the kubelet's present claims. `clock` returns monotonic seconds, `now` seconds since the
    epoch. `allocated` is called after each Allocate. `one_each`: a container that asks for several
    devices is refused."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        access: AccessChoice,
        minors: Minors,
        poll: Callable[[], Awaitable[Claims]],
        clock: Callable[[], float],
        now: Callable[[], float],
        allocated: Callable[[], None],
        one_each: bool = False,
    ) -> None:
        self._state = state
        self._slots = slots
        self._access = access
        self._minors = minors
        self._poll = poll
        self._clock = clock
        self._now = now
        self._allocated = allocated
        self._one_each = one_each

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """The IDs of the `size` devices that a container should get, of which `must` are some;
        empty if there is no good answer, since an error would fail the pod."""
        try:
            free, fixed = _parsed(available), _parsed(must)
            held = await self._held(free, fixed, size)
            return [str(one) for one in self._preferred(free, fixed, size, held)]
        except MizarError:
            return []

    async def allocate(self, resource: str, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Create a slot for the devices, and return the answer that mounts it. Raises
        AllocationRefused."""
        devices = _parsed(ids)
        if self._one_each and len(devices) > 1:
            raise AllocationRefused(
                f"the container asks for {len(devices)} of {resource}, and "
                "failRequestsGreaterThanOne of Mizar's node agent allows one: ask for one device "
                "of a profile with larger parts"
            )
        uuids = _cards(self._carvings(resource, devices), devices)
        minors: dict[str, int] = {}
        if self._access.names_device_nodes:
            minors = await self._device_nodes(uuids)
        # Look the carvings up again, since a drain may have been completed meanwhile.
        carvings = self._carvings(resource, devices)
        # All that may refuse the request comes before the slot, which nothing would use then.
        answer = self._answer(devices, uuids, minors)
        slot = self._new_slot(resource, ids, carvings, minors)
        self._state.begin_allocation(devices, self._clock())
        self._allocated()
        if slot.shim:
            add_shim(answer, slot)
        for name, value in share_environment(grouped(carvings, devices), uuids).items():
            answer.envs[name] = value
        return answer

    async def _device_nodes(self, uuids: Sequence[str]) -> dict[str, int]:
        try:
            return await minors_of(self._minors, uuids)
        except CardsUnknown as error:
            raise AllocationRefused(str(error)) from error

    def _new_slot(
        self,
        resource: str,
        ids: Sequence[str],
        carvings: Sequence[Carving],
        minors: Mapping[str, int],
    ) -> Slot:
        slot = self._slots.create(
            resource,
            ids,
            self._now(),
            shim=any(wants_shim(one.carve.isolation) for one in carvings),
            minors=minors,
            by_nri=self._access.by_nri,
            by_cdi=self._access.answers_cdi,
        )
        bind(slot=slot.name)
        return slot

    async def _held(
        self, free: Sequence[DeviceID], fixed: Sequence[DeviceID], size: int
    ) -> Collection[DeviceID]:
        """The devices that containers have. The kubelet is asked if the last plan leaves too few of
        the free ones: it may be older than the end of the pods that had them."""
        held = self._state.snapshot.holders().keys() | self._state.allocating
        if len(_unheld(free, fixed, held)) >= size:
            return held
        try:
            claims = await self._poll()
        except KubeletAway:
            return held
        # The kubelet admits one pod after the other, so it has recorded all earlier allocations.
        return {device for device, _ in claims.share()}

    def _preferred(
        self,
        free: Sequence[DeviceID],
        fixed: Sequence[DeviceID],
        size: int,
        held: Collection[DeviceID],
    ) -> tuple[DeviceID, ...]:
        carves = {key: one.carve for key, one in self._state.carvings.items()}
        offered = [one for one in free if one in fixed or self._is_offered(one)]
        is_offered = set(offered).__contains__
        # The kubelet may call a device free that it gave to a container a moment ago: it forgets
        # those that it is giving away while podresources is listed after a pod has ended. Of two
        # containers with one device, one cannot start.
        unheld = _unheld(free, fixed, held)
        # Devices that are being drained come after those: a container that gets one ends the drain.
        choices = ([*filter(is_offered, unheld)], unheld, offered)
        usable = next((some for some in choices if len(some) >= size), free)
        return preferred(usable, fixed, size, carves, held, self._numa)

    def _numa(self, device: DeviceID) -> tuple[int, ...]:
        carving = self._state.carving_of(device)
        return carving.card(device).numa if carving else ()

    def _is_offered(self, device: DeviceID) -> bool:
        carving = self._state.carving_of(device)
        return carving is not None and carving.stage.offered and not carving.carve.closed

    def _carvings(self, resource: str, devices: Sequence[DeviceID]) -> list[Carving]:
        return [self._carving(resource, device) for device in devices]

    def _carving(self, resource: str, device: DeviceID) -> Carving:
        carving = self._state.carving_of(device)
        if carving is None or carving.resource != resource:
            raise AllocationRefused(f"{device} is no device of {resource} on this node")
        if problem := refusal(carving, device, self._state.snapshot):
            raise AllocationRefused(f"{device} {problem}")
        return carving

    def _answer(
        self, devices: Sequence[DeviceID], uuids: Sequence[str], minors: Mapping[str, int]
    ) -> pb.ContainerAllocateResponse:
        """The answer without the shim. Raises AllocationRefused."""
        answer = pb.ContainerAllocateResponse()
        answer.annotations[container_devices_from()] = devices_from_value(devices)
        try:
            self._access.add_cards(answer, uuids, minors)
        except CardsUnknown as error:
            raise AllocationRefused(str(error)) from error
        return answer


def _unheld(
    free: Sequence[DeviceID], fixed: Sequence[DeviceID], held: Collection[DeviceID]
) -> list[DeviceID]:
    """The free devices that no container has, and the fixed ones."""
    return [one for one in free if one in fixed or one not in held]


def _parsed(ids: Sequence[str]) -> list[DeviceID]:
    try:
        devices = [DeviceID.parse(one) for one in ids]
    except DeviceIDRefused as error:
        raise AllocationRefused(str(error)) from error
    if len(set(devices)) != len(devices):
        raise AllocationRefused(f"a device is named twice in {', '.join(ids)}")
    return sorted(devices)


def _cards(carvings: Sequence[Carving], devices: Sequence[DeviceID]) -> list[str]:
    """The UUIDs of the devices' cards, each once."""
    if not devices:
        raise AllocationRefused("no device was named")
    found = dict.fromkeys(
        carving.card(device).uuid for carving, device in zip(carvings, devices, strict=True)
    )
    if len(found) > CARD_MAX:
        raise AllocationRefused(
            f"the devices lie on {len(found)} cards: a container can use {CARD_MAX}"
        )
    return list(found)


def add_shim(answer: pb.ContainerAllocateResponse, slot: Slot) -> None:
    """Add the shim and the slot's files to the answer."""
    for inside, outside, read_only in shim_mounts(slot):
        answer.mounts.add(container_path=inside, host_path=str(outside), read_only=read_only)
