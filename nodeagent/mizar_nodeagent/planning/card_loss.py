"""Detects shadow pods that lose cards while they are in use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from mizar_nodeagent.kubelet.claims import card_uuid
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod


def note_taken_card(carving: Carving, snapshot: NodeSnapshot) -> Carving:
    """The carving with `taken_by` set to a pod to which the kubelet has given one of its cards,
    once the kubelet has reported so for the grace period `taken`."""
    other = _taker(carving, snapshot)
    if carving.taken_by or not other:
        return carving.changed(taken_since=None)
    since = snapshot.now if carving.taken_since is None else carving.taken_since
    if min(snapshot.now, snapshot.claims.asked_at) - since < snapshot.grace.taken:
        return replace(carving, taken_since=since)
    return replace(carving, taken_by=other, taken_since=None)


def note_gone_cards(carving: Carving, free: Collection[int], snapshot: NodeSnapshot) -> Carving:
    """The carving with `gone` as the cards that are no longer in the node. This is certain of a
    card once NVML has not listed it for the grace period `gone` and neither NVIDIA's device plugin
    nor its DRA driver reports it as healthy. A card that comes back stays in `gone` until none of
    its devices is held, since their users are being evicted; if all are gone, they stay so. `free`:
    indices of the devices that are neither held nor being allocated."""
    if carving.is_lost or snapshot.kubelet is None:
        return carving
    physical = snapshot.kubelet.get(carving.carve.physical_resource, frozenset())
    healthy = {card_uuid(one) for one in physical}
    gone = {
        card.uuid
        for card in carving.cards
        if card.uuid not in healthy and _is_long_gone(card.uuid, snapshot)
    }
    held = {carving.card(one).uuid for one in carving.ids if one.index not in free}
    return carving.changed(gone=gone | (carving.gone & held))


def _is_long_gone(uuid: str, snapshot: NodeSnapshot) -> bool:
    known = snapshot.cards.get(uuid)
    if known is None or known.gone_since is None:
        return False
    return snapshot.now - known.gone_since >= snapshot.grace.gone


def loss_reason(key: Key, carving: Carving | None, snapshot: NodeSnapshot) -> str:
    """Why the users of the shadow pod `key` have lost its cards, as a clause for a message; empty
    if they have not, as far as is known. `carving`: that of the shadow pod, if known."""
    if snapshot.pods is None:
        return ""
    if carving is not None and carving.taken_by:
        return f"the kubelet gave it to pod {carving.taken_by}"
    if carving is not None and carving.is_lost:
        return gone_reason(carving.gone)
    pod = snapshot.pods.get(key)
    if pod is None or (carving is not None and pod.uid != carving.pod_uid):
        return "the shadow pod was deleted or evicted"
    if pod.ended:
        return "the shadow pod has ended"
    return "the shadow pod was deleted" if _is_about_to_end(pod, snapshot) else ""


def gone_reason(uuids: Collection[str]) -> str:
    """That these cards (UUIDs, at least one) are gone, as a clause for a message."""
    verb = "is" if len(uuids) == 1 else "are"
    return f"{', '.join(sorted(uuids))} {verb} not in the node any more"


def _is_about_to_end(pod: Pod, snapshot: NodeSnapshot) -> bool:
    """Whether the grace period of a deleted shadow pod is almost over: the shadow pod keeps its
    cards until then, so that its users can end."""
    if pod.terminates_by is None:
        return pod.terminating
    return snapshot.time >= pod.terminates_by - timedelta(seconds=snapshot.grace.going)


def _taker(carving: Carving, snapshot: NodeSnapshot) -> str:
    """The pod (namespace/name) that holds a card which the shadow pod holds no longer; empty if
    there is none.

    While the shadow pod holds the card too, the other claim is a mistake: kubelets may name pods
    that have ended.
    """
    claims = snapshot.live_claims_on(carving.carve.physical_resource)
    own = {
        card_uuid(one)
        for claim in claims
        if (claim.namespace, claim.pod) == carving.key
        for one in claim.ids
    }
    lost = {card.uuid for card in carving.cards} - own
    found = [f"{claim.namespace}/{claim.pod}" for claim in claims if claim.ids & lost]
    return min(found, default="")
