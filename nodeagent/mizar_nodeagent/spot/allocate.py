"""Serves the kubelet's Allocate and PreStartContainer calls for spot devices. PreStartContainer
refuses a container whose card is not lent to its pod at that moment."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from mizar_core.carve import CardLimit
from mizar_core.names import EventReason, card_of_spot_device, container_devices_ids
from mizar_core.quantities import parse_bytes
from mizar_kube.logs import bind
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.allocate import add_shim
from mizar_nodeagent.container.device_nodes import Minors, minors_of
from mizar_nodeagent.container.limits import ContainerLimits
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.prestart_checks import check_device_nodes
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.errors import (
    AllocationRefused,
    CardsUnknown,
    KubeletAway,
    NotYet,
    StartRefused,
)
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.regions.layout import CARD_MAX
from mizar_nodeagent.spot.lender import Lender


@dataclass(frozen=True)
class SpotAllocator:
    """Allocates spot devices. It does not check whether the card is still lent: a pod whose card is
    lent no more is evicted later, with an event that says why. `poll`: returns the kubelet's
    present claims. `now` returns seconds since the epoch."""

    lender: Lender
    slots: Slots
    access: AccessChoice
    minors: Minors
    poll: Callable[[], Awaitable[Claims]]
    now: Callable[[], float]

    async def preferred(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """The IDs of the devices that a container should get: those in `must`, and others that no
        container has, all of which are equally good. They may be fewer than `size`, since the
        kubelet may call a device free that it gave to a container a moment ago (see
        container/allocate.py); none if the kubelet does not say who has which."""
        try:
            claims = await self.poll()
        except KubeletAway:
            return []
        held = {one for claim in claims.all if claim.resource == resource for one in claim.ids}
        free = set(available) - held - set(must)
        return [*must, *sorted(free)][:size]

    async def allocate(self, resource: str, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Create a slot for the devices and return the answer that mounts it.

        Raises AllocationRefused if the IDs are no spot devices, or if the answer needs the cards'
        device nodes and NVML does not know them."""
        uuids = _cards(ids)
        answer = pb.ContainerAllocateResponse()
        try:
            named = self.access.names_device_nodes
            minors = await minors_of(self.minors, uuids) if named else {}
            self.access.add_cards(answer, uuids, minors)
        except CardsUnknown as error:
            raise AllocationRefused(str(error)) from error
        slot = self._new_slot(resource, ids, minors)
        bind(slot=slot.name)
        physical = self.lender.allocated(uuids)
        answer.annotations[container_devices_ids()] = json.dumps(physical, separators=(",", ":"))
        add_shim(answer, slot)
        return answer

    def _new_slot(self, resource: str, ids: Sequence[str], minors: Mapping[str, int]) -> Slot:
        return self.slots.create(
            resource,
            ids,
            self.now(),
            minors=minors,
            by_nri=self.access.by_nri,
            by_cdi=self.access.answers_cdi,
        )


@dataclass(frozen=True)
class SpotPreStart:
    """Prepares the start of a borrower's container. `start` finds the container and its slots;
    `free_bytes` returns the free memory, in bytes, of the card with the given UUID."""

    lender: Lender
    start: PreStart
    free_bytes: Callable[[str], Awaitable[int]]

    async def prepare(self, resource: str, ids: Sequence[str]) -> None:
        """Write the limits of the container that holds the devices.

        Raises NotYet while the kubelet or NVML does not answer, and StartRefused if a card is not
        lent to the pod or has no memory free. The kubelet tries again after either.
        """
        uuids = _cards(ids)
        try:
            claims = await self.start.poll()
        except KubeletAway as error:
            raise NotYet(str(error)) from error
        owner = self.start.owner(resource, ids, claims)
        bind(**owner.names)
        with self.start.starting(ids):
            await self._prepare(owner, resource, ids, uuids)

    async def _prepare(
        self, owner: Owner, resource: str, ids: Sequence[str], uuids: Sequence[str]
    ) -> None:
        slots = self.start.slots_of(owner, resource, ids)
        try:
            await self._check_slots(owner, slots, uuids)
            limits = await self._limits(uuids)
            # No await from here on: an owner may become active during any await.
            self._check_lent(owner, uuids)
            for slot in slots:
                self.start.write(slot, owner, limits)
        except StartRefused as error:
            self.start.warn(owner, error.reason, str(error))
            raise
        if all(slot.owner is None for slot in slots):
            self.start.notify(owner, EventReason.SPOT_GRANTED, _describe(owner, limits))

    async def _check_slots(self, owner: Owner, slots: Sequence[Slot], uuids: Sequence[str]) -> None:
        own = [one for one in slots if not one.owner or one.owner.container == owner.container]
        await self.start.check_access(own, uuids)
        for slot in own:
            await check_device_nodes(self.start.minors, slot.minors)

    def _check_lent(self, owner: Owner, uuids: Sequence[str]) -> None:
        for uuid in uuids:
            if problem := self.lender.objection(uuid, owner):
                raise StartRefused(f"card {uuid} is not lent: {problem}", EventReason.SPOT_WAITING)

    async def _limits(self, uuids: Sequence[str]) -> ContainerLimits:
        """Limits for each card: its free memory less the rule's reserve, and no share of its time,
        so that the container gets only time that no owner wants."""
        # The memory of a context that is being measured would be missing from the free memory.
        async with self.start.contexts.learning:
            cards = [await self._limit(uuid) for uuid in uuids]
        physical = {uuid: self.lender.memory_bytes(uuid) for uuid in uuids}
        # Context sizes are not measured here: it takes seconds, and a borrower can do without them.
        contexts: Mapping[str, int] = {uuid: self.start.contexts.of(uuid) for uuid in uuids}
        return ContainerLimits(tuple(cards), physical, contexts)

    async def _limit(self, uuid: str) -> CardLimit:
        rule = self.lender.rule(uuid)
        if rule is None:
            raise StartRefused(f"card {uuid} is not lent any more", EventReason.SPOT_WAITING)
        try:
            free = await self.free_bytes(uuid) - parse_bytes(rule.reserve)
        except CardsUnknown as error:
            raise NotYet(str(error)) from error
        if free <= 0:
            raise StartRefused(
                f"card {uuid} has no memory to lend: its owners hold all but the reserve of "
                f"{rule.reserve}",
                EventReason.SPOT_WAITING,
            )
        return CardLimit(uuid, free, 0, "Hard", "Soft", priority=0)


def _cards(ids: Sequence[str]) -> list[str]:
    found = [card_of_spot_device(one) for one in ids]
    uuids = sorted({one for one in found if one})
    if not uuids or len(uuids) != len(found) or len(uuids) > CARD_MAX:
        raise AllocationRefused(f"not spot devices, or too many of them: {', '.join(ids)}")
    return uuids


def _describe(owner: Owner, limits: ContainerLimits) -> str:
    cards = "; ".join(
        f"card {one.uuid}: memory {one.memory_bytes >> 20} MiB" for one in limits.cards
    )
    return f"container {owner.container} borrows, for as long as the owners are idle, {cards}"
