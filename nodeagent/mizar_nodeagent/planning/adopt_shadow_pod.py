"""Adopts a shadow pod: makes its carving once its cards are known and can be carved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mizar_core.device_ids import DeviceID
from mizar_core.errors import CarveRefused
from mizar_nodeagent.cards import Card
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod


@dataclass(frozen=True)
class Pending:
    """Why a shadow pod's devices cannot be offered yet: a reason and a sentence."""

    reason: str
    message: str


def adopt(pod: Pod, snapshot: NodeSnapshot, known: Mapping[Key, Carving]) -> Carving | Pending:
    """The carving of a shadow pod that has none yet, or why there is none."""
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


def _not_now(
    key: Key, uuids: list[str], snapshot: NodeSnapshot, known: Mapping[Key, Carving]
) -> Pending | None:
    if missing := [uuid for uuid in uuids if uuid not in snapshot.cards]:
        why = snapshot.cards_problem or "NVML does not list it"
        return Pending("CardFactsUnknown", f"nothing is known of {missing[0]}: {why}")
    earlier = known.get(key)
    if earlier is not None and not _is_out_of_use(earlier, snapshot):
        return Pending("DevicesInUse", "the devices of an earlier pod of this name are still held")
    for other in known.values():
        shared = sorted({card.uuid for card in other.cards} & set(uuids))
        if shared and not _is_out_of_use(other, snapshot):
            return Pending("DevicesInUse", f"{shared[0]} is still carved for {'/'.join(other.key)}")
    if stray := _stray(snapshot, known):
        return Pending("DevicesInUse", f"{stray} is still held, and nobody knows on which card")
    return None


def _stray(snapshot: NodeSnapshot, known: Mapping[Key, Carving]) -> DeviceID | None:
    """A held device of a shadow pod that is gone and has no carving, as after an agent lost its
    checkpoint: it may be on any card."""
    pods = snapshot.pods or {}
    keys = {device: (device.namespace, device.shadow) for device in snapshot.holders()}
    found = (
        device
        for device, key in keys.items()
        if key not in known and (key not in pods or pods[key].ended)
    )
    return min(found, default=None)


def _is_out_of_use(carving: Carving, snapshot: NodeSnapshot) -> bool:
    """Whether no device of it is held or will be: a leaving carving gives out none."""
    leaving = carving.stage is DrainStage.LEAVING and snapshot.claims.asked_at > carving.since
    return leaving and carving.idle_since is not None


def _held(uuid: str, snapshot: NodeSnapshot, claims: tuple[Claim, ...]) -> Card:
    numa = next(
        (nodes for claim in claims for one, nodes in claim.numa.items() if card_uuid(one) == uuid),
        (),
    )
    return replace(snapshot.cards[uuid].lasting(), numa=numa)


def card_uuid(device: str) -> str:
    """The card's UUID of a device ID of NVIDIA's plugin, which appends `::{n}` to replicas."""
    return device.partition("::")[0]
