"""From a shadow pod to its carving: which cards it holds, and whether they can be carved now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mizar_core.device_ids import DeviceID
from mizar_core.errors import CarveRefused
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.planning.carving import Carving, HeldCard, Stage
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Key, Pod


@dataclass(frozen=True)
class Pending:
    """Why a shadow pod's devices cannot be offered yet: a reason and a sentence."""

    reason: str
    message: str


def adopt(pod: Pod, view: View, known: Mapping[Key, Carving]) -> Carving | Pending:
    """The carving of a shadow pod that has none yet, or why there is none."""
    try:
        carve = pod.carve
        carve.check_tenant(pod.namespace)
    except CarveRefused as error:
        return Pending("CarveDamaged", str(error))
    claims = view.claims_of(pod, carve.physical_resource)
    uuids = sorted(plain(one) for claim in claims for one in claim.ids)
    if not uuids:
        return Pending("CardsUnknown", "the kubelet has given the shadow pod no card yet")
    if len(uuids) != carve.cards:
        return Pending("CardsUnknown", f"the pod holds {len(uuids)} cards, not {carve.cards}")
    if problem := _not_now(pod.key, uuids, view, known):
        return problem
    return Carving(
        namespace=pod.namespace,
        name=pod.name,
        pod_uid=pod.uid,
        owner_uid=pod.owner_uid,
        carve=carve,
        cards=tuple(_held(uuid, view, claims) for uuid in uuids),
        # Somebody may have been told already that nobody gets these devices any more.
        stage=Stage.BLOCKED if pod.drain else Stage.SERVING,
        since=view.now,
        drain=pod.drain,
        idle_since=view.time,
    )


def _not_now(
    key: Key, uuids: list[str], view: View, known: Mapping[Key, Carving]
) -> Pending | None:
    if missing := [uuid for uuid in uuids if uuid not in view.cards]:
        why = view.cards_problem or "NVML does not list it"
        return Pending("CardFactsUnknown", f"nothing is known of {missing[0]}: {why}")
    earlier = known.get(key)
    if earlier is not None and not _is_out_of_use(earlier, view):
        return Pending("DevicesInUse", "the devices of an earlier pod of this name are still held")
    for other in known.values():
        shared = sorted({card.uuid for card in other.cards} & set(uuids))
        if shared and not _is_out_of_use(other, view):
            return Pending("DevicesInUse", f"{shared[0]} is still carved for {'/'.join(other.key)}")
    if stray := _stray(view, known):
        return Pending("DevicesInUse", f"{stray} is still held, and nobody knows on which card")
    return None


def _stray(view: View, known: Mapping[Key, Carving]) -> DeviceID | None:
    """A device that somebody holds of a shadow pod that is gone and that nobody remembers, as when
    an agent lost its memory: its card may be any."""
    pods = view.pods or {}
    keys = {device: (device.namespace, device.shadow) for device in view.holders()}
    found = (
        device
        for device, key in keys.items()
        if key not in known and (key not in pods or pods[key].ended)
    )
    return min(found, default=None)


def _is_out_of_use(carving: Carving, view: View) -> bool:
    """Whether nobody holds a device, and nobody will: none is given out of a leaving one."""
    leaving = carving.stage is Stage.LEAVING and view.claims.asked_at > carving.since
    return leaving and carving.idle_since is not None


def _held(uuid: str, view: View, claims: tuple[Claim, ...]) -> HeldCard:
    facts = view.cards[uuid]
    numa = next(
        (nodes for claim in claims for one, nodes in claim.numa.items() if plain(one) == uuid), ()
    )
    return HeldCard(uuid, facts.name, facts.memory_bytes, facts.minor, numa)


def plain(device: str) -> str:
    """The card's UUID; replicas of the NVIDIA plugin's time-slicing carry `::{n}` behind it."""
    return device.partition("::")[0]
