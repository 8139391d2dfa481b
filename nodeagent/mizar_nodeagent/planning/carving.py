"""A carving: the cards of a shadow pod, divided into the devices that share pods use, and the stage
of the shadow pod's drain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from mizar_core.carve import CardLimit, Carve, limits_for
from mizar_core.device_ids import DeviceID, card_of, device_ids
from mizar_core.errors import CarveRefused
from mizar_core.model_base import format_time, parse_time
from mizar_nodeagent.cards import Card
from mizar_nodeagent.pods import Key


class DrainStage(StrEnum):
    """Stage of a shadow pod's drain. A requested drain goes from Serving through Lowered and
    Blocked to Drained."""

    SERVING = "Serving"
    """No drain is requested: the devices are offered."""
    LOWERED = "Lowered"
    """The node's status does not offer the devices any more; the kubelet may still allocate
    them."""
    BLOCKED = "Blocked"
    """The devices are Unhealthy to the kubelet; one may have been allocated at the last moment."""
    DRAINED = "Drained"
    """No device is held, and none is allocated until the drain is called off."""
    IN_USE = "InUse"
    """The drain found a held device: the devices are offered as before until another drain is
    requested."""
    LEAVING = "Leaving"
    """The shadow pod is terminating or gone, or has lost its cards; its devices stay listed while
    the kubelet may use them."""

    @property
    def offered(self) -> bool:
        """Whether the node's status offers the devices to the scheduler."""
        return self in (DrainStage.SERVING, DrainStage.IN_USE)

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may allocate the devices."""
        return self in (DrainStage.SERVING, DrainStage.IN_USE, DrainStage.LOWERED)


@dataclass(frozen=True)
class Carving:
    """The agent's record of a shadow pod. Times are monotonic seconds, except `idle_since`.

    `since`: when the stage began. `quiet_since`: since when, without a break, no device has been
    held and the kubelet has had none as healthy; None while that is not so. `drain`: value of the
    drain annotation that led to the stage. `idle_since`: since when no device has been held; None
    while one is. For a closed carve, `withdrawn`: indices of the free devices that the kubelet no
    longer allocates; `closing_since`: since when there have been other free devices. `kept_up`: the
    count in the node's status should be lowered, but is not, since bound pods wait for devices.
    `taken_by`: the pod (namespace/name) to which the kubelet gave one of the cards; `taken_since`:
    since when the kubelet has reported so, until `taken_by` is set. `gone`: UUIDs of the cards that
    are no longer in the node, or that are back while their users from before are not gone yet.
    `confirmed`: the kubelet has reported since the node's boot that the shadow pod has the cards;
    until then no container gets a device.
    """

    namespace: str
    name: str
    pod_uid: str
    owner_uid: str
    carve: Carve
    cards: tuple[Card, ...]
    stage: DrainStage = DrainStage.SERVING
    since: float = 0.0
    drain: str = ""
    quiet_since: float | None = None
    idle_since: datetime | None = None
    closing_since: float | None = None
    withdrawn: frozenset[int] = frozenset()
    kept_up: bool = False
    taken_by: str = ""
    taken_since: float | None = None
    gone: frozenset[str] = frozenset()
    confirmed: bool = True

    @property
    def key(self) -> Key:
        """Namespace and name of the shadow pod."""
        return self.namespace, self.name

    @property
    def resource(self) -> str:
        """The resource that the devices are offered as."""
        return self.carve.resource

    @cached_property
    def ids(self) -> tuple[DeviceID, ...]:
        """All devices, in order."""
        return device_ids(self.namespace, self.name, self.carve.devices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All devices in order, as the kubelet sees them."""
        return tuple(map(str, self.ids))

    @cached_property
    def device_cards(self) -> tuple[Card, ...]:
        """The card that each device lies on, in order of the devices."""
        return tuple(map(self.card, self.ids))

    @property
    def is_lost(self) -> bool:
        """Whether another pod has one of its cards, or none of them is in the node any more, so
        that its devices are given up. While only some cards are gone, the devices of the others are
        used as before."""
        return bool(self.taken_by) or all(card.uuid in self.gone for card in self.cards)

    def changed(self, **changes: Any) -> Carving:
        """The carving with these fields changed; the same object if none differs, so that its
        cached properties are kept."""
        same = all(getattr(self, name) == value for name, value in changes.items())
        return self if same else replace(self, **changes)

    @cached_property
    def limits(self) -> Mapping[str, CardLimit]:
        """The limit of a single device, by its card's UUID: all devices of one card have the same.
        Empty if a device would get no memory or time, in which case containers' starts are
        refused."""
        first = range(0, self.carve.devices, self.carve.devices // self.carve.cards)
        try:
            return {one.uuid: one for one in limits_for(self.carve, self.cards, first)}
        except CarveRefused:
            return {}

    def card(self, device: DeviceID) -> Card:
        """The card that the device lies on."""
        return self.cards[card_of(device.index, self.carve)]

    def gone_of(self, devices: Iterable[DeviceID]) -> frozenset[str]:
        """UUIDs of the devices' cards that are gone."""
        return self.gone & {self.card(one).uuid for one in devices} if self.gone else self.gone

    def to_dict(self) -> dict[str, Any]:
        """The carving as a JSON object for the checkpoint, without monotonic times, which
        `from_dict` starts anew."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "podUID": self.pod_uid,
            "ownerUID": self.owner_uid,
            "carve": self.carve.to_dict(),
            "cards": [card.to_dict() for card in self.cards],
            "stage": self.stage.value,
            "drain": self.drain,
            "idleSince": None if self.idle_since is None else format_time(self.idle_since),
            "takenBy": self.taken_by,
            "gone": sorted(self.gone),
            "confirmed": self.confirmed,
        }

    @classmethod
    def from_dict(cls, body: dict[str, Any], now: float) -> Carving:
        """The carving from the checkpoint's JSON object. `now`: monotonic seconds, at which the
        stage begins anew. Raises ValueError, LookupError or TypeError if the object is damaged."""
        idle = body["idleSince"]
        cards = tuple(map(Card.from_dict, body["cards"]))
        return cls(
            namespace=body["namespace"],
            name=body["name"],
            pod_uid=body["podUID"],
            owner_uid=body["ownerUID"],
            carve=Carve.from_dict(body["carve"]),
            cards=cards,
            stage=DrainStage(body["stage"]),
            since=now,
            drain=body["drain"],
            idle_since=None if idle is None else parse_time(idle),
            taken_by=body.get("takenBy", ""),
            gone=_gone(body.get("gone", []), cards),
            confirmed=bool(body.get("confirmed", True)),
        )


def _gone(found: list[str] | str, cards: tuple[Card, ...]) -> frozenset[str]:
    """UUIDs of the cards that are gone, by the checkpoint. Earlier agents wrote one UUID as a
    string (empty for none), and gave up all cards of the carving with that card."""
    if isinstance(found, list):
        return frozenset(found)
    return frozenset(card.uuid for card in cards) if found else frozenset()
