"""Finds the owners of each card: pods that hold it whole, and pods that share it through a shadow
pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.device_ids import DeviceID
from mizar_core.planning.pool_nodes import matches
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet.claims import Claim, Claims, card_uuid
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key
from mizar_nodeagent.spot.owner_events import PodIdentity


@dataclass(frozen=True)
class CardOwner:
    """A pod that owns cards. `cards`: the UUIDs of all of them. `low_power`: it declared that it
    lends its cards while it is idle."""

    pod: PodIdentity
    cards: frozenset[str]
    low_power: bool = False

    def agrees(self, rule: SpotRule | None) -> bool:
        """Whether the owner agreed to lend a card that falls under this rule: by `low_power`, or
        because the rule names its namespace."""
        return self.low_power or (rule is not None and self.pod.namespace in rule.spot.namespaces)


def owners(snapshot: NodeSnapshot, carvings: Mapping[Key, Carving]) -> tuple[CardOwner, ...]:
    """The owners of all cards of the node. A shadow pod owns no card: the share pods that use its
    devices do."""
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
    """The physical resource as which a pod holds each card, by the card's UUID."""
    return {uuid: claim.resource for claim, uuid in _whole_cards(snapshot)}


def pools(snapshot: NodeSnapshot, carvings: Mapping[Key, Carving]) -> dict[str, str]:
    """The pool of each card that a shadow pod holds, by the card's UUID. A card that is held whole
    is no pool's, and that of a shadow pod whose carving is unknown is left out."""
    return {
        uuid: carving.carve.pool
        for claim, uuid in _whole_cards(snapshot)
        if (carving := carvings.get((claim.namespace, claim.pod))) is not None
    }


def rule_of(
    card: Card,
    resource: str,
    labels: Mapping[str, str],
    rules: SpotRules,
    pool: str | None = None,
) -> SpotRule | None:
    """The rule for a card held as `resource` on a node with these labels; None if there is none, in
    which case the card is not lent. `pool`: the pool of the shadow pod that holds the card, whose
    rule alone counts; None for the first rule that matches the card."""
    for rule in rules.rules:
        if pool not in (None, rule.pool):
            continue
        on_node = rule.node_selector.items() <= labels.items()
        if not on_node or rule.physical_resource != resource:
            continue
        if not rule.card_models or matches(card.model, rule.card_models):
            return rule
    return None


def _holdings(
    snapshot: NodeSnapshot, carvings: Mapping[Key, Carving]
) -> Iterable[tuple[Claim, str]]:
    """Each claim of an owner, once with each card's UUID."""
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
        if claim.is_of_mizar:
            continue
        for one in claim.ids:
            if (uuid := card_uuid(one)) in snapshot.cards:
                yield claim, uuid


def _cards_of(
    device: DeviceID, carvings: Mapping[Key, Carving], cards: Mapping[Key, set[str]]
) -> Iterable[str]:
    """The UUID of the card that the device is part of; while the carving is unknown, all cards of
    its shadow pod."""
    key = device.namespace, device.shadow
    carving = carvings.get(key)
    if carving is None or device.index >= carving.carve.devices:
        return cards.get(key, set())
    return (carving.card(device).uuid,)
