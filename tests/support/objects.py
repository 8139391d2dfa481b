"""Manifests that tests, demo and benchmarks create."""

from typing import Any

SAMPLE_IMAGE = "localhost/mizar/cuda-sample:dev"
SHARE_PODS = "!mizar.share/shadow-pod"
"""Selects a tenant's own pods, not the shadow pods that hold its cards."""

Object = dict[str, Any]


def namespace(name: str) -> Object:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def pool(name: str = "default", **spec: Any) -> Object:
    """A GPUPool; idle timeout of an hour, so that nothing is reaped unless a test asks for it."""
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {"idleTimeoutSeconds": 3600, **spec},
    }


def quota(tenant: str, *profiles: Object, pool: str = "default", **spec: Any) -> Object:
    """A GPUQuota called `gpus`, of `{"devices": N, "min": a, "max": b}` profiles, if any."""
    shares = {"profiles": list(profiles)} if profiles else {}
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": "gpus", "namespace": tenant},
        "spec": {"pool": pool, **shares, **spec},
    }


def share_pod(
    tenant: str,
    name: str,
    resource: str = "mizar.share/gpu.2",
    count: int = 1,
    command: list[str] | None = None,
    **spec: Any,
) -> Object:
    """A pod that asks for `count` virtual devices and holds 1 GiB of GPU memory until it ends."""
    return _pod(tenant, name, {resource: count}, command or ["cuda-sample", "hold", "1024"], spec)


def deployment(
    tenant: str, name: str, resource: str = "mizar.share/gpu.2", replicas: int = 1
) -> Object:
    """A Deployment of share pods."""
    labels = {"app": name}
    template = share_pod(tenant, name, resource)["spec"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": tenant},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }


def spot_pod(tenant: str, name: str, cards: int = 1, **spec: Any) -> Object:
    """A pod that borrows cards of sleeping owners, and that nothing replaces."""
    pod = _pod(tenant, name, {"mizar.spot/gpu": cards}, ["cuda-sample", "hold", "1024"], spec)
    pod["metadata"]["annotations"] = {"mizar.share/may-be-lost": "true"}
    return pod


def whole_card_pod(tenant: str, name: str, cards: int = 1, **spec: Any) -> Object:
    """A pod that asks the stock NVIDIA plugin for whole cards."""
    return _pod(tenant, name, {"nvidia.com/gpu": cards}, ["cuda-sample", "hold", "1024"], spec)


def plain_pod(tenant: str, name: str, **spec: Any) -> Object:
    """A pod without any device, for comparison."""
    return _pod(tenant, name, {}, ["sleep", "3600"], spec)


def priority_class(name: str, value: int) -> Object:
    """A PriorityClass whose pods may preempt others."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**head, "metadata": {"name": name}, "value": value}


def _pod(tenant: str, name: str, limits: Object, command: list[str], spec: Object) -> Object:
    container = {
        "name": "main",
        "image": SAMPLE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"limits": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": tenant},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def of_each_kind(
    tenant: str, name: str, spec: Object, annotations: dict[str, str] | None = None
) -> dict[str, Object]:
    """A pod, and a template of pods in each kind that has one, by the kind. `annotations`: those of
    the pods that the templates describe. Only the DaemonSet asks for any pods."""
    meta = {"name": name, "namespace": tenant}
    labels = {"app": name}
    notes: Object = {"annotations": annotations} if annotations else {}
    template = {"metadata": {"labels": labels, **notes}, "spec": spec}
    batch = {"template": {"metadata": notes, "spec": {**spec, "restartPolicy": "Never"}}}
    selector = {"selector": {"matchLabels": labels}, "template": template}
    kinds = {
        "Pod": ("v1", spec),
        "Deployment": ("apps/v1", {"replicas": 0, **selector}),
        "StatefulSet": ("apps/v1", {"replicas": 0, "serviceName": "x", **selector}),
        "DaemonSet": ("apps/v1", selector),
        "Job": ("batch/v1", {"suspend": True, **batch}),
        "CronJob": ("batch/v1", {"schedule": "@yearly", "jobTemplate": {"spec": batch}}),
    }
    return {
        kind: {"apiVersion": version, "kind": kind, "metadata": meta, "spec": inner}
        for kind, (version, inner) in kinds.items()
    }
