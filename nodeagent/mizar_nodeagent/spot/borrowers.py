"""Finds which pod borrows which card, from the kubelet's claims."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mizar_core.names import SPOT_RESOURCE, card_of_spot_device
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key
from mizar_nodeagent.spot.owner_events import PodIdentity


@dataclass(frozen=True)
class Borrower:
    """A spot pod that holds cards.

    `cards`: their UUIDs. `containers`: the names of its containers that hold them. `ended`: the
    runtime's IDs of these containers, whose processes a reclaim ends; `spared`: those of its other
    containers; both as far as they are known. `uids`: the pod UIDs by which the cgroups of its
    processes are found. `notice`, `grace`: the seconds of notice and of grace that it asks for.
    """

    pod: PodIdentity
    containers: frozenset[str]
    cards: frozenset[str]
    ended: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    uids: frozenset[str] = frozenset()
    notice: float = 0.0
    grace: float = 0.0

    def owns(self, slot: Slot) -> bool:
        """Whether the slot belongs to one of this pod's containers."""
        owner = slot.owner
        if owner is None or (owner.namespace, owner.pod) != self.pod.key:
            return False
        return not self.uids or owner.pod_uid in ("", *self.uids)


def with_init_containers(snapshot: NodeSnapshot, slots: Iterable[Slot]) -> NodeSnapshot:
    """The snapshot, with the claims of init containers added, which the kubelet leaves out. The
    devices of an init container stay its pod's until the pod ends. Its slot shows which it has,
    once it has started."""
    known = {(one.namespace, one.pod, one.resource, one.ids) for one in snapshot.claims.all}
    more = [
        Claim(owner.namespace, owner.pod, owner.container, slot.resource, slot.ids)
        for slot in slots
        if (owner := slot.owner)
        and (pod := (snapshot.pods or {}).get((owner.namespace, owner.pod)))
        and not pod.ended
        and owner.container in pod.init_containers
        and owner.pod_uid in pod.uids
        and (owner.namespace, owner.pod, slot.resource, slot.ids) not in known
    ]
    if not more:
        return snapshot
    claims = Claims((*snapshot.claims.all, *more), snapshot.claims.asked_at)
    return replace(snapshot, claims=claims)


def borrowers(snapshot: NodeSnapshot, slots: Iterable[Slot]) -> dict[str, Borrower]:
    """The borrower of each borrowed card, by the card's UUID. `slots`: all slots of the node."""
    cards: dict[Key, set[str]] = {}
    containers: dict[Key, set[str]] = {}
    for claim in snapshot.live_claims():
        if claim.resource == SPOT_RESOURCE:
            key = claim.namespace, claim.pod
            cards.setdefault(key, set()).update(filter(None, map(card_of_spot_device, claim.ids)))
            containers.setdefault(key, set()).add(claim.container)
    known = list(slots)
    found = (_borrower(key, snapshot, containers[key], cards[key], known) for key in sorted(cards))
    return {uuid: one for one in found for uuid in one.cards}


def _borrower(
    key: Key, snapshot: NodeSnapshot, containers: set[str], cards: set[str], slots: Iterable[Slot]
) -> Borrower:
    pod = (snapshot.pods or {}).get(key)
    # While the API server is unreachable, only the slot has the pod's UID.
    kept = {
        one.owner.pod_uid
        for one in slots
        if one.owner is not None and (one.owner.namespace, one.owner.pod) == key
    } - {""}
    uids = pod.uids if pod else frozenset(kept)
    ids = pod.container_ids if pod else ()
    return Borrower(
        PodIdentity(*key, pod.uid if pod else min(kept, default="")),
        frozenset(containers),
        frozenset(cards),
        frozenset(one for one, name in ids if name in containers),
        frozenset(one for one, name in ids if name not in containers),
        uids,
        pod.spot_notice if pod else 0.0,
        pod.spot_grace if pod else 0.0,
    )
