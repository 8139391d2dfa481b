"""Determines the stage of a shadow pod's life from the API server's objects, and the phase that
users see. For the node agent's stages of a drain see docs/adr/0008."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from enum import Enum, auto

from mizar_core.models import Phase
from mizar_core.planning.snapshot import NodeView, PodView, ShadowView, ShareView

AGENT_SILENT_AFTER = timedelta(seconds=60)
"""How long a node agent may be silent before it counts as absent; it usually answers within two
seconds."""

DRAIN_STALLED_AFTER = timedelta(minutes=10)
"""How long a drain that the node agent works on may take: it waits for pods that are being
started."""

REFUSED_AGAIN_AFTER = timedelta(seconds=10)
"""How long no other shadow pod takes the place of one that its kubelet has refused: the scheduler
would most likely choose the same node, and the kubelet refuse that one too."""

FAILED_AGAIN_AFTER = timedelta(seconds=45)
"""How long after its start a shadow pod whose cards have all failed keeps its place, which it gave
up within four seconds otherwise: NVIDIA's plugin does not see every failure, and would give the
same cards to the next one. Less than AGENT_SILENT_AFTER, since its node agent is not silent."""


class ShadowStage(Enum):
    """The stages in their usual order."""

    # Plans look stages up in sets many times for each shadow pod; Enum's own method is slow Python.
    __hash__ = object.__hash__

    NO_POD = auto()
    """The ShadowPod exists, its pod does not yet."""
    UNSCHEDULED = auto()
    """The pod waits for the scheduler."""
    STARTING = auto()
    """The pod has a node; the node agent does not offer its devices (any more)."""
    READY = auto()
    """Devices are offered."""
    DRAINING = auto()
    """The node agent was asked to take the devices out of use."""
    LEAVING = auto()
    """The pod is being deleted by the operator."""
    LOST = auto()
    """The pod ended, was deleted by another client, or lost its cards; or its node is gone."""
    FINISHED = auto()
    """The pod is gone, and the ShadowPod may go."""
    GONE = auto()
    """Mizar's finalizer is gone from the ShadowPod."""


ON_ITS_WAY = frozenset({ShadowStage.NO_POD, ShadowStage.UNSCHEDULED, ShadowStage.STARTING})
LIVE = ON_ITS_WAY | {ShadowStage.READY}
UNPLACED = frozenset({ShadowStage.NO_POD, ShadowStage.UNSCHEDULED})


def stage_of(shadow: ShadowView, nodes: Container[str]) -> ShadowStage:
    """The shadow pod's stage. `nodes`: the names of all nodes that exist."""
    if shadow.pod is None:
        return _without_pod(shadow)
    if shadow.pod.deleting and shadow.deleting:
        return ShadowStage.LEAVING
    if _lost(shadow, nodes):
        return ShadowStage.LOST
    return _with_pod(shadow)


def _without_pod(shadow: ShadowView) -> ShadowStage:
    if shadow.deleting:
        return ShadowStage.FINISHED if shadow.finalizer else ShadowStage.GONE
    # A phase or a node is only ever written once there was a pod.
    return ShadowStage.NO_POD if shadow.phase is None and shadow.node is None else ShadowStage.LOST


def _lost(shadow: ShadowView, nodes: Container[str]) -> bool:
    pod = shadow.pod
    assert pod is not None
    place = shadow.on_node
    return shadow.lost or pod.ended or pod.deleting or (place is not None and place not in nodes)


def _with_pod(shadow: ShadowView) -> ShadowStage:
    pod = shadow.pod
    assert pod is not None
    # The node agent's report may be known before the pod's binding, which came first.
    if shadow.on_node is None:
        return ShadowStage.UNSCHEDULED
    if pod.drain_asked is not None:
        return ShadowStage.DRAINING
    # After a cancelled drain, the devices are offered again once the node agent has noticed.
    return ShadowStage.READY if shadow.ready and not shadow.draining else ShadowStage.STARTING


def stranded_at(pod: PodView | ShareView | None, node: NodeView | None) -> datetime | None:
    """When a pod that is being deleted stops counting, since its `node` is gone or takes no pods
    and does not confirm that the pod has ended; None if it continues to count. Kubernetes keeps
    such a pod until the node is back or deleted."""
    if pod is None or not pod.deleting or pod.node is None:
        return None
    return pod.overdue_at if node is None or not node.available else None


def phase_of(shadow: ShadowView, stage: ShadowStage) -> Phase:
    """The phase that users see."""
    # The containers of a pod that is being deleted end; that alone is no loss.
    if stage is ShadowStage.LOST or (stage is ShadowStage.LEAVING and shadow.phase == "Lost"):
        return "Lost"
    if shadow.deleting or stage in (
        ShadowStage.DRAINING,
        ShadowStage.LEAVING,
        ShadowStage.FINISHED,
        ShadowStage.GONE,
    ):
        return "Draining"
    return "Ready" if stage is ShadowStage.READY else "Pending"


def is_agent_silent(shadow: ShadowView, now: datetime) -> bool:
    """Whether the node agent is overdue with offering the devices or with the next step of their
    drain, so that it counts as silent."""
    until = agent_expected_by(shadow)
    return until is not None and until <= now


def agent_expected_by(shadow: ShadowView) -> datetime | None:
    """When the node agent must have offered the devices or taken the next step of their drain; from
    then on it counts as silent. None while nothing is expected of it."""
    pod = shadow.pod
    if pod is None or pod.bound_at is None:
        return None
    if not shadow.ready and not shadow.draining:
        return max(pod.bound_at, shadow.heard_at or pod.bound_at) + AGENT_SILENT_AFTER
    if pod.drain_asked is None or shadow.drained or shadow.held:
        return None
    if shadow.draining:
        return max(pod.drain_asked, shadow.heard_at or pod.drain_asked) + DRAIN_STALLED_AFTER
    answered = shadow.heard_at is not None and shadow.heard_at > pod.drain_asked
    return None if answered else pod.drain_asked + AGENT_SILENT_AFTER


def never_offered(shadow: ShadowView) -> bool:
    """Whether no node agent has ever carved its cards, so that its devices were never offered."""
    return shadow.idle_since is None and not (shadow.healthy or shadow.held)


def never_reported(shadow: ShadowView) -> bool:
    """Whether no node agent has ever reported on the shadow pod."""
    return shadow.node is None and shadow.heard_at is None and never_offered(shadow)


def retried_at(shadow: ShadowView) -> datetime | None:
    """When another shadow pod may take the place of one that its kubelet has refused, or that ended
    before its devices were ever offered; None for any other."""
    pod = shadow.pod
    if pod is None or pod.phase != "Failed" or pod.deleting or pod.bound_at is None:
        return None
    return pod.bound_at + REFUSED_AGAIN_AFTER if never_offered(shadow) else None


def failed_until(shadow: ShadowView) -> datetime | None:
    """Until when a shadow pod whose cards have all failed keeps its place; None for any other."""
    if not shadow.all_failed or shadow.pod is None or shadow.pod.bound_at is None:
        return None
    return shadow.pod.bound_at + FAILED_AGAIN_AFTER


def drain_unanswered_at(shadow: ShadowView) -> datetime | None:
    """When the drain of a shadow pod that no node agent has reported on counts as unanswered: an
    agent that starts by then sees the drain first, and never offers the devices."""
    pod = shadow.pod
    if pod is None or pod.drain_asked is None or not never_reported(shadow):
        return None
    return pod.drain_asked + AGENT_SILENT_AFTER


def agent_silence(shadow: ShadowView) -> str:
    """A sentence for users about a node agent that does not offer the devices or does not confirm
    their end: its own reason if it has reported one, else what to check."""
    if shadow.ready or shadow.draining:
        return (
            f"shadow pod {shadow.name} on node {shadow.on_node} is to give back its cards, but the "
            "node agent does not confirm that its devices are out of use: check that "
            "mizar-nodeagent runs there"
        )
    check = "check that mizar-nodeagent and the pod's container run there"
    return (
        f"shadow pod {shadow.name} is on node {shadow.on_node} and its devices are not offered: "
        f"{shadow.not_ready_because or check}"
    )
