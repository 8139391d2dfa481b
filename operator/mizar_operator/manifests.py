"""The objects that the operator creates. Pure: the same answer for the same question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mizar_core.carve import Carve
from mizar_core.models import GPUPool, GPUQuota, isolation_of
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_SEQUENCE,
    API_VERSION,
    FINALIZER_DRAIN,
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_QUOTA,
    LABEL_SHADOW_POD,
    NODE_LABEL_CARD_MODEL,
)
from mizar_core.planning.actions import CreateShadow
from mizar_core.planning.snapshot import Pairs, ShadowView
from mizar_kube.kinds import Object

NO_MODEL = ("no-card-model-of-the-pool-is-known",)
"""Affinity has no way to say "nowhere"; this says it, and the scheduler's message quotes it."""

GRACE_S = 1
"""Not 0: the API server would forget the pod, and with it that its cards are taken, before the
kubelet has let go of them. pause ends at once anyway."""

NOBODY = 65535


@dataclass(frozen=True)
class Shape:
    """What the pods of all shadow pods have in common. `priority_class`: of pools that name none;
    empty for the cluster's default."""

    image: str
    priority_class: str = ""


def shadow_pod(action: CreateShadow) -> Object:
    """The ShadowPod. Its finalizer holds it until its devices are out of use."""
    namespace, name = action.shadow
    return {
        "apiVersion": API_VERSION,
        "kind": "ShadowPod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": _labels(action.pool, action.quota, action.devices),
            "annotations": {ANNOTATION_SEQUENCE: str(action.sequence)},
            "finalizers": [FINALIZER_DRAIN],
            "ownerReferences": [
                _owner("GPUQuota", action.quota, action.quota_uid, controller=True)
            ],
        },
        "spec": {
            "pool": action.pool,
            "quota": action.quota,
            "devices": action.devices,
            "cards": action.cards,
        },
    }


def pod(
    shadow: ShadowView,
    pool: GPUPool,
    quota: GPUQuota,
    shape: Shape,
    selector: Pairs,
    models: tuple[str, ...] | None,
) -> Object:
    """The pod that holds the cards of a ShadowPod; `shadow` must know its UID."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": shadow.name,
            "namespace": shadow.namespace,
            "labels": {
                LABEL_SHADOW_POD: "true",
                **_labels(shadow.pool, shadow.quota, shadow.devices),
            },
            "annotations": {
                ANNOTATION_CARVE: carve(shadow, pool, quota).to_json(),
                ANNOTATION_SEQUENCE: str(shadow.sequence),
            },
            "ownerReferences": [_owner("ShadowPod", shadow.name, shadow.uid, controller=True)],
        },
        "spec": _spec(shadow, pool, shape, selector, models),
    }


def carve(shadow: ShadowView, pool: GPUPool, quota: GPUQuota) -> Carve:
    """How the node agent is to cut the cards."""
    profile = pool.spec.profile(shadow.devices)
    return Carve(
        resource=shadow.resource,
        devices=shadow.devices,
        cards=shadow.cards,
        memory=profile.memory_bytes if profile else None,
        memory_scaling=pool.spec.memory_scaling,
        core_scaling=pool.spec.core_scaling,
        isolation=isolation_of(pool.spec, quota.spec),
        pool=shadow.pool,
        quota=shadow.quota,
        tenancy=pool.spec.tenancy,
        physical_resource=pool.spec.physical_resource,
    )


def _labels(pool: str, quota: str, devices: int) -> dict[str, str]:
    return {LABEL_POOL: pool, LABEL_QUOTA: quota, LABEL_PROFILE: str(devices)}


def _owner(kind: str, name: str, uid: str, *, controller: bool) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": controller,
        # A foreground deletion of the owner must not take this one away undrained; for what the
        # garbage collector tries all the same see the policy of shadow pods' deletion.
        "blockOwnerDeletion": False,
    }


def _spec(
    shadow: ShadowView,
    pool: GPUPool,
    shape: Shape,
    selector: Pairs,
    models: tuple[str, ...] | None,
) -> Object:
    spec: dict[str, Any] = {
        "containers": [_container(shadow, pool, shape.image)],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": _tolerations(pool),
    }
    if selector:
        spec["nodeSelector"] = dict(sorted(selector))
    if models is not None:
        spec["affinity"] = _affinity(models or NO_MODEL)
    if pool.spec.runtime_class_name:
        spec["runtimeClassName"] = pool.spec.runtime_class_name
    if priority_class := pool.spec.priority_class_name or shape.priority_class:
        spec["priorityClassName"] = priority_class
    return spec


def _container(shadow: ShadowView, pool: GPUPool, image: str) -> Object:
    cards = {pool.spec.physical_resource: str(shadow.cards)}
    return {
        "name": "main",
        "image": image,
        # The device plugin's own answer would make the runtime inject a driver into pause.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {
            "requests": {"cpu": "1m", "memory": "8Mi", **cards},
            "limits": {"memory": "64Mi", **cards},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _tolerations(pool: GPUPool) -> list[Object]:
    own = [one.to_dict() for one in pool.spec.tolerations]
    cards = {"key": pool.spec.physical_resource, "operator": "Exists", "effect": "NoSchedule"}
    return own if cards in own else [*own, cards]


def _affinity(models: tuple[str, ...]) -> Object:
    expression = {"key": NODE_LABEL_CARD_MODEL, "operator": "In", "values": list(models)}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]
            }
        }
    }
