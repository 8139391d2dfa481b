"""Decides which actions of a plan are not applied because earlier ones have failed."""

from __future__ import annotations

from mizar_core.planning.actions import (
    Action,
    CreatePod,
    CreateQuota,
    CreateShadow,
    EmitEvent,
    EvictShare,
    LetPreempt,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.snapshot import Key

STATUSES = (WriteShadowStatus, WriteQuotaStatus, WritePoolStatus)
"""Actions that only report a state: the next plan has them again, with newer values."""


class VoidedActions:
    """A failure voids the later actions of the same namespace and nothing else, so that one
    tenant's failures do not hold up the others.

    A failed creation voids less: further creations in the namespace, and actions about that shadow
    pod. Otherwise a tenant whose shadow pods cannot be created would keep those that it has. If the
    API server refuses to change a shadow pod, for example because of a new policy, only actions
    about that shadow pod are voided: the refusal may last, and the tenant's other pods still need
    events that say why they wait. Nothing depends on whether a gate was opened, and opening one
    depends on nothing else.
    """

    def __init__(self) -> None:
        self._namespaces: set[str] = set()
        self._creations: set[str] = set()
        self._reports: set[str] = set()
        self._shadows: set[Key] = set()

    def include(self, action: Action) -> bool:
        """Whether the action is not to be applied."""
        if isinstance(action, LetPreempt):
            return False
        namespace = _namespace(action)
        if namespace in self._namespaces or _shadow(action) in self._shadows:
            return True
        if isinstance(action, CreateShadow | CreatePod):
            voided = namespace in self._creations
            if voided and isinstance(action, CreateShadow):
                self._shadows.add(action.shadow)  # further actions would have no object
            return voided
        return namespace in self._reports and isinstance(action, (*STATUSES, EmitEvent))

    def note_failure(self, action: Action, *, planned_anew: bool) -> None:
        """Note that an action failed. `planned_anew`: whether the next plan follows at once and
        knows of the failure; statuses and events are left to it."""
        if isinstance(action, LetPreempt):
            return
        namespace = _namespace(action)
        if not isinstance(action, CreateShadow | CreatePod):
            self._namespaces.add(namespace)
            return
        self._creations.add(namespace)
        self._shadows.add(action.shadow)
        if planned_anew:
            self._reports.add(namespace)

    def note_refused_change(self, shadow: Key) -> None:
        """Note that the API server refuses to change the shadow pod."""
        self._shadows.add(shadow)

    def note_pools(self) -> None:
        """Note that the statuses of pools are wrong, since an action that they assume has
        failed."""
        self._namespaces.add("")


def _namespace(action: Action) -> str:
    match action:
        case WriteQuotaStatus() | CreateQuota():
            return action.quota[0]
        case WritePoolStatus():
            return ""
        case EmitEvent():
            return action.about[0]
        case EvictShare() | LetPreempt():
            return action.share[0]
        case _:
            return action.shadow[0]


def _shadow(action: Action) -> Key | None:
    """The ShadowPod that the action is about; None if it is about something else."""
    match action:
        case WriteQuotaStatus() | CreateQuota() | WritePoolStatus() | EvictShare() | LetPreempt():
            return None
        case EmitEvent():
            return action.about if action.kind == "ShadowPod" else None
        case _:
            return action.shadow
