"""A shadow pod whose cards are known: its devices, and how far they are from being given back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from mizar_core.base import format_time, parse_time
from mizar_core.carve import Card, Carve
from mizar_core.device_ids import DeviceID, card_of, device_ids
from mizar_nodeagent.pods import Key


class Stage(StrEnum):
    """Serving is the ordinary one. A drain goes through Lowered and Blocked to Drained."""

    SERVING = "Serving"
    LOWERED = "Lowered"
    """The node's status offers the devices no more; the kubelet still may give them out."""
    BLOCKED = "Blocked"
    """Unhealthy to the kubelet; not yet certain that nobody got one at the last moment."""
    DRAINED = "Drained"
    """Certain. Nobody gets a device any more until the drain is called off."""
    IN_USE = "InUse"
    """The drain found a holder; offered as before until the drain is called off."""
    LEAVING = "Leaving"
    """The shadow pod goes or is gone; the IDs stay on the list while the kubelet may use them."""

    @property
    def offered(self) -> bool:
        """Whether the scheduler may count on the devices."""
        return self in (Stage.SERVING, Stage.IN_USE)

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may give the devices out."""
        return self in (Stage.SERVING, Stage.IN_USE, Stage.LOWERED)


@dataclass(frozen=True)
class HeldCard:
    """A card that a shadow pod holds, as it was when the pod got it."""

    uuid: str
    model: str
    memory_bytes: int
    minor: int
    numa: tuple[int, ...] = ()


@dataclass(frozen=True)
class Carving:
    """What the agent remembers of a shadow pod.

    `since`: when the stage began. `quiet_since`: since when, without a break, the kubelet has had
    no healthy device of it and nobody has held one (both monotonic seconds). `drain`: the value of
    the annotation that the stage answers to. `idle_since`: None while somebody holds a device.
    Of one that takes nobody new, `shut`: its free devices (by index) that the kubelet gives out no
    more; `closing_since`: since when there are others (monotonic seconds). `taken_by`: the pod
    that the kubelet gave a card of it; `taken_since`: since when it says so.
    """

    namespace: str
    name: str
    pod_uid: str
    owner_uid: str
    carve: Carve
    cards: tuple[HeldCard, ...]
    stage: Stage = Stage.SERVING
    since: float = 0.0
    drain: str = ""
    quiet_since: float | None = None
    idle_since: datetime | None = None
    closing_since: float | None = None
    shut: frozenset[int] = frozenset()
    taken_by: str = ""
    taken_since: float | None = None

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    @property
    def resource(self) -> str:
        return self.carve.resource

    @cached_property
    def ids(self) -> tuple[DeviceID, ...]:
        """All devices, in order."""
        return device_ids(self.namespace, self.name, self.carve.devices)

    @cached_property
    def core_cards(self) -> tuple[Card, ...]:
        """The cards as `limits_for` wants them."""
        return tuple(Card(card.uuid, card.memory_bytes) for card in self.cards)

    def card(self, device: DeviceID) -> HeldCard:
        """The card that the device lies on."""
        return self.cards[card_of(device.index, self.carve)]

    def to_dict(self) -> dict[str, Any]:
        """As JSON for the checkpoint; times of the monotonic clock don't outlive the process."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "podUID": self.pod_uid,
            "ownerUID": self.owner_uid,
            "carve": self.carve.to_dict(),
            "cards": [vars(card) for card in self.cards],
            "stage": self.stage.value,
            "drain": self.drain,
            "idleSince": None if self.idle_since is None else format_time(self.idle_since),
            "takenBy": self.taken_by,
        }

    @classmethod
    def from_dict(cls, body: dict[str, Any], now: float) -> Carving:
        """From the checkpoint. Raises ValueError, LookupError or TypeError when it is damaged."""
        idle = body["idleSince"]
        return cls(
            namespace=body["namespace"],
            name=body["name"],
            pod_uid=body["podUID"],
            owner_uid=body["ownerUID"],
            carve=Carve.from_dict(body["carve"]),
            cards=tuple(
                HeldCard(**{**card, "numa": tuple(card["numa"])}) for card in body["cards"]
            ),
            stage=Stage(body["stage"]),
            since=now,
            drain=body["drain"],
            idle_since=None if idle is None else parse_time(idle),
            taken_by=body.get("takenBy", ""),
        )
