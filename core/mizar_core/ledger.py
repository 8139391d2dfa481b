"""Who holds which virtual device: the bookkeeping behind the first two invariants.

A ledger is a value: `offer`, `withdraw`, `grant` and `release` return another one or raise. It
can be built again at any time from what the kubelet says (`settle`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mizar_core.carve import Card, CardLimit, Carve, limits_for
from mizar_core.device_ids import DeviceID, device_ids
from mizar_core.errors import AlreadyHeld, CarveRefused, ForeignTenant, LedgerRefused, UnknownDevice
from mizar_core.models import Holder

Shadow = tuple[str, str]
"""Namespace and name of a shadow pod."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A shadow pod's cards and how they are carved."""

    carve: Carve
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Which shadow pods offer devices, and who holds which of these."""

    offers: Mapping[Shadow, Offer] = field(default_factory=lambda: MappingProxyType({}))
    holders: Mapping[DeviceID, Holder] = field(default_factory=lambda: MappingProxyType({}))

    def offer(self, shadow: Shadow, carve: Carve, cards: Iterable[Card]) -> Ledger:
        """Add a shadow pod. Refused if another offers one of its cards, or if it is known."""
        offer = Offer(carve, tuple(cards))
        if shadow in self.offers:
            raise LedgerRefused(f"{'/'.join(shadow)} is offered already: withdraw it first")
        if len(offer.cards) != carve.cards:
            raise CarveRefused(f"{'/'.join(shadow)} holds {len(offer.cards)} cards")
        self._check_cards(offer)
        return replace(self, offers={**self.offers, shadow: offer})

    def withdraw(self, shadow: Shadow) -> Ledger:
        """Forget a shadow pod. Refused while somebody holds one of its devices."""
        if not self.idle(shadow):
            raise AlreadyHeld(f"{'/'.join(shadow)} is in use: drain it before withdrawing it")
        return replace(self, offers={key: one for key, one in self.offers.items() if key != shadow})

    def grant(self, ids: Collection[DeviceID], holder: Holder) -> Ledger:
        """Give devices to a container; giving them to the same one again changes nothing."""
        for device in ids:
            self._check_grant(device, holder)
        return replace(self, holders={**self.holders, **dict.fromkeys(ids, holder)})

    def release(self, holder: Holder) -> Ledger:
        """Take all devices back from a container."""
        kept = {device: who for device, who in self.holders.items() if who != holder}
        return replace(self, holders=kept)

    def settle(
        self, observed: Mapping[DeviceID, Holder]
    ) -> tuple[Ledger, tuple[LedgerRefused, ...]]:
        """The ledger as the kubelet sees it: what it does not list is free again.

        What breaks an invariant is left out and handed back, for an event.
        """
        settled, refused = replace(self, holders={}), []
        for device, holder in sorted(observed.items(), key=lambda item: item[0]):
            try:
                settled = settled.grant([device], holder)
            except LedgerRefused as error:
                refused.append(error)
        return settled, tuple(refused)

    def idle(self, shadow: Shadow) -> bool:
        """Whether nobody holds a device of the shadow pod."""
        return not any((one.namespace, one.shadow) == shadow for one in self.holders)

    def devices_of(self, holder: Holder) -> tuple[DeviceID, ...]:
        """The devices that a container holds, sorted."""
        return tuple(sorted(one for one, who in self.holders.items() if who == holder))

    def free(self, resource: str) -> tuple[DeviceID, ...]:
        """The devices of a resource that nobody holds, sorted."""
        return tuple(
            device
            for (namespace, name), offer in sorted(self.offers.items())
            if offer.carve.resource == resource
            for device in device_ids(namespace, name, offer.carve.devices)
            if device not in self.holders
        )

    def limits_of(self, holder: Holder) -> tuple[CardLimit, ...]:
        """What the container may take of each card that it has a part of."""
        indices: dict[Shadow, list[int]] = {}
        for device in self.devices_of(holder):
            indices.setdefault((device.namespace, device.shadow), []).append(device.index)
        return tuple(
            limit
            for shadow, some in sorted(indices.items())
            for limit in limits_for(self.offers[shadow].carve, self.offers[shadow].cards, some)
        )

    def _check_cards(self, offer: Offer) -> None:
        taken = {card.uuid for other in self.offers.values() for card in other.cards}
        for card in offer.cards:
            if card.uuid in taken:
                raise LedgerRefused(f"{card.uuid} is carved already: one shadow pod per card")
            taken.add(card.uuid)

    def _check_grant(self, device: DeviceID, holder: Holder) -> None:
        offer = self.offers.get((device.namespace, device.shadow))
        if offer is None or device.index >= offer.carve.devices:
            raise UnknownDevice(f"{device} is no device of any shadow pod here")
        if offer.carve.tenancy == "PerNamespace" and holder.namespace != device.namespace:
            raise ForeignTenant(f"{device} belongs to {device.namespace}, not {holder.namespace}")
        if self.holders.get(device, holder) != holder:
            raise AlreadyHeld(f"{device} is held by another container: one holder per device")
