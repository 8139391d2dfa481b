"""Decides when a carving moves from one drain stage to the next. No card is given back while one of
its devices may be held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mizar_core.device_ids import DeviceID
from mizar_core.models import Holder
from mizar_nodeagent.planning.card_loss import note_gone_cards, note_taken_card
from mizar_nodeagent.planning.carve_update import close, update_carve
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.confirmation import confirm
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod


@dataclass(frozen=True)
class Facts:
    """The facts about one carving in a snapshot that decide its next stage.

    `pod`: its shadow pod, None if there is none or pods are not known. `held`: a device is held or
    being allocated. `free`: indices of the devices that are neither. `in_kubelet`: the kubelet
    considers a device healthy, or has not been asked since the stage began. `waited_for`: a bound
    pod waits for the resource, or did at the last step. `lowered`: a write of the node's status
    that began after the stage did is confirmed, so the status offers none of the devices.
    `sure_at`: the time for which claims are known (monotonic seconds).
    """

    pod: Pod | None
    held: bool
    free: frozenset[int]
    in_kubelet: bool
    waited_for: bool
    lowered: bool
    sure_at: float


def facts_of(carving: Carving, snapshot: NodeSnapshot, holders: Mapping[DeviceID, Holder]) -> Facts:
    """The facts about a carving. `holders`: the holder of each held device of the node."""
    known = snapshot.kubelet is not None and snapshot.kubelet_at > carving.since
    healthy = (snapshot.kubelet or {}).get(carving.resource, frozenset())
    taken = [device in holders or device in snapshot.allocating for device in carving.ids]
    return Facts(
        pod=_own_pod(carving, snapshot),
        held=any(taken),
        free=frozenset(
            one.index for one, is_taken in zip(carving.ids, taken, strict=True) if not is_taken
        ),
        in_kubelet=not known or not healthy.isdisjoint(carving.names),
        waited_for=carving.kept_up or bool(snapshot.waiting_pods(carving.resource)),
        lowered=snapshot.node_at.get(carving.resource, float("-inf")) > carving.since,
        sure_at=snapshot.claims.asked_at,
    )


def step(carving: Carving, facts: Facts, snapshot: NodeSnapshot) -> Carving | None:
    """The carving in its next state; None if it is not needed any more or must be adopted anew."""
    carving = _with_idle(_with_quiet(carving, facts, snapshot.now), facts, snapshot)
    if snapshot.pods is not None and _is_leaving(facts.pod):
        return _leave(carving, facts, snapshot)
    confirmed = confirm(carving, facts.held, snapshot)
    if facts.pod is None or confirmed is None:
        return confirmed
    carving = note_gone_cards(note_taken_card(confirmed, snapshot), facts.free, snapshot)
    if carving.is_lost:
        return _leave(carving, facts, snapshot)
    carving = update_carve(carving, facts.pod)
    lowered_at = snapshot.node_at.get(carving.resource, float("-inf"))
    carving = close(
        carving, facts.free, lowered_at, facts.sure_at, snapshot, waited_for=facts.waited_for
    )
    return _with_count(_drain(carving, facts.pod.drain, facts, snapshot), snapshot)


def _own_pod(carving: Carving, snapshot: NodeSnapshot) -> Pod | None:
    pod = (snapshot.pods or {}).get(carving.key)
    return pod if pod is not None and pod.uid == carving.pod_uid else None


def _is_leaving(pod: Pod | None) -> bool:
    return pod is None or pod.ended or pod.terminating


def _with_quiet(carving: Carving, facts: Facts, now: float) -> Carving:
    if carving.stage.healthy or facts.held or facts.in_kubelet:
        return carving.changed(quiet_since=None)
    return carving if carving.quiet_since is not None else replace(carving, quiet_since=now)


def _with_idle(carving: Carving, facts: Facts, snapshot: NodeSnapshot) -> Carving:
    if facts.held:
        return carving.changed(idle_since=None)
    return carving if carving.idle_since is not None else replace(carving, idle_since=snapshot.time)


def _with_count(carving: Carving, snapshot: NodeSnapshot) -> Carving:
    lowered = carving.stage is DrainStage.LOWERED or carving.closing_since is not None
    return carving.changed(kept_up=lowered and bool(snapshot.waiting_pods(carving.resource)))


def _quiet_for(carving: Carving, facts: Facts, seconds: float, now: float) -> bool:
    """Whether `quiet_since` is so many seconds ago, and claims cover all of that time."""
    start = carving.quiet_since
    return start is not None and min(now, facts.sure_at) - start >= seconds


def _leave(carving: Carving, facts: Facts, snapshot: NodeSnapshot) -> Carving | None:
    if carving.stage is not DrainStage.LEAVING:
        return _enter(carving, DrainStage.LEAVING, snapshot.now)
    if facts.pod is None and _quiet_for(carving, facts, snapshot.grace.leaving, snapshot.now):
        return None
    return carving


def _drain(carving: Carving, asked: str, facts: Facts, snapshot: NodeSnapshot) -> Carving:
    now = snapshot.now
    if asked != carving.drain:
        carving = replace(carving, drain=asked)
        if not asked:
            return _enter(carving, DrainStage.SERVING, now)
        # Another request during a drain changes nothing.
        if carving.stage in (DrainStage.SERVING, DrainStage.IN_USE):
            return _enter(carving, DrainStage.IN_USE if facts.held else DrainStage.LOWERED, now)
    if carving.drain and facts.held and carving.stage is not DrainStage.IN_USE:
        return _enter(carving, DrainStage.IN_USE, now)
    if carving.stage is DrainStage.LOWERED and facts.waited_for:
        # The count was kept up until now for waiting pods, and must be lowered first.
        return _enter(carving, DrainStage.LOWERED, now)
    if carving.stage is DrainStage.LOWERED and _may_block(carving, facts, snapshot):
        return _enter(carving, DrainStage.BLOCKED, now)
    if carving.stage is DrainStage.BLOCKED and _quiet_for(
        carving, facts, snapshot.grace.blocked, now
    ):
        return _enter(carving, DrainStage.DRAINED, now)
    return carving


def _may_block(carving: Carving, facts: Facts, snapshot: NodeSnapshot) -> bool:
    settled = min(snapshot.now, facts.sure_at) - carving.since >= snapshot.grace.lowered
    return settled and facts.lowered


def _enter(carving: Carving, stage: DrainStage, now: float) -> Carving:
    return replace(carving, stage=stage, since=now, quiet_since=None)
