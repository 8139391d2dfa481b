"""Reads the request of an AdmissionReview: the pod spec, whose place depends on the kind of the
object, and the object's names for log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mizar_core.names import MIRROR
from mizar_core.pod_requests import (
    NO_ALIASES,
    Aliases,
    DeviceRequest,
    Spec,
    device_requests,
    entry_count,
)

KUBELETS = "system:nodes"
"""The group of all kubelets. The annotation MIRROR counts only if one of them has set it, since
users may set it as well."""

_TEMPLATE = ("spec", "template", "spec")

POD_SPECS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("spec",),
    ("", "podtemplates"): ("template", "spec"),
    ("", "replicationcontrollers"): _TEMPLATE,
    ("apps", "daemonsets"): _TEMPLATE,
    ("apps", "deployments"): _TEMPLATE,
    ("apps", "replicasets"): _TEMPLATE,
    ("apps", "statefulsets"): _TEMPLATE,
    ("batch", "jobs"): _TEMPLATE,
    ("batch", "cronjobs"): ("spec", "jobTemplate", *_TEMPLATE),
}
"""The path of the pod spec in its object, by the (group, resource) of the request."""


@dataclass(frozen=True)
class PodSpec:
    """A pod's spec, or a template's, at `pointer` (a JSON pointer) within its object.

    `old`: the spec before an update. `template`: whether it is a template's, whose pods are
    reviewed again when they are made. `labels`, `annotations`: those of a pod; None where it has
    none. `controlled`: whether a pod has a controller, which replaces it. `static`: whether it is
    the object that a kubelet makes for a static pod.
    """

    spec: Spec
    namespace: str
    pointer: str = "/spec"
    old: Spec | None = None
    template: bool = False
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    controlled: bool = False
    static: bool = False

    @property
    def chosen_node(self) -> str:
        """The node that its user has chosen, bypassing the scheduler; empty if none was chosen, and
        for a static pod, which its kubelet already runs."""
        return "" if self.static else str(self.spec.get("nodeName") or "")

    @property
    def may_preempt(self) -> bool:
        """Whether the scheduler may end other pods to make room for it, by the priority that the
        API server has filled in. No cluster is expected to have a default priority below 0, so only
        a positive one counts."""
        policy = self.spec.get("preemptionPolicy")
        return int(self.spec.get("priority") or 0) > 0 and policy != "Never"

    @property
    def entries(self) -> int:
        """The number of entries in all limits and requests, before and after an update."""
        return entry_count(self.spec) + entry_count(self.old or {})

    def requests(self, aliases: Aliases = NO_ALIASES) -> list[DeviceRequest]:
        """Its requests for devices."""
        return device_requests(self.spec, aliases)

    def old_requests(self, aliases: Aliases = NO_ALIASES) -> set[tuple[str, ...]]:
        """The identities of its requests before the update."""
        return {request.identity for request in device_requests(self.old or {}, aliases)}

    def requests_nothing_new(self, aliases: Aliases = NO_ALIASES) -> bool:
        """Whether an update has left all of its requests alone."""
        now = {request.identity for request in self.requests(aliases)}
        return now == self.old_requests(aliases)


def pod_spec(request: dict[str, Any]) -> PodSpec | None:
    """The pod spec in the request of an AdmissionReview; None for an object that holds none."""
    resource = request["resource"]["group"], request["resource"]["resource"]
    path = POD_SPECS.get(resource)
    spec = _at(request.get("object"), path) if path else None
    if path is None or spec is None:
        return None
    owners = (request["object"].get("metadata") or {}).get("ownerReferences") or ()
    annotations = _at(request.get("object"), ("metadata", "annotations"))
    groups = (request.get("userInfo") or {}).get("groups") or ()
    return PodSpec(
        spec=spec,
        namespace=str(request.get("namespace") or ""),
        pointer="/" + "/".join(path),
        old=_at(request.get("oldObject"), path),
        template=resource != ("", "pods"),
        labels=_at(request.get("object"), ("metadata", "labels")),
        annotations=annotations,
        controlled=any(one.get("controller") for one in owners),
        static=MIRROR in (annotations or {}) and KUBELETS in groups,
    )


def _at(obj: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj if isinstance(obj, dict) else None


def log_fields(request: dict[str, Any]) -> dict[str, str]:
    """The keys by which log lines name the request's object; a pod of a Deployment has no name
    yet, so its generateName is one of them."""
    meta = (request.get("object") or {}).get("metadata") or {}
    name = request.get("name") or meta.get("name") or ""
    is_pod = request["resource"]["resource"] == "pods"
    found = {
        "operation": request["operation"],
        "kind": "" if is_pod else request["resource"]["resource"],
        "namespace": request.get("namespace") or "",
        "pod" if is_pod else "name": name,
        "generate_name": "" if name else meta.get("generateName") or "",
        "dry_run": "yes" if request.get("dryRun") else "",
    }
    return {key: str(value) for key, value in found.items() if value}
