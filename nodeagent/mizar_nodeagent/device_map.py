"""Builds the device map for debugging: the cards of each shadow pod, the devices and shadow pods of
each share pod, and the state of each device. Served as JSON at /debug/devices:

    kubectl get --raw /api/v1/namespaces/mizar-system/pods/POD:9465/proxy/debug/devices
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mizar_core.device_ids import DeviceID
from mizar_core.models import Holder
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key

PATH = "/debug/devices"

Json = dict[str, Any]


def device_map(state: AgentState, slots: Iterable[Slot], now: float) -> Json:
    """The device map as of the last plan, as a JSON object. `now`: monotonic seconds; ages are in
    seconds."""
    snapshot, last = state.snapshot, state.last
    holders = snapshot.holders()
    excluded = last.excluded if last else {}
    return {
        "plannedSecondsAgo": round(now - snapshot.now, 3) if last else None,
        "kubeletAskedSecondsAgo": _age(now, snapshot.claims.asked_at),
        "apiServerHeard": snapshot.pods is not None,
        "cards": _cards(state),
        "shadowPods": [
            _shadow_pod(one, state, holders, excluded) for _, one in sorted(state.carvings.items())
        ],
        "sharePods": _share_pods(snapshot, slots),
        # Held devices on unknown cards: with any of these, a node carves nothing new.
        "devicesOfUnknownShadowPods": sorted(
            str(one) for one in holders if (one.namespace, one.shadow) not in state.carvings
        ),
    }


def _age(now: float, at: float) -> float | None:
    return None if at == float("-inf") else round(now - at, 3)


def _cards(state: AgentState) -> list[Json]:
    carved = {card.uuid: "/".join(one.key) for one in state.carvings.values() for card in one.cards}
    known = {card.uuid: card for one in state.carvings.values() for card in one.cards}
    return [
        {
            "uuid": uuid,
            "model": card.model,
            "memoryMiB": card.memory_bytes >> 20,
            "problem": card.problem,
            "shadowPod": carved.get(uuid),
        }
        for uuid, card in sorted({**known, **state.snapshot.cards}.items())
    ]


def _shadow_pod(
    carving: Carving,
    state: AgentState,
    holders: Mapping[DeviceID, Holder],
    excluded: Mapping[Key, Exception],
) -> Json:
    error = excluded.get(carving.key)
    listed = state.last.lists.get(carving.resource, ()) if state.last else ()
    healthy = {one.id: one.healthy for one in listed}
    kubelet = (state.snapshot.kubelet or {}).get(carving.resource, frozenset())
    return {
        "name": "/".join(carving.key),
        "podUID": carving.pod_uid,
        "resource": carving.resource,
        "stage": carving.stage.value,
        "confirmed": carving.confirmed,
        "planningError": None if error is None else repr(error),
        "cards": [card.uuid for card in carving.cards],
        "devices": [
            {
                "id": str(one),
                "card": carving.card(one).uuid,
                "state": _state(one, holders, state),
                "healthy": healthy.get(str(one), False),
                "healthyToKubelet": str(one) in kubelet,
                "holder": _holder(holders.get(one)),
            }
            for one in carving.ids
        ],
    }


def _state(device: DeviceID, holders: Mapping[DeviceID, Holder], state: AgentState) -> str:
    if device in holders:
        return "Held"
    return "Allocating" if device in state.allocating else "Free"


def _holder(holder: Holder | None) -> str | None:
    return None if holder is None else f"{holder.namespace}/{holder.name}/{holder.container}"


def _share_pods(snapshot: NodeSnapshot, slots: Iterable[Slot]) -> list[Json]:
    in_use = {
        (slot.owner.namespace, slot.owner.pod, slot.owner.container): slot
        for slot in slots_in_use(slots, snapshot)
        if slot.owner is not None
    }
    found: dict[Key, list[Json]] = {}
    for claim in snapshot.live_claims():
        if claim.is_share:
            slot = in_use.get((claim.namespace, claim.pod, claim.container))
            found.setdefault((claim.namespace, claim.pod), []).append(
                {
                    "container": claim.container,
                    "devices": sorted(claim.ids),
                    "shadowPods": sorted({_shadow_of(one) for one in claim.ids}),
                    "slot": slot.name if slot else None,
                    "shim": slot.shim if slot else None,
                }
            )
    return [{"name": "/".join(key), "containers": one} for key, one in sorted(found.items())]


def _shadow_of(device: str) -> str:
    return device.rpartition("-")[0]
