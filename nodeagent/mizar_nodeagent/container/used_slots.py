"""Finds the slots that containers use: those that the kubelet's record mounts, and those of
containers that hold devices now. slot_gc.py removes the others. Also finds, by the slots, the
devices of containers that the kubelet has forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from mizar_nodeagent.container.slots import Slot, slot_of_path
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod


def recorded_slots(entries: Iterable[Entry], pods: Iterable[Pod], root: Path) -> dict[str, Entry]:
    """The entries of the kubelet's record that mount a slot below `root`, by the slot's name; only
    those of pods that have not ended."""
    running = {uid for pod in pods if not pod.ended for uid in pod.uids}
    return {
        name: entry
        for entry in entries
        if entry.pod_uid in running
        for path in entry.mounts
        if (name := slot_of_path(root, path)) is not None
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


def claims_by_slots(
    slots: Iterable[Slot], pods: Mapping[Key, Pod], forgotten: Collection[Key]
) -> Iterator[Claim]:
    """The devices that started containers of these pods have, whose devices the kubelet has
    forgotten. Init containers are left out, as in the kubelet's own answers. So is a container that
    its pod does not have: it was another pod's of that name, whose UID was not known. `pods`: of
    the node."""
    found = set[tuple[Key, str, frozenset[str]]]()
    for slot in slots:
        owner = slot.owner
        if owner is None or (key := (owner.namespace, owner.pod)) not in forgotten:
            continue
        pod = pods.get(key)
        if pod is None or pod.ended or owner.pod_uid not in ("", *pod.uids):
            continue
        one = key, owner.container, slot.ids
        others = frozenset(pod.containers) - pod.init_containers
        if owner.container in others and slot.ids and one not in found:
            found.add(one)
            yield Claim(*key, owner.container, slot.resource, slot.ids)
