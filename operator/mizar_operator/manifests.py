"""Builds the manifests of the objects that the operator creates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mizar_core.models import GPUPool, GPUQuota, default_quota_spec
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_RESOURCE,
    ANNOTATION_SEQUENCE,
    ANNOTATIONS_IN_USE,
    API_VERSION,
    BUDGET_NAME,
    FIELD_MANAGER_OPERATOR,
    FINALIZER_DRAIN,
    LABEL_DEFAULT_QUOTA,
    LABEL_IN_USE,
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_QUOTA,
    LABEL_SHADOW_POD,
)
from mizar_core.planning.actions import CreateQuota, CreateShadow
from mizar_core.planning.changed_limits import carve_of
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import ShadowView
from mizar_kube.kinds import Object
from mizar_operator.node_needs import anti_affinity_labels, node_constraints
from mizar_operator.node_policy import near_shadow_pods

LEFT_OUT_LABELS = {
    # HAMi's webhook would hand a pod that asks for whole cards over to its own scheduler, which
    # gives it a part of one.
    "hami.io/webhook": "ignore",
    "sidecar.istio.io/inject": "false",
    "kuma.io/sidecar-injection": "disabled",
    "admission.datadoghq.com/enabled": "false",
    # A shadow pod needs none of the AWS permissions of its namespace's default service account.
    "eks.amazonaws.com/skip-pod-identity-webhook": "true",
}
"""Labels that make well-known webhooks skip shadow pods, which need nothing that these add."""
LEFT_OUT_ANNOTATIONS = {
    "linkerd.io/inject": "disabled",
    "consul.hashicorp.com/connect-inject": "false",
    "dynatrace.com/inject": "false",
}
"""Annotations that make well-known webhooks skip shadow pods: these need no sidecar and no tracing,
and the chart's policies allow them only one container, without volumes."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
"""Kubernetes' label that names the program which manages an object."""

NOBODY = 65535
"""User and group ID of a shadow pod's container."""


@dataclass(frozen=True)
class PodSettings:
    """Settings of the pods of all ShadowPods. `image`: of their container. `priority_class`: for
    pools that name none; empty for the cluster's default. `grace_s`: seconds that a shadow pod
    keeps its cards after another client deletes it, so that its users end first. `cpu`, `memory`:
    request and limit, Kubernetes quantities. Both are the same, since nodes that run out of memory
    end pods of the QoS class Guaranteed last; pause needs next to none, but with a CPU of 10m its
    start takes 5 s (with 100m 0.6 s), and the kubelet sees no other pod's start meanwhile.
    `labels`, `annotations`: those that the cluster's policies and webhooks require, in addition to
    Mizar's own."""

    image: str
    priority_class: str = ""
    grace_s: int = 0
    cpu: str = "100m"
    memory: str = "64Mi"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def shadow_pod(action: CreateShadow) -> Object:
    """The manifest of the ShadowPod. Its finalizer keeps it until its devices are out of use."""
    namespace, name = action.shadow
    return {
        "apiVersion": API_VERSION,
        "kind": "ShadowPod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": _labels(action.pool, action.quota, action.devices),
            "annotations": {
                ANNOTATION_SEQUENCE: str(action.sequence),
                # Needed while its users still exist after pool and pod are gone.
                ANNOTATION_RESOURCE: action.resource,
            },
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
    pod_settings: PodSettings,
    needs: Needs,
) -> Object:
    """The manifest of the pod that holds the cards of a ShadowPod; `shadow` must have its UID."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": shadow.name,
            "namespace": shadow.namespace,
            "labels": {
                **LEFT_OUT_LABELS,
                **pod_settings.labels,
                LABEL_SHADOW_POD: "true",
                **_labels(shadow.pool, shadow.quota, shadow.devices),
                **anti_affinity_labels(needs),
            },
            "annotations": {
                **LEFT_OUT_ANNOTATIONS,
                **pod_settings.annotations,
                ANNOTATION_CARVE: carve_of(shadow, pool, quota).to_json(),
                ANNOTATION_SEQUENCE: str(shadow.sequence),
            },
            "ownerReferences": [_owner("ShadowPod", shadow.name, shadow.uid, controller=True)],
        },
        "spec": _spec(shadow, pool, pod_settings, needs),
    }


def default_quota(action: CreateQuota, pool: GPUPool) -> Object:
    """The manifest of the pool's default quota in a namespace."""
    namespace, name = action.quota
    spec = default_quota_spec(pool)
    assert spec is not None
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUQuota",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                LABEL_DEFAULT_QUOTA: action.pool,
                LABEL_MANAGED_BY: FIELD_MANAGER_OPERATOR,
            },
        },
        "spec": spec.to_dict(),
    }


def in_use(*, on: bool) -> Object:
    """The merge patch for a pod's metadata when the shadow pod comes into use (`on`), or is no
    longer in use."""
    marks: dict[str, dict[str, str | None]] = {
        "labels": {LABEL_IN_USE: "true"},
        "annotations": {**ANNOTATIONS_IN_USE},
    }
    return {
        field: {key: value if on else None for key, value in pairs.items()}
        for field, pairs in marks.items()
    }


def budget(namespace: str, pods: int) -> Object:
    """The manifest of the budget that allows no eviction of the namespace's shadow pods in use.
    `pods`: how many pods it demands, at least as many as are marked as in use. It has no
    `maxUnavailable: 0` instead, for which Kubernetes would read the scale of each pod's owner
    whenever one of the pods changes."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": BUDGET_NAME,
            "namespace": namespace,
            "labels": {LABEL_MANAGED_BY: FIELD_MANAGER_OPERATOR},
        },
        "spec": {
            "minAvailable": pods,
            "selector": {"matchLabels": {LABEL_SHADOW_POD: "true", LABEL_IN_USE: "true"}},
        },
    }


def _labels(pool: str, quota: str, devices: int) -> dict[str, str]:
    return {LABEL_POOL: pool, LABEL_QUOTA: quota, LABEL_PROFILE: str(devices)}


def _owner(kind: str, name: str, uid: str, *, controller: bool) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": controller,
        # A foreground deletion of the owner must not delete this one before it is drained; the
        # policy of shadow pods' deletion also refuses early deletions by the garbage collector.
        "blockOwnerDeletion": False,
    }


def _spec(shadow: ShadowView, pool: GPUPool, pod_settings: PodSettings, needs: Needs) -> Object:
    spec: dict[str, Any] = {
        "containers": [_container(shadow, pool, pod_settings)],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": max(pod_settings.grace_s, 1),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **node_constraints(needs),
    }
    if pool.spec.node_policy == "Binpack":
        spec["affinity"] = {**spec.get("affinity", {}), "podAffinity": near_shadow_pods()}
    if pool.spec.runtime_class_name:
        spec["runtimeClassName"] = pool.spec.runtime_class_name
    if priority_class := pool.spec.priority_class_name or pod_settings.priority_class:
        spec["priorityClassName"] = priority_class
    return spec


def _container(shadow: ShadowView, pool: GPUPool, pod_settings: PodSettings) -> Object:
    # Requests equal limits, so that the kubelet and the kernel take all other pods' memory first.
    resources = {
        "cpu": pod_settings.cpu,
        "memory": pod_settings.memory,
        pool.spec.physical_resource: str(shadow.cards),
    }
    container: Object = {
        "name": "main",
        "image": pod_settings.image,
        # The device plugin's own answer would make the runtime inject a driver into pause, where it
        # reads the variable. CDI devices in that answer (cdi-cri) are injected all the same: pause
        # has the driver's files then, which it does not use.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if pod_settings.grace_s:
        # pause would end at once, and the kubelet free its cards.
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": pod_settings.grace_s}}}
    return container
