"""The actions of a plan. Each can be repeated without harm."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from mizar_core.carve import Carve
from mizar_core.condition import Condition
from mizar_core.models import GPUPoolStatus, GPUQuotaStatus, Phase
from mizar_core.names import CreationReason, EventReason, ReapReason
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import Announcement, Attempt, Key, Subject, Wording


@dataclass(frozen=True, slots=True)
class CreateShadow:
    """Create the ShadowPod and its pod.

    `needs`: the pod's constraints on its node.
    """

    shadow: Key
    pool: str
    quota: str
    quota_uid: str
    resource: str
    devices: int
    cards: int
    sequence: int
    needs: Needs
    reason: CreationReason


@dataclass(frozen=True, slots=True)
class CreateQuota:
    """Create the pool's default quota in a namespace. Shadow pods follow in the next plan, since
    their owner is the quota, whose UID only the API server knows."""

    quota: Key
    pool: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod of a ShadowPod that has none yet."""

    shadow: Key
    needs: Needs


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the node agent to take the devices out of use. `at`: the time of the plan."""

    shadow: Key
    at: datetime
    reason: ReapReason


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Ask the node agent to offer the devices again."""

    shadow: Key


@dataclass(frozen=True, slots=True)
class SetInUse:
    """Set or remove the mark of a pod in use, which keeps evictions and autoscalers away."""

    shadow: Key
    in_use: bool


@dataclass(frozen=True, slots=True)
class Recarve:
    """Give the node agent new limits for the cards that the shadow pod holds."""

    shadow: Key
    carve: Carve


@dataclass(frozen=True, slots=True)
class DeleteShadow:
    """Delete the pod, then the ShadowPod, if a live read from the API server shows that no pod uses
    them. `reason`: None for a lost shadow pod, and where the drain already had a reason."""

    shadow: Key
    reason: ReapReason | None = None


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the finalizer of a ShadowPod whose pod is gone."""

    shadow: Key


@dataclass(frozen=True, slots=True)
class EvictShare:
    """Evict a share pod that has lost its card, or that can never start with its devices, so that
    its controller replaces it."""

    share: Key
    uid: str


@dataclass(frozen=True, slots=True)
class LetPreempt:
    """Remove Mizar's scheduling gate from a share pod that may preempt others."""

    share: Key
    uid: str


@dataclass(frozen=True, slots=True)
class WriteShadowStatus:
    """The operator's part of a ShadowPod's status. `phase`: None as long as it has never had a
    pod."""

    shadow: Key
    phase: Phase | None
    scheduled: Condition


@dataclass(frozen=True, slots=True)
class WriteQuotaStatus:
    """The whole status of a GPUQuota."""

    quota: Key
    status: GPUQuotaStatus


@dataclass(frozen=True, slots=True)
class WritePoolStatus:
    """The whole status of a GPUPool."""

    pool: str
    status: GPUPoolStatus


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An event on an object. It is not posted if another event of its subject, or the same message,
    was posted recently."""

    kind: Literal["Pod", "ShadowPod", "GPUQuota"]
    about: Key
    uid: str
    type: Literal["Normal", "Warning"]
    reason: EventReason
    message: str

    @property
    def subject(self) -> Subject:
        """The UID of the event's object and the event's reason, whatever its message."""
        return self.uid, str(self.reason)

    @property
    def wording(self) -> Wording:
        """The subject and a digest of the message; the digest differs between processes."""
        return self.uid, str(self.reason), hash(self.message)

    def is_announced(self, announced: Container[Announcement]) -> bool:
        """Whether `announced` has its subject or its message, so that it must not be posted yet."""
        return self.subject in announced or self.wording in announced

    def is_held_back(self, announced: Container[Announcement]) -> bool:
        """Whether its message is new, and it waits only because another message about its subject
        was posted recently."""
        return self.subject in announced and self.wording not in announced


Action = (
    CreateQuota
    | CreateShadow
    | CreatePod
    | Drain
    | CancelDrain
    | SetInUse
    | Recarve
    | DeleteShadow
    | RemoveFinalizer
    | WriteShadowStatus
    | WriteQuotaStatus
    | WritePoolStatus
    | EmitEvent
    | EvictShare
    | LetPreempt
)
"""Any action. Actions are applied in the order of the plan; a failure voids later ones of the same
namespace, the failed creation of a shadow pod not all of them: see voided_actions.py of the
operator."""

ShadowAction = (
    CreateShadow
    | CreatePod
    | Drain
    | CancelDrain
    | SetInUse
    | Recarve
    | DeleteShadow
    | RemoveFinalizer
    | WriteShadowStatus
)
"""An action that changes one ShadowPod."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions in order. `due`: when to plan again even if nothing changes. `quotas`: the status
    of every quota. `waiting`: the UIDs of the share pods that wait, by (namespace, reason).
    `held_back`: the subjects of new messages that wait because an earlier one was posted recently.

    For the next snapshot, `free`: how many devices of a resource are free on a node, `attempts`:
    the attempts that may turn out not to help, `refused_nodes`: the nodes that the scheduler
    refuses a waiting share pod, by its (UID, resource), `silent_nodes`: the nodes whose agents are
    silent now, `heard_nodes`: those that were silent and have been heard from since, and `freed`:
    the physical resources of which cards are being freed.

    `unsettled`: shadow pods about which the steps of the plan disagree until the end, so that
    planning again would go on with it. Always empty, unless planning has a bug.
    """

    actions: tuple[Action, ...]
    due: datetime | None = None
    quotas: Mapping[Key, GPUQuotaStatus] = field(default_factory=dict)
    waiting: Mapping[tuple[str, ...], Sequence[str]] = field(default_factory=dict)
    held_back: frozenset[Subject] = frozenset()
    free: Mapping[tuple[str, str], int] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    refused_nodes: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    silent_nodes: Mapping[str, datetime] = field(default_factory=dict)
    heard_nodes: frozenset[str] = frozenset()
    freed: frozenset[str] = frozenset()
    unsettled: frozenset[Key] = frozenset()
