"""The carve: how a shadow pod's cards are divided into devices. The operator writes it, the node
agent reads it.

It is JSON in the annotation `mizar.share/carve` of the shadow pod's pod, so that the agent needs to
read no GPUPool and no GPUQuota.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Annotated

from pydantic import Field, ValidationError

from mizar_core.card import Card
from mizar_core.device_ids import card_of
from mizar_core.errors import CarveRefused
from mizar_core.field_types import Cards, Devices, Name, Scaling
from mizar_core.model_base import Model
from mizar_core.models import ComputeMode, Isolation, MemoryMode, ShareVariables, Tenancy
from mizar_core.names import ANNOTATION_CARVE, PHYSICAL_RESOURCE, parse_resource
from mizar_core.quantities import WHOLE_CARD, parse_scaling


class Carve(Model):
    """How the node agent divides a shadow pod's cards. `memory`: bytes per device; None for an even
    share of the card. `closed`: whether no further pod gets a device; pods that hold one keep it.
    `same_card`: whether a container needs all its devices on one card, unless its pod says
    otherwise.
    """

    resource: Name
    devices: Devices
    cards: Cards
    memory: Annotated[int, Field(strict=True, gt=0)] | None = None
    memory_scaling: Scaling = "1"
    core_scaling: Scaling = "1"
    isolation: Isolation = Isolation()
    pool: Name
    quota: Name
    tenancy: Tenancy = "PerNamespace"
    physical_resource: Name = PHYSICAL_RESOURCE
    closed: bool = False
    variables: tuple[ShareVariables, ...] = ()
    same_card: bool = False

    def to_json(self) -> str:
        """The annotation's value; the same carve is always the same text."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> Carve:
        """The carve in the annotation's value. Raises CarveRefused if the text is not a valid
        carve."""
        try:
            carve = cls.model_validate_json(text)
        except ValidationError as error:
            raise CarveRefused(f"the annotation {ANNOTATION_CARVE} is damaged: {error}") from error
        if carve.devices % carve.cards:
            raise CarveRefused(f"{carve.cards} cards do not divide {carve.devices} devices")
        return carve

    def is_shaped_like(self, other: Carve) -> bool:
        """Whether a carve can replace the other while its devices are in use: both have the same
        resource, tenancy and physical resource, and as many devices and cards."""
        return self._shape == other._shape

    @property
    def _shape(self) -> tuple[str, int, int, str, str]:
        return self.resource, self.devices, self.cards, self.tenancy, self.physical_resource

    def check_tenant(self, namespace: str) -> None:
        """Raise CarveRefused unless the carve's resource is of as many devices as the carve, and a
        shadow pod of the namespace may offer it.

        Anyone who may create pods can write annotations: without this check, a forged carve would
        offer a card under the name of another tenant's resource. In a Shared pool, every namespace
        may offer the resource.
        """
        parsed = parse_resource(self.resource)
        own = parsed is not None and parsed.prefix.startswith(f"{namespace}.")
        if parsed is None or parsed.profile != self.devices:
            raise CarveRefused(f"'{self.resource}' is no resource of {self.devices} devices")
        if self.tenancy == "PerNamespace" and not own:
            raise CarveRefused(f"{self.resource} does not belong to the namespace {namespace}")


@dataclass(frozen=True, slots=True)
class CardLimit:
    """The limits of a container on one card. `core_share`: basis points of the card's compute, at
    most 10,000. `priority`: containers of a higher priority get unused compute first; 0 is the
    lowest.
    """

    uuid: str
    memory_bytes: int
    core_share: int
    memory_mode: MemoryMode
    compute_mode: ComputeMode
    priority: int = 0


def limits_for(
    carve: Carve, cards: Sequence[Card], indices: Collection[int]
) -> tuple[CardLimit, ...]:
    """The limits of a container that holds the devices `indices`, one for each of its cards, in
    card order.

    Devices on one card add up. Over all containers, a card's limits never add up to more than the
    card times its scaling. Raises DeviceIDRefused for an index that the carve does not have;
    CarveRefused for a repeated index, a wrong number of cards, or a limit that would be 0, which
    the shim could not tell from "no limit".
    """
    _check(carve, cards, indices)
    held = Counter(card_of(index, carve) for index in indices)
    return tuple(_limit(carve, cards[card], count) for card, count in sorted(held.items()))


def _check(carve: Carve, cards: Sequence[Card], indices: Collection[int]) -> None:
    if len(cards) != carve.cards:
        raise CarveRefused(f"the shadow pod holds {len(cards)} cards instead of {carve.cards}")
    if len(set(indices)) != len(indices):
        raise CarveRefused(f"a device is named twice in {sorted(indices)}")


def _limit(carve: Carve, card: Card, held: int) -> CardLimit:
    memory = _part(carve, card.memory_bytes, carve.memory_scaling, held)
    if carve.memory is not None:
        memory = min(memory, carve.memory * held)
    cores = _part(carve, WHOLE_CARD, carve.core_scaling, held)
    if memory < 1 or cores < 1:
        raise CarveRefused(
            f"nothing would be left per device of {card.uuid}: raise the pool's scaling"
        )
    return CardLimit(
        uuid=card.uuid,
        memory_bytes=memory,
        core_share=min(cores, WHOLE_CARD),
        memory_mode=carve.isolation.memory,
        compute_mode=carve.isolation.compute,
    )


def _part(carve: Carve, whole: int, scaling: str, held: int) -> int:
    """`held` devices' share of the whole, rounded down."""
    return floor(whole * Fraction(parse_scaling(scaling)) * held * carve.cards / carve.devices)
