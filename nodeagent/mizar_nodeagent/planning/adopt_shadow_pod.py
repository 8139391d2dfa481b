"""Adopts a new shadow pod: creates its carving once the kubelet has named its cards and these can
be divided into devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mizar_core.device_ids import DeviceID
from mizar_core.errors import CarveRefused
from mizar_core.names import DRA_DRIVER
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet.claims import Claim, card_uuid
from mizar_nodeagent.mig import PREFIX
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod

REPLICAS: Final = (
    "NVIDIA's plugin (sharing.timeSlicing or sharing.mps) or DRA driver gives a card to several "
    "pods here, so its holder does not have it alone; turn that off on this node, or leave the "
    "node out by the pool's nodeSelector"
)
"""What is wrong where a card is given to several pods, and what to do about it, as the end of a
message."""


@dataclass(frozen=True)
class Pending:
    """Why a shadow pod's devices cannot be offered yet: a condition's reason and message."""

    reason: str
    message: str


def adopt(pod: Pod, snapshot: NodeSnapshot, known: Mapping[Key, Carving]) -> Carving | Pending:
    """The new carving of a shadow pod that has none yet; Pending if its devices cannot be offered.
    `known`: the carvings of the node."""
    try:
        carve = pod.carve
        carve.check_tenant(pod.namespace)
    except CarveRefused as error:
        return Pending("CarveDamaged", str(error))
    claims = snapshot.claims_of(pod, carve.physical_resource)
    uuids = sorted(card_uuid(one) for claim in claims for one in claim.ids)
    if not uuids:
        return Pending("CardsUnknown", "the kubelet has given the shadow pod no card yet")
    if len(uuids) != carve.cards:
        return Pending("CardsUnknown", f"the pod holds {len(uuids)} cards, not {carve.cards}")
    if problem := _replicated(carve.physical_resource, claims, snapshot):
        return problem
    if problem := _not_now(pod.key, uuids, snapshot, known):
        return problem
    return Carving(
        namespace=pod.namespace,
        name=pod.name,
        pod_uid=pod.uid,
        owner_uid=pod.owner_uid,
        carve=carve,
        cards=tuple(_held(uuid, snapshot, claims) for uuid in uuids),
        # An earlier agent may have reported already that these devices are drained.
        stage=DrainStage.BLOCKED if pod.drain else DrainStage.SERVING,
        since=snapshot.now,
        drain=pod.drain,
        idle_since=snapshot.time,
    )


def _replicated(resource: str, claims: tuple[Claim, ...], snapshot: NodeSnapshot) -> Pending | None:
    """Why the cards must not be carved, if NVIDIA's plugin (by time slicing or MPS) or DRA driver
    gives one of them to several pods and another pod has it too; None if the shadow pod has its
    cards alone.

    Other shadow pods do not count: the first one gets the card, and the others find it carved."""
    own = {card_uuid(one): one for claim in claims for one in claim.ids}
    if len(own) < sum(len(claim.ids) for claim in claims):
        return Pending("CardReplicated", f"it holds a card twice: {REPLICAS}")
    for other in snapshot.live_claims():
        known = (snapshot.pods or {}).get((other.namespace, other.pod))
        if other.resource != resource or (known is not None and known.shadow):
            continue
        for one in sorted(other.ids):
            if card_uuid(one) in own and one != own[card_uuid(one)]:
                user = f"{other.namespace}/{other.pod}"
                return Pending(
                    "CardReplicated", f"pod {user} has card {card_uuid(one)} too: {REPLICAS}"
                )
    return None


def _not_now(
    key: Key, uuids: list[str], snapshot: NodeSnapshot, known: Mapping[Key, Carving]
) -> Pending | None:
    if missing := [uuid for uuid in uuids if uuid not in snapshot.cards]:
        return Pending("CardFactsUnknown", _not_known(missing[0], snapshot))
    earlier = known.get(key)
    if earlier is not None and not _is_out_of_use(earlier, snapshot):
        return Pending("DevicesInUse", "the devices of an earlier pod of this name are still held")
    for other in known.values():
        shared = sorted({card.uuid for card in other.cards} & set(uuids))
        if shared and not _is_out_of_use(other, snapshot):
            return Pending("DevicesInUse", f"{shared[0]} is still carved for {'/'.join(other.key)}")
    if stray := _stray(snapshot, known):
        return Pending("DevicesInUse", f"{stray} is still held, and its card is unknown")
    return None


def _not_known(uuid: str, snapshot: NodeSnapshot) -> str:
    if uuid.startswith(f"{DRA_DRIVER}/"):
        return (
            f"it is not known which card {uuid} is: kubectl get resourceslices shows whether "
            "NVIDIA's DRA driver announces it, and the node agent's log whether it can read them, "
            "and the pod's ResourceClaim"
        )
    why = snapshot.cards_problem or "NVML does not list it"
    if uuid.startswith(PREFIX) and not snapshot.cards_problem:
        why += (
            " to the node agent; nvidia-smi -L on the node shows its MIG devices: if this is one "
            "of them, the agent's container lacks the rights to it (NVIDIA_VISIBLE_DEVICES=all, "
            "and a driver from 470 on)"
        )
    return f"card {uuid} is not known: {why}"


def _stray(snapshot: NodeSnapshot, known: Mapping[Key, Carving]) -> DeviceID | None:
    """A held device whose shadow pod is gone and has no carving, which may be on any card; None if
    there is none. This happens after an agent lost its checkpoint."""
    pods = snapshot.pods or {}
    keys = {device: (device.namespace, device.shadow) for device in snapshot.holders()}
    found = (
        device
        for device, key in keys.items()
        if key not in known and (key not in pods or pods[key].ended)
    )
    return min(found, default=None)


def _is_out_of_use(carving: Carving, snapshot: NodeSnapshot) -> bool:
    """Whether no device of the carving is held or will be: it is leaving, and so gives out none,
    and the kubelet has said since that none is held."""
    leaving = carving.stage is DrainStage.LEAVING and snapshot.claims.asked_at > carving.since
    return leaving and carving.idle_since is not None


def _held(uuid: str, snapshot: NodeSnapshot, claims: tuple[Claim, ...]) -> Card:
    """The card as its carving keeps it. Its NUMA nodes are those that NVIDIA's plugin reported to
    the kubelet, or else those that NVML reports."""
    card = snapshot.cards[uuid].lasting()
    told = (claim.numa[one] for claim in claims for one in claim.numa if card_uuid(one) == uuid)
    return replace(card, numa=next(filter(None, told), card.numa))
