"""Which slots are in use, which nobody needs any more, and which have forgotten what for."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from mizar_nodeagent.container.slots import Slot, is_slot_path
from mizar_nodeagent.kubelet.checkpoint_file import Entry
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Pod

# Longer than anything between an Allocate and the kubelet's record of it.
GRACE_S = 120.0


@dataclass(frozen=True)
class Recorded:
    """A slot that the kubelet's record names, for a pod that still is."""

    name: str
    entry: Entry


def recorded(entries: Iterable[Entry], pods: Iterable[Pod], root: Path) -> dict[str, Recorded]:
    """By slot name: what the kubelet's record says of pods that have not ended."""
    living = {uid for pod in pods if not pod.ended for uid in pod.uids}
    return {
        name: Recorded(name, entry)
        for entry in entries
        if entry.pod_uid in living
        for path in entry.mounts
        if (name := is_slot_path(root, path)) is not None
    }


def useless(
    slots: Iterable[Slot],
    known: Container[str],
    claims: Iterable[Claim],
    now: float,
    grace_s: float = GRACE_S,
) -> list[Slot]:
    """Slots that neither the kubelet's record (`known`, by name) nor any claim speaks for."""
    held = {(claim.resource, one): claim for claim in claims if claim.is_share for one in claim.ids}
    return [
        slot
        for slot in slots
        if now - slot.created > grace_s
        and slot.name not in known
        and not any(_speaks_for(held.get((slot.resource, one)), slot) for one in slot.ids)
    ]


def living(slots: Iterable[Slot], view: View) -> list[Slot]:
    """The newest slot of each container that holds devices now."""
    holding = {
        (claim.namespace, claim.pod, claim.container, claim.ids) for claim in view.live_claims()
    }
    newest = {
        (slot.owner.namespace, slot.owner.pod, slot.owner.container, slot.ids): slot
        for slot in slots
        if slot.owner is not None
    }
    return [slot for key, slot in newest.items() if key in holding]


def _speaks_for(claim: Claim | None, slot: Slot) -> bool:
    """Whether the slot may be the claiming pod's (any of its containers: init ones hold nothing
    in claims)."""
    if claim is None:
        return False
    owner = slot.owner
    return owner is None or (owner.namespace, owner.pod) == (claim.namespace, claim.pod)
