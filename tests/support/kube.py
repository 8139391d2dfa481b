"""Reading and changing a cluster as a user does: through kubectl, with typed answers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from support.waiting import wait_for

Object = dict[str, Any]


class Kubectl(Protocol):
    """The part of cluster.Cluster that is needed here."""

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> Any: ...


@dataclass(frozen=True)
class Kube:
    """kubectl with JSON answers; every method raises what Cluster.kubectl raises on failure."""

    cluster: Kubectl

    def run(self, *args: str, input: str | None = None) -> str:
        """The standard output of kubectl with these arguments."""
        return str(self.cluster.kubectl(*args, input=input).stdout)

    def attempt(self, *args: str, input: str | None = None) -> tuple[int, str]:
        """Exit status and all output of kubectl, also when it fails."""
        done = self.cluster.kubectl(*args, input=input, check=False)
        return done.returncode, f"{done.stdout}{done.stderr}"

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None when there is none."""
        out = self.run("get", kind, name, *_in(namespace), "--ignore-not-found", "--output=json")
        return json.loads(out) if out.strip() else None

    def all(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """The objects of a kind in one namespace, or in all."""
        where = _in(namespace) if namespace else ["--all-namespaces"]
        picked = [f"--selector={selector}"] if selector else []
        return list(json.loads(self.run("get", kind, *where, *picked, "--output=json"))["items"])

    def apply(self, *manifests: Object | Path | str) -> None:
        """kubectl apply of objects, files and folders."""
        objects = [one for one in manifests if isinstance(one, dict)]
        if objects:
            self.run("apply", "--filename=-", input=yaml.safe_dump_all(objects))
        for path in manifests:
            if not isinstance(path, dict):
                self.run("apply", f"--filename={path}")

    def delete(self, kind: str, name: str, namespace: str | None = None, *flags: str) -> None:
        """kubectl delete; no error when it is gone already."""
        self.run("delete", kind, name, *_in(namespace), "--ignore-not-found", *flags)

    def exec(self, namespace: str, pod: str, *command: str) -> tuple[int, str]:
        """Exit status and output of a command in a pod's first container."""
        return self.attempt("exec", pod, *_in(namespace), "--", *command)

    def events(self, namespace: str, name: str) -> list[tuple[str, str]]:
        """(reason, message) of the events about one object, oldest first."""
        found = [
            event
            for event in self.all("events", namespace)
            if event["involvedObject"].get("name") == name
        ]
        return [(one["reason"], one.get("message", "")) for one in sorted(found, key=_began)]

    def phase(self, namespace: str, pod: str) -> str:
        """The pod's phase, or `absent`."""
        found = self.get("pod", pod, namespace)
        return str(found["status"].get("phase", "Unknown")) if found else "absent"

    def wait_namespaces(self, *names: str) -> None:
        """Wait until pods may be created in the namespaces: each has its service account."""
        for name in names:
            wait_for(
                f"the default service account of {name}",
                lambda name=name: self.get("serviceaccount", "default", name),  # type: ignore[misc]
            )

    def wait_running(self, namespace: str, *pods: str, timeout: float = 180) -> None:
        """Wait until every named pod is Running with all containers ready."""
        for pod in pods:
            wait_for(
                f"pod {namespace}/{pod} to run",
                lambda pod=pod: is_ready(self.get("pod", pod, namespace)),  # type: ignore[misc]
                timeout,
                explain=lambda pod=pod: self.describe(namespace, pod),  # type: ignore[misc]
            )

    def wait_holding(self, namespace: str, *pods: str) -> None:
        """Wait until the pods' programs, `cuda-sample hold`, have their memory: a pod runs as soon
        as its container does, and on a busy machine its program begins much later."""
        for pod in pods:
            wait_for(
                f"{namespace}/{pod} to hold its memory",
                lambda pod=pod: "holding" in self.run("logs", pod, f"--namespace={namespace}"),  # type: ignore[misc]
            )

    def wait_gone(self, kind: str, namespace: str, name: str, timeout: float = 180) -> None:
        """Wait until the object is no longer there."""
        wait_for(
            f"{kind} {namespace}/{name} to go",
            lambda: self.get(kind, name, namespace) is None,
            timeout,
            explain=lambda: self.attempt("get", kind, name, *_in(namespace), "--output=yaml")[1],
        )

    def wait_planned_again(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Wait until the operator has applied a plan that it made after this call: it has seen
        another idle timeout of this GPUPool or GPUQuota, which lets nothing be idle for too long.
        Twice, since a status may be written before the last of its plan's actions is applied."""
        for seconds in (3000, 3001):
            patch = json.dumps({"spec": {"idleTimeoutSeconds": seconds}})
            self.run("patch", kind, name, *_in(namespace), "--type=merge", f"-p={patch}")
            wait_for(
                f"the operator to see {kind} {name}",
                lambda: self._is_observed(kind, name, namespace),
            )

    def _is_observed(self, kind: str, name: str, namespace: str | None) -> bool:
        found = self.get(kind, name, namespace) or {}
        seen = found.get("status", {}).get("observedGeneration")
        return seen is not None and seen == found["metadata"]["generation"]

    def describe(self, namespace: str, pod: str) -> str:
        """What a person would look at when a pod doesn't start."""
        tail = self.attempt("describe", "pod", pod, *_in(namespace))[1].splitlines()[-40:]
        shadows = self.attempt("get", "shadowpods", "--all-namespaces", "--output=wide")[1]
        quotas = self.attempt("get", "gpuquotas", "--all-namespaces")[1]
        return "\n".join([*tail, shadows, quotas])


def is_ready(pod: Object | None) -> bool:
    """Whether the pod runs and all of its containers are ready."""
    if pod is None or pod["status"].get("phase") != "Running":
        return False
    return all(one.get("ready") for one in pod["status"].get("containerStatuses", []))


def condition(obj: Object, kind: str) -> Object:
    """The condition of that type; raises LookupError when the object has none yet."""
    for one in obj.get("status", {}).get("conditions", []):
        if one["type"] == kind:
            return dict(one)
    raise LookupError(f"{obj['kind']} {obj['metadata']['name']} has no condition {kind} yet")


def _began(event: Object) -> str:
    """When it happened first, by what its writer says; names of Mizar's events are random."""
    times = (event.get("eventTime"), event.get("firstTimestamp"))
    return str(next(filter(None, times), event["metadata"]["creationTimestamp"]))


def _in(namespace: str | None) -> list[str]:
    return [f"--namespace={namespace}"] if namespace else []
