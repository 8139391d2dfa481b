"""How a carving goes from stage to stage. Nothing is given back that somebody may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mizar_core.device_ids import DeviceID
from mizar_core.models import Holder
from mizar_nodeagent.planning.carving import Carving, Stage
from mizar_nodeagent.planning.follow import close, follow
from mizar_nodeagent.planning.loss import watch
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Pod


@dataclass(frozen=True)
class Facts:
    """What a view says of one carving."""

    pod: Pod | None
    held: bool
    free: frozenset[int]
    in_kubelet: bool
    waited_for: bool
    lowered: bool
    sure_at: float


def facts_of(carving: Carving, view: View, holders: Mapping[DeviceID, Holder]) -> Facts:
    """`free`: indices of devices. `in_kubelet`: it takes a device for healthy, or has not said
    since the stage began. `lowered`: the node's status offers none of them. `sure_at`: for when
    claims are known."""
    known = view.kubelet is not None and view.kubelet_at > carving.since
    healthy = (view.kubelet or {}).get(carving.resource, frozenset())
    taken = [device in holders or device in view.allocating for device in carving.ids]
    return Facts(
        pod=_own_pod(carving, view),
        held=any(taken),
        free=frozenset(
            one.index for one, is_taken in zip(carving.ids, taken, strict=True) if not is_taken
        ),
        in_kubelet=not known or any(str(device) in healthy for device in carving.ids),
        waited_for=bool(view.waits(carving.resource)),
        lowered=view.node_at.get(carving.resource, float("-inf")) > carving.since,
        sure_at=view.claims.asked_at,
    )


def step(carving: Carving, facts: Facts, view: View) -> Carving | None:
    """The carving as it is now; None when it can be forgotten."""
    carving = _with_idle(_with_quiet(carving, facts, view.now), facts, view)
    if view.pods is not None and _is_leaving(facts.pod):
        return _leave(carving, facts, view)
    if facts.pod is None:
        return carving
    carving = watch(carving, view)
    if carving.taken_by:
        return _leave(carving, facts, view)
    carving = follow(carving, facts.pod)
    lowered_at = view.node_at.get(carving.resource, float("-inf"))
    carving = close(carving, facts.free, lowered_at, facts.sure_at, view)
    return _drain(carving, facts.pod.drain, facts, view)


def _own_pod(carving: Carving, view: View) -> Pod | None:
    pod = (view.pods or {}).get(carving.key)
    return pod if pod is not None and pod.uid == carving.pod_uid else None


def _is_leaving(pod: Pod | None) -> bool:
    return pod is None or pod.ended or pod.going


def _with_quiet(carving: Carving, facts: Facts, now: float) -> Carving:
    if carving.stage.healthy or facts.held or facts.in_kubelet:
        return replace(carving, quiet_since=None)
    return carving if carving.quiet_since is not None else replace(carving, quiet_since=now)


def _with_idle(carving: Carving, facts: Facts, view: View) -> Carving:
    if facts.held:
        return replace(carving, idle_since=None)
    return carving if carving.idle_since is not None else replace(carving, idle_since=view.time)


def _quiet_for(carving: Carving, facts: Facts, seconds: float, now: float) -> bool:
    """Whether nobody has held a device for so long, by an answer that covers all of that time."""
    start = carving.quiet_since
    return start is not None and min(now, facts.sure_at) - start >= seconds


def _leave(carving: Carving, facts: Facts, view: View) -> Carving | None:
    if carving.stage is not Stage.LEAVING:
        return _enter(carving, Stage.LEAVING, view.now)
    if facts.pod is None and _quiet_for(carving, facts, view.grace.leaving, view.now):
        return None
    return carving


def _drain(carving: Carving, asked: str, facts: Facts, view: View) -> Carving:
    now = view.now
    if asked != carving.drain:
        carving = replace(carving, drain=asked)
        if not asked:
            return _enter(carving, Stage.SERVING, now)
        # Another request while one is on its way changes nothing of the way.
        if carving.stage in (Stage.SERVING, Stage.IN_USE):
            return _enter(carving, Stage.IN_USE if facts.held else Stage.LOWERED, now)
    if carving.drain and facts.held and carving.stage is not Stage.IN_USE:
        return _enter(carving, Stage.IN_USE, now)
    if carving.stage is Stage.LOWERED and _may_block(carving, facts, view):
        return _enter(carving, Stage.BLOCKED, now)
    if carving.stage is Stage.BLOCKED and _quiet_for(carving, facts, view.grace.blocked, now):
        return _enter(carving, Stage.DRAINED, now)
    return carving


def _may_block(carving: Carving, facts: Facts, view: View) -> bool:
    settled = min(view.now, facts.sure_at) - carving.since >= view.grace.lowered
    return settled and facts.lowered and not facts.waited_for


def _enter(carving: Carving, stage: Stage, now: float) -> Carving:
    return replace(carving, stage=stage, since=now, quiet_since=None)
