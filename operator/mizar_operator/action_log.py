"""The operator's log lines about applied actions, and about share pods that are scheduled."""

from __future__ import annotations

from mizar_core.planning.actions import (
    Action,
    CancelDrain,
    CreatePod,
    CreateQuota,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    LetPreempt,
    Recarve,
    RemoveFinalizer,
    SetInUse,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.snapshot import Key
from mizar_kube.logs import get_logger
from mizar_operator.pod_views import SharePod
from mizar_operator.snapshot_index import SnapshotIndex

log = get_logger(__name__)

EVENT_KEYS = {"Pod": "pod", "ShadowPod": "shadow", "GPUQuota": "quota"}
"""The key under which log lines name the object of an event, by the object's kind."""


def object_fields(action: Action, index: SnapshotIndex) -> dict[str, str]:
    """The object of an action, under the keys that log lines use."""
    match action:
        case CreateQuota():
            return {"namespace": action.quota[0], "quota": action.quota[1], "pool": action.pool}
        case WriteQuotaStatus():
            return {"namespace": action.quota[0], "quota": action.quota[1]}
        case WritePoolStatus():
            return {"pool": action.pool}
        case EmitEvent():
            return {"namespace": action.about[0], EVENT_KEYS[action.kind]: action.about[1]}
        case EvictShare() | LetPreempt():
            return {"namespace": action.share[0], "pod": action.share[1]}
        case CreateShadow():
            return _shadow(action.shadow) | {"pool": action.pool}
        case _:
            known = index.shadows.get(action.shadow)
            return _shadow(action.shadow) | ({"pool": known.pool} if known else {})


def log_done(action: Action, index: SnapshotIndex) -> None:
    """Log that an action is done. The line names the action's object if the caller has bound its
    keys (`object_fields`)."""
    match action:
        case CreateQuota():
            log.info("default quota created")
        case CreateShadow():
            log.info(
                "shadow pod created",
                quota=action.quota,
                resource=action.resource,
                devices=action.devices,
                cards=action.cards,
                pods=index.waiting(action.shadow[0], action.resource),
            )
        case CreatePod():
            log.info("pod of the shadow pod created")
        case Drain():
            log.info("drain requested", at=action.at)
        case CancelDrain():
            log.info("drain cancelled")
        case Recarve():
            log.info("carve written", carve=action.carve.to_json())
        case SetInUse():
            log.info("in-use mark written", in_use=action.in_use)
        case DeleteShadow():
            log.info("shadow pod deleted")
        case RemoveFinalizer():
            log.info("finalizer removed")
        case WriteShadowStatus():
            log.info("phase written", phase=action.phase)
        case WriteQuotaStatus() | WritePoolStatus():
            log.debug("status written")
        case EmitEvent():
            log.info("event", reason=str(action.reason), message=action.message)


def _shadow(key: Key) -> dict[str, str]:
    return {"namespace": key[0], "shadow": key[1]}


def log_placed(old: SharePod | None, new: SharePod | None) -> None:
    """A listener to changes of share pods: logs that a waiting one has been given a node."""
    if old is not None and new is not None:
        before, after = old.demands[0][1], new.demands[0][1]
        if before.node is None and after.node is not None:
            log.info("share pod placed", namespace=after.namespace, pod=after.name, node=after.node)
