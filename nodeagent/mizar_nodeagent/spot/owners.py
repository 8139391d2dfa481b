"""Whose each card is: the pods that hold it whole, and those that share it through a shadow pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.device_ids import DeviceID
from mizar_core.names import SPOT_RESOURCE
from mizar_core.planning.pool_nodes import matches
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.planning.adopt_shadow_pod import card_uuid
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key
from mizar_nodeagent.spot.events import PodIdentity


@dataclass(frozen=True)
class CardOwner:
    """A pod and all the cards that are its own, by UUID. `low_power`: it agreed to lend them."""

    pod: PodIdentity
    cards: frozenset[str]
    low_power: bool = False

    def agrees(self, rule: SpotRule | None) -> bool:
        """Whether it agreed to lend a card that has this rule."""
        return self.low_power or (rule is not None and self.pod.namespace in rule.spot.namespaces)


def owners(snapshot: NodeSnapshot, carvings: Mapping[Key, Carving]) -> tuple[CardOwner, ...]:
    """The owners of all cards of the node. A shadow pod owns nothing: those who share its cards
    do."""
    held: dict[Key, set[str]] = {}
    for claim, uuid in _holdings(snapshot, carvings):
        held.setdefault((claim.namespace, claim.pod), set()).add(uuid)
    pods = snapshot.pods or {}
    return tuple(
        CardOwner(
            PodIdentity(*key, pods[key].uid if key in pods else ""),
            frozenset(cards),
            key in pods and pods[key].low_power,
        )
        for key, cards in sorted(held.items())
    )


def resources(snapshot: NodeSnapshot) -> dict[str, str]:
    """By card, the physical resource as which some pod holds it."""
    return {uuid: claim.resource for claim, uuid in _whole_cards(snapshot)}


def rule_of(
    card: Card, resource: str, labels: Mapping[str, str], rules: SpotRules
) -> SpotRule | None:
    """The rule of the first pool that the card belongs to, on a node with these labels; None if
    its cards are not lent."""
    for rule in rules.rules:
        on_node = rule.node_selector.items() <= labels.items()
        if not on_node or rule.physical_resource != resource:
            continue
        if not rule.card_models or matches(card.model, rule.card_models):
            return rule
    return None


def _holdings(
    snapshot: NodeSnapshot, carvings: Mapping[Key, Carving]
) -> Iterable[tuple[Claim, str]]:
    """Each claim of an owner, with each of its cards."""
    shadows = {key for key, pod in (snapshot.pods or {}).items() if pod.shadow}
    cards: dict[Key, set[str]] = {}
    for claim, uuid in _whole_cards(snapshot):
        key = claim.namespace, claim.pod
        if key in shadows or key in carvings:
            cards.setdefault(key, set()).add(uuid)
        else:
            yield claim, uuid
    for device, claim in Claims(tuple(snapshot.live_claims())).share():
        for uuid in _cards_of(device, carvings, cards):
            yield claim, uuid


def _whole_cards(snapshot: NodeSnapshot) -> Iterable[tuple[Claim, str]]:
    for claim in snapshot.live_claims():
        if claim.is_share or claim.resource == SPOT_RESOURCE:
            continue
        for one in claim.ids:
            if (uuid := card_uuid(one)) in snapshot.cards:
                yield claim, uuid


def _cards_of(
    device: DeviceID, carvings: Mapping[Key, Carving], cards: Mapping[Key, set[str]]
) -> Iterable[str]:
    """The card that the device lies on; any card of its shadow pod while the carving is not
    known."""
    key = device.namespace, device.shadow
    carving = carvings.get(key)
    if carving is None or device.index >= carving.carve.devices:
        return cards.get(key, set())
    return (carving.card(device).uuid,)
