"""Makes the JSON patch of a pod: its translated resource names, the label by which Mizar finds it,
and the gate and the annotation that keep schedulers and autoscalers from acting too early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mizar_operator.webhook.pod_specs import PodSpec
from mizar_operator.webhook.resource_names import TranslatedRequest

Patch = list[dict[str, Any]]
"""A JSON patch (RFC 6902)."""


def rename(
    kept: Iterable[TranslatedRequest], dropped: Iterable[TranslatedRequest], base: str
) -> Patch:
    """The patch that gives resources their new names and removes the `dropped` requests. `base`:
    the JSON pointer to the pod spec."""
    renamed = [one for one in kept if one.is_renamed]
    gone = [one.request for one in (*renamed, *dropped)]
    return [
        *(_remove(base, one.path, one.key) for one in gone),
        *(_add(base, one.request.path, one.target, one.request.amount) for one in renamed),
    ]


def exchange(
    gone: Iterable[str], added: Mapping[str, str], path: Iterable[str], base: str
) -> Patch:
    """The patch that removes the keys `gone` from the map at `path` below `base`, a JSON pointer,
    and then adds the entries `added`."""
    return [
        *(_remove(base, path, key) for key in gone),
        *(_add(base, path, key, value) for key, value in added.items()),
    ]


def _remove(base: str, path: Iterable[str], key: str) -> dict[str, Any]:
    return {"op": "remove", "path": _pointer(base, path, key)}


def _add(base: str, path: Iterable[str], key: str, value: str) -> dict[str, Any]:
    return {"op": "add", "path": _pointer(base, path, key), "value": value}


def label(pod: PodSpec, key: str) -> Patch:
    """The patch that adds a label by which Mizar finds its pods; templates need none."""
    if pod.template or (pod.labels or {}).get(key) == "true":
        return []
    return _entry("/metadata/labels", pod.labels, key, "true")


def annotate(pod: PodSpec, key: str, value: str) -> Patch:
    """The patch that adds an annotation to a pod that is created, unless its user has set it or the
    value is empty."""
    if pod.template or pod.old is not None or not value or key in (pod.annotations or {}):
        return []
    return _entry("/metadata/annotations", pod.annotations, key, value)


def _entry(path: str, there: Mapping[str, str] | None, key: str, value: str) -> Patch:
    """The patch that sets a key of the map at `path`, of which `there` is the content; None if it
    does not exist."""
    if there is None:
        return [{"op": "add", "path": path, "value": {key: value}}]
    return [{"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}]


def gate(pod: PodSpec, name: str) -> Patch:
    """The patch that adds a scheduling gate. Kubernetes allows a gate to be set only when the pod
    is created."""
    gates = pod.spec.get("schedulingGates") or []
    if pod.old is not None or any(one.get("name") == name for one in gates):
        return []
    path = f"{pod.pointer}/schedulingGates"
    return [{"op": "add", "path": path, "value": [*gates, {"name": name}]}]


def prefer(pod: PodSpec, pod_affinity: Mapping[str, Any]) -> Patch:
    """The patch that adds pod affinity to a pod that is created, unless its user has set pod
    affinity, pod anti-affinity or topology spread constraints."""
    affinity = pod.spec.get("affinity") or {}
    own = affinity.get("podAffinity") or affinity.get("podAntiAffinity")
    if pod.template or pod.old is not None or own or pod.spec.get("topologySpreadConstraints"):
        return []
    value = {**affinity, "podAffinity": pod_affinity}
    return [{"op": "add", "path": f"{pod.pointer}/affinity", "value": value}]


def _pointer(base: str, path: Iterable[str], key: str) -> str:
    """The JSON pointer to a key of the map at `path` below `base`."""
    return "/".join((base, *path, _escaped(key)))


def _escaped(key: str) -> str:
    """The key as part of a JSON pointer. Names of resources, labels and annotations have no ~,
    which would need escaping as well."""
    return key.replace("/", "~1")
