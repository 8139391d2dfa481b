"""Pools, quotas, pod specs and requests as small as can be."""

from typing import Any

import jsonpatch

from mizar_core.models import GPUPool, GPUQuota
from mizar_operator.webhook.pod_review import Decision, review
from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import VisiblePools

Object = dict[str, Any]


def pool_object(name: str = "default", **spec: Any) -> Object:
    """A GPUPool as the API server stores it."""
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": spec,
    }


def pool(name: str = "default", **spec: Any) -> GPUPool:
    """The same as a model."""
    return GPUPool.from_dict(pool_object(name, **spec))


def quota_object(namespace: str = "team-a", name: str = "gpus", **spec: Any) -> Object:
    """A GPUQuota as the API server stores it."""
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"},
        "spec": {"pool": "default", "profiles": [{"devices": 2, "max": 1}], **spec},
    }


def quota(namespace: str = "team-a", name: str = "gpus", **spec: Any) -> GPUQuota:
    """The same as a model."""
    return GPUQuota.from_dict(quota_object(namespace, name, **spec))


def container(
    limits: Object | None = None, requests: Object | None = None, name: str = "main"
) -> Object:
    """A container; requests are as limits if not given, as the API server fills them in."""
    given = requests if requests is not None else limits
    sections = {"limits": limits, "requests": given}
    return {"name": name, "resources": {key: dict(it) for key, it in sections.items() if it}}


def spec(*containers: Object, init: list[Object] | None = None) -> Object:
    """A pod spec."""
    return {"containers": list(containers)} | ({"initContainers": init} if init else {})


def asking(key: str, amount: str = "1") -> Object:
    """The spec of a pod whose one container asks for this."""
    return spec(container({key: amount, "cpu": "1"}))


def decide(
    pod: Object,
    *pools: GPUPool,
    namespace: str = "team-a",
    own: tuple[str, ...] = (),
    old: Object | None = None,
    template: bool = False,
    labels: dict[str, str] | None = None,
    names: tuple[str, ...] = (),
    gates: bool = True,
    annotations: dict[str, str] | None = None,
    delay: str = "",
) -> Decision:
    """The decision on a pod spec; one default pool if none is given."""
    known = VisiblePools(pools or (pool(),), namespace, own, names)
    given = PodSpec(pod, namespace, "/spec", old, template, labels, annotations)
    return review(given, known, gates=gates, scale_up_delay=delay)


def patched(pod: Object, decision: Decision) -> Object:
    """The spec with the decision's patch applied."""
    return dict(patched_object({"metadata": {}, "spec": pod}, decision)["spec"])


def patched_object(obj: Object, decision: Decision) -> Object:
    """The whole object with the decision's patch applied."""
    assert not decision.refusals, decision.refusals
    return dict(jsonpatch.apply_patch(obj, decision.patch))


def limits(pod: Object, at: int = 0) -> Object:
    """The limits of a container, after a check that its requests are the same."""
    resources = pod["containers"][at]["resources"]
    assert resources["limits"] == resources["requests"]
    return dict(resources["limits"])
