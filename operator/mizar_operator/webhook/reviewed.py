"""Where the pod spec is in each kind of object that the webhook sees. Pure."""

from typing import Any

from mizar_operator.webhook.judged import PodSpec

_TEMPLATE = ("spec", "template", "spec")

# (group, resource) -> the path of the pod spec.
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


def pod_spec(request: dict[str, Any]) -> PodSpec | None:
    """The pod spec in an AdmissionReview's request; None for an object that holds none."""
    resource = request["resource"]["group"], request["resource"]["resource"]
    path = POD_SPECS.get(resource)
    spec = _at(request.get("object"), path) if path else None
    if path is None or spec is None:
        return None
    return PodSpec(
        spec=spec,
        namespace=str(request.get("namespace") or ""),
        pointer="/" + "/".join(path),
        old=_at(request.get("oldObject"), path),
        template=resource != ("", "pods"),
        labels=_at(request.get("object"), ("metadata", "labels")),
    )


def names(request: dict[str, Any]) -> dict[str, str]:
    """What the request is about, as log lines name it; a pod of a Deployment has no name yet."""
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


def _at(obj: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj if isinstance(obj, dict) else None
