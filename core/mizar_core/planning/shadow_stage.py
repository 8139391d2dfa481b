"""Where in its life a shadow pod is."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from enum import Enum, auto

from mizar_core.models import Phase
from mizar_core.planning.snapshot import ShadowView

AGENT_SILENT_AFTER = timedelta(seconds=60)
"""A node agent answers within a second or two; after this long it is not there."""


class Stage(Enum):
    """From the first to the last."""

    UNBORN = auto()
    """The ShadowPod is there, its pod not yet."""
    UNBOUND = auto()
    """The pod waits for the scheduler."""
    STARTING = auto()
    """The pod has a node; the node agent does not offer its devices (any more)."""
    READY = auto()
    """Devices are offered."""
    DRAINING = auto()
    """The node agent was asked to take the devices out of use."""
    LEAVING = auto()
    """The pod is being deleted because we want it."""
    LOST = auto()
    """The pod ended, was deleted by somebody else, or lost its cards; or its node is gone."""
    FINISHED = auto()
    """The pod is gone, and so may be the ShadowPod."""
    GONE = auto()
    """Nothing of ours keeps the ShadowPod any more."""


ON_ITS_WAY = frozenset({Stage.UNBORN, Stage.UNBOUND, Stage.STARTING})
LIVE = ON_ITS_WAY | {Stage.READY}
UNPLACED = frozenset({Stage.UNBORN, Stage.UNBOUND})


def stage_of(shadow: ShadowView, nodes: Container[str]) -> Stage:
    """The stage; `nodes` are the names of those that exist."""
    if shadow.pod is None:
        return _without_pod(shadow)
    if shadow.pod.deleting and shadow.deleting:
        return Stage.LEAVING
    if _lost(shadow, nodes):
        return Stage.LOST
    return _alive(shadow)


def _without_pod(shadow: ShadowView) -> Stage:
    if shadow.deleting:
        return Stage.FINISHED if shadow.finalizer else Stage.GONE
    # A phase or a node is only ever written once there was a pod.
    return Stage.UNBORN if shadow.phase is None and shadow.node is None else Stage.LOST


def _lost(shadow: ShadowView, nodes: Container[str]) -> bool:
    pod = shadow.pod
    assert pod is not None
    return (
        shadow.lost or pod.ended or pod.deleting or (pod.node is not None and pod.node not in nodes)
    )


def _alive(shadow: ShadowView) -> Stage:
    pod = shadow.pod
    assert pod is not None
    if pod.node is None:
        return Stage.UNBOUND
    if pod.drain_asked is not None:
        return Stage.DRAINING
    # After a cancelled drain the devices come back when the node agent has seen it.
    return Stage.READY if shadow.ready and not shadow.draining else Stage.STARTING


def phase_of(shadow: ShadowView, stage: Stage) -> Phase:
    """The phase that people see."""
    # While the pod goes, its containers end: that alone is no loss.
    if stage is Stage.LOST or (stage is Stage.LEAVING and shadow.phase == "Lost"):
        return "Lost"
    if shadow.deleting or stage in (Stage.DRAINING, Stage.LEAVING, Stage.FINISHED, Stage.GONE):
        return "Draining"
    return "Ready" if stage is Stage.READY else "Pending"


def is_silent(shadow: ShadowView, now: datetime) -> bool:
    """Whether the node agent should have offered the devices long ago."""
    until = patient_until(shadow)
    return until is not None and until <= now


def patient_until(shadow: ShadowView) -> datetime | None:
    """When the node agent is silent for too long; None while nothing is expected of it."""
    pod = shadow.pod
    if pod is None or pod.bound_at is None or shadow.ready or shadow.draining:
        return None
    return max(pod.bound_at, shadow.heard_at or pod.bound_at) + AGENT_SILENT_AFTER


def silence(shadow: ShadowView) -> str:
    """What to look at when the node agent does not answer."""
    return (
        f"shadow pod {shadow.name} is on node {shadow.place} and its devices are not offered: "
        "does mizar-nodeagent run there, and does the pod's container?"
    )
