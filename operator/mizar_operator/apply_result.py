"""The outcome of a plan's actions, which the next plan needs: what the API server carried out,
refused, or did not answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from mizar_core.planning.actions import (
    Action,
    CancelDrain,
    CreatePod,
    CreateQuota,
    CreateShadow,
    Drain,
    EmitEvent,
    Recarve,
    SetInUse,
)
from mizar_core.planning.snapshot import Key
from mizar_kube.errors import KubeError, Unavailable, is_refusal
from mizar_operator.shadow_creation import NameTaken
from mizar_operator.snapshot_index import SnapshotIndex

CREATIONS = CreateShadow | CreatePod
"""Actions that create a part of a shadow pod."""
CHANGES = Drain | CancelDrain | SetInUse | Recarve
"""Actions that change the pod of a shadow pod."""

TERMINATING = "because it is being terminated"
"""Part of the API server's message about a namespace that is being deleted, whose GPUQuota will be
gone in a moment."""


@dataclass
class Result:
    """The result of applying a plan.

    `errors`: those that are neither refusals nor about a namespace that is being deleted. `used`:
    UIDs of shadow pods that turned out to be in use. `refused`: the API server's message about
    shadow pods and default quotas that it refuses to create, by quota and devices. `names_taken`:
    shadow pods that were not created because another client's object has the name. `unanswered`:
    (quota, devices, sequence) of shadow pods whose creation got no answer. `unchangeable`: shadow
    pods that the API server refuses to change. `announced`: the posted events. `postponed`: whether
    statuses were left to the next plan. `done`: the actions that the API server carried out;
    `failed`: those that it refused, or that were given up because a pod uses the shadow pod."""

    errors: list[Exception] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    refused: dict[tuple[Key, int], str] = field(default_factory=dict)
    names_taken: set[Key] = field(default_factory=set)
    unanswered: set[tuple[Key, int, int]] = field(default_factory=set)
    unchangeable: set[Key] = field(default_factory=set)
    announced: list[EmitEvent] = field(default_factory=list)
    postponed: bool = False
    done: list[Action] = field(default_factory=list)
    failed: list[Action] = field(default_factory=list)

    def note_error(self, index: SnapshotIndex, action: Action, error: KubeError) -> None:
        """Note the error by which the action failed."""
        if isinstance(action, CREATIONS) and isinstance(error, NameTaken):
            self.names_taken.add(action.shadow)
        elif isinstance(action, CreateQuota | CreateShadow | CreatePod) and is_refusal(error):
            self.refused[index.quota_and_devices(action)] = str(error)
        elif is_terminating(error):
            return
        else:
            self.errors.append(error)
        if isinstance(action, CHANGES) and is_refusal(error):
            self.unchangeable.add(action.shadow)
        if isinstance(action, CreateShadow) and isinstance(error, Unavailable):
            self.unanswered.add((*index.quota_and_devices(action), action.sequence))

    @property
    def refused_quotas(self) -> list[tuple[Key, int]]:
        """The keys of `refused`, without those in namespaces that are being deleted."""
        return [key for key, message in self.refused.items() if not is_terminating(message)]

    def tells_next_plan(self, index: SnapshotIndex, action: Action) -> bool:
        """Whether the next plan follows at once and knows that the shadow pod was not created."""
        return isinstance(action, CREATIONS) and (
            action.shadow in self.names_taken or index.quota_and_devices(action) in self.refused
        )


def is_terminating(error: KubeError | str) -> bool:
    """Whether the API server refuses to create an object in a namespace that is being deleted."""
    return TERMINATING in str(error)
