"""Projection: the state of a shadow pod after an action is applied and nothing else has
happened."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from mizar_core.planning.actions import (
    CancelDrain,
    CreatePod,
    CreateShadow,
    DeleteShadow,
    Drain,
    Recarve,
    RemoveFinalizer,
    SetInUse,
    ShadowAction,
    WriteShadowStatus,
)
from mizar_core.planning.snapshot import PodView, ShadowView


def project(shadow: ShadowView | None, action: ShadowAction) -> ShadowView | None:
    """The shadow pod right after the action; None if there is none then."""
    if isinstance(action, CreateShadow):
        return _created(action)
    if shadow is None:
        return None
    match action:
        case CreatePod():
            return replace(shadow, pod=PodView(needs=action.needs))
        case Drain():
            return _with_pod(shadow, drain_asked=action.at)
        case CancelDrain():
            return _with_pod(shadow, drain_asked=None)
        case SetInUse():
            return _with_pod(shadow, in_use=action.in_use)
        case Recarve():
            return _with_pod(shadow, carve=action.carve.to_json())
        case DeleteShadow():
            return _with_pod(replace(shadow, deleting=True), deleting=True) if shadow.pod else None
        case RemoveFinalizer():
            return None
        case WriteShadowStatus():
            return replace(shadow, phase=action.phase, scheduled=action.scheduled)
        case _:
            assert_never(action)


def _created(action: CreateShadow) -> ShadowView:
    namespace, name = action.shadow
    return ShadowView(
        namespace=namespace,
        name=name,
        uid="",
        pool=action.pool,
        quota=action.quota,
        quota_uid=action.quota_uid,
        resource=action.resource,
        devices=action.devices,
        cards=action.cards,
        sequence=action.sequence,
        pod=PodView(needs=action.needs),
    )


def _with_pod(shadow: ShadowView, **changes: object) -> ShadowView:
    if shadow.pod is None:
        return shadow
    return replace(shadow, pod=replace(shadow.pod, **changes))  # type: ignore[arg-type]
