"""The slots that containers use: those that the kubelet's record mounts, and those of containers
that hold devices now. slot_gc.py removes the others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mizar_nodeagent.container.slots import Slot, is_slot_path
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod


def recorded_slots(entries: Iterable[Entry], pods: Iterable[Pod], root: Path) -> dict[str, Entry]:
    """The entries of the kubelet's record that mount a slot below `root`, by the slot's name; only
    those of pods that have not ended."""
    running = {uid for pod in pods if not pod.ended for uid in pod.uids}
    return {
        name: entry
        for entry in entries
        if entry.pod_uid in running
        for path in entry.mounts
        if (name := is_slot_path(root, path)) is not None
    }


def slots_in_use(slots: Iterable[Slot], snapshot: NodeSnapshot) -> list[Slot]:
    """The newest slot of each container that holds devices now."""
    holding = {
        (claim.namespace, claim.pod, claim.container, claim.ids) for claim in snapshot.live_claims()
    }
    newest = {
        (slot.owner.namespace, slot.owner.pod, slot.owner.container, slot.ids): slot
        for slot in slots
        if slot.owner is not None
    }
    return [slot for key, slot in newest.items() if key in holding]
