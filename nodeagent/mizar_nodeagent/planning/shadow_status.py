"""The agent's part of each ShadowPod's status: cards, devices, holders and conditions.

shadow_status_writer.py writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Final

from mizar_core.carve import CardLimit
from mizar_core.condition import Condition, Status, set_condition
from mizar_core.device_ids import DeviceID
from mizar_core.models import CardStatus, DeviceStatus, Holder, ShadowPodStatus
from mizar_core.names import ConditionType, EventReason
from mizar_core.quantities import WHOLE_CARD, counted
from mizar_nodeagent.planning.adopt_shadow_pod import Pending
from mizar_nodeagent.planning.card_loss import gone_reason
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.device_lists import UNCONFIRMED, Device, card_problem
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot
from mizar_nodeagent.pods import Key, Pod

UNSAVED: Final = (
    "no container holds a device, but the node agent cannot write that to the node's disk yet: its "
    "log says why"
)
"""Message of the condition Draining while a complete drain cannot be saved."""


@dataclass(frozen=True)
class ConditionState:
    """A condition without its time of transition."""

    type: ConditionType
    status: Status
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """The agent's part of a ShadowPod's status. `uid`: the ShadowPod's UID, empty if not known.
    `idle_since`: since when no device has been held; None while one is. `failed`: what is wrong
    with each of its cards that have failed, by UUID; only events need this."""

    key: Key
    uid: str
    conditions: tuple[ConditionState, ...]
    cards: tuple[CardStatus, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()
    idle_since: datetime | None = None
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return self.conditions[0].status == "True"

    def without_promise(self) -> Report:
        """The report without the promise that the drain is complete, which the agent could not
        save."""
        state = ConditionState(ConditionType.DRAINING, "Unknown", "InProgress", UNSAVED)
        conditions = (state if one.type == state.type else one for one in self.conditions)
        return replace(self, conditions=tuple(conditions))

    def status(self, node: str, before: tuple[Condition, ...], now: datetime) -> ShadowPodStatus:
        """The status at the time `now`. Conditions that have not changed since `before` keep their
        transition times."""
        conditions: tuple[Condition, ...] = tuple(
            one for one in before if one.type in {state.type for state in self.conditions}
        )
        for state in self.conditions:
            conditions = set_condition(
                conditions, state.type, state.status, state.reason, state.message, now
            )
        return ShadowPodStatus(
            node=node,
            cards=self.cards,
            devices=self.devices,
            idle_since=self.idle_since,
            conditions=conditions,
        )


def of_pending(pod: Pod, pending: Pending) -> Report:
    """The report on a shadow pod whose devices are not offered yet."""
    return Report(
        key=pod.key,
        uid=pod.owner_uid,
        conditions=(
            ConditionState(ConditionType.READY, "False", pending.reason, pending.message),
            ConditionState(
                ConditionType.POD_IN_USING, "False", "NoDevices", "there is no device yet"
            ),
            ConditionState(ConditionType.HEALTHY, "Unknown", pending.reason, pending.message),
            ConditionState(ConditionType.DRAINING, *_draining_pending(pod, pending)),
        ),
    )


def of_carving(
    carving: Carving,
    listed: Mapping[str, Device],
    wanted: Counts | None,
    holders: Mapping[DeviceID, Holder],
    snapshot: NodeSnapshot,
) -> Report:
    """The report on a shadow pod. `listed`: the devices that the kubelet gets, by ID. `wanted`: the
    resource's counts that the node's status should have. `holders`: the holder of each held
    device."""
    held = {one: holders[one] for one in carving.ids if one in holders}
    failed = _failed(carving, snapshot)
    return Report(
        key=carving.key,
        uid=carving.owner_uid,
        cards=tuple(
            CardStatus(
                uuid=card.uuid,
                model=card.model,
                memory_mib=card.memory_bytes >> 20,
                index=index,
                lost=(card.uuid in carving.gone and not carving.is_lost) or None,
            )
            for index, card in enumerate(carving.cards)
        ),
        devices=_devices(
            carving.names,
            tuple(card.uuid for card in carving.device_cards),
            tuple(listed[name].healthy for name in carving.names),
            tuple(map(held.get, carving.ids)),
            tuple(carving.limits.get(card.uuid) for card in carving.device_cards),
        ),
        idle_since=carving.idle_since,
        failed=failed,
        conditions=(
            ConditionState(ConditionType.READY, *_ready(carving, listed, wanted, snapshot)),
            ConditionState(ConditionType.POD_IN_USING, *_in_using(carving, held, snapshot)),
            ConditionState(ConditionType.HEALTHY, *_healthy(failed)),
            ConditionState(ConditionType.DRAINING, *_draining(carving)),
        ),
    )


# Most devices are the same from one plan to the next, and validating a model's fields is slow.
@lru_cache(maxsize=256)
def _devices(
    devices: tuple[str, ...],
    cards: tuple[str, ...],
    healthy: tuple[bool, ...],
    holders: tuple[Holder | None, ...],
    limits: tuple[CardLimit | None, ...],
) -> tuple[DeviceStatus, ...]:
    return tuple(map(_device, devices, cards, healthy, holders, limits))


@lru_cache(maxsize=4096)
def _device(
    device: str, card: str, healthy: bool, holder: Holder | None, limit: CardLimit | None
) -> DeviceStatus:
    return DeviceStatus(
        id=device,
        card=card,
        health="Healthy" if healthy else "Unhealthy",
        memory_mib=limit.memory_bytes >> 20 if limit else None,
        compute_percent=_percent(limit) if limit else None,
        holder=holder,
    )


def _percent(limit: CardLimit) -> int | None:
    return None if limit.compute_mode == "None" else 100 * limit.core_share // WHOLE_CARD


_Condition = tuple[Status, str, str]


def _ready(
    carving: Carving, listed: Mapping[str, Device], wanted: Counts | None, snapshot: NodeSnapshot
) -> _Condition:
    if carving.taken_by:
        return (
            "False",
            EventReason.CARD_LOST,
            f"the kubelet gave its card to pod {carving.taken_by}",
        )
    if carving.is_lost:
        return "False", EventReason.CARD_LOST, f"card {gone_reason(carving.gone)}"
    if not carving.stage.offered:
        return "False", carving.stage.value, _STAGE_MESSAGES[carving.stage]
    if not carving.confirmed:
        return "False", "Unconfirmed", UNCONFIRMED
    own = [name for name in carving.names if listed[name].healthy]
    if not own:
        return "False", "Unhealthy", "no device of it can be used"
    if snapshot.kubelet is None:
        return "Unknown", "KubeletAway", "the kubelet does not say which devices it has"
    kubelet = snapshot.kubelet.get(carving.resource, frozenset())
    if not kubelet.issuperset(own):
        return "False", "NotAdvertised", "the kubelet does not have the devices yet"
    if snapshot.node.get(carving.resource) != wanted:
        return "False", "NotAdvertised", "the node's status does not show the devices yet"
    remark = _start_remark(carving, snapshot)
    offers = f"offers {counted(len(own), 'device')} of {carving.resource}"
    return "True", "Serving", f"{offers}{remark}"


def _start_remark(carving: Carving, snapshot: NodeSnapshot) -> str:
    """What users should know of a shadow pod whose container cannot start. It holds its cards all
    the same. The kubelet's own message is left out, since it changes with each try."""
    pod = (snapshot.pods or {}).get(carving.key)
    if pod is None or not pod.cannot_start:
        return ""
    return (
        f"; its container does not start (kubectl describe pod {carving.name} says why), and "
        "Kubernetes protects a pod that has never run less from evictions"
    )


def _in_using(
    carving: Carving, held: Mapping[DeviceID, Holder], snapshot: NodeSnapshot
) -> _Condition:
    if held:
        pods = sorted({f"{one.namespace}/{one.name}" for one in held.values()})
        return "True", "Held", f"{len(held)} of {len(carving.ids)} devices: {', '.join(pods)}"
    if not snapshot.allocating.isdisjoint(carving.ids):
        return "True", "Allocating", "a container is being given a device"
    return "False", "Idle", "no container holds a device"


def _failed(carving: Carving, snapshot: NodeSnapshot) -> dict[str, str]:
    """What is wrong with each of its cards that have failed, by UUID."""
    return {
        card.uuid: problem
        for card in carving.cards
        if (problem := card_problem(carving, card, snapshot))
    }


def _healthy(failed: Mapping[str, str]) -> _Condition:
    if failed:
        told = (f"{uuid}: {problem}" for uuid, problem in failed.items())
        return "False", "CardFailed", "; ".join(told)
    return "True", "CardsWell", "all cards answer"


def _draining(carving: Carving) -> _Condition:
    match carving.stage:
        case DrainStage.DRAINED:
            return "True", "Drained", "no container holds a device, and none will get one"
        case DrainStage.IN_USE:
            return "False", "InUse", "a container holds a device: the devices are offered again"
        case DrainStage.LOWERED | DrainStage.BLOCKED:
            return "Unknown", "InProgress", _STAGE_MESSAGES[carving.stage]
    if carving.carve.closed:
        return (
            "False",
            "Closed",
            "it takes no new pods, and is deleted when the pods that use it have ended",
        )
    return "False", "NotAsked", ""


def _draining_pending(pod: Pod, pending: Pending) -> _Condition:
    if not pod.drain:
        return "False", "NotAsked", ""
    if pending.reason == "DevicesInUse":
        return "False", "InUse", pending.message
    return "True", "Drained", "it never offered a device, and will not while it is drained"


_STAGE_MESSAGES = {
    DrainStage.LOWERED: "its devices are withdrawn from the node's status",
    DrainStage.BLOCKED: "the kubelet allocates no more of its devices; one may still be in use",
    DrainStage.DRAINED: "drained: no container can get its devices",
    DrainStage.LEAVING: "the shadow pod is being deleted or is gone",
}
