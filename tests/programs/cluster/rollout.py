"""Finds out whether the objects of a chart run, and if not, why."""

from __future__ import annotations

import json
from typing import Any

from cluster.cluster import Cluster

TAIL = 20  # log lines of each container that is not ready

Object = dict[str, Any]


def pending(workloads: list[Object]) -> list[str]:
    """Deployments and DaemonSets that are not rolled out, as `name 1/2`."""
    return [
        f"{one['metadata']['name']} {ready}/{wanted}"
        for one in workloads
        for ready, wanted in [_progress(one)]
        if ready < wanted
    ]


def _progress(workload: Object) -> tuple[int, int]:
    """Up-to-date ready pods, and how many are wanted; at least one until a controller has looked.

    A DaemonSet without a node to run on has none to wait for once its controller says so.
    """
    status = workload.get("status", {})
    seen = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 1)
    if workload["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        ready = min(status.get("numberAvailable", 0), status.get("updatedNumberScheduled", 0))
    else:
        wanted = workload["spec"].get("replicas", 1)
        old = status.get("replicas", 0) - status.get("updatedReplicas", 0)
        ready = min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0)) - old
    return (max(0, ready), wanted) if seen else (0, max(1, wanted))


def workloads(cluster: Cluster, namespace: str) -> list[Object]:
    """The Deployments and DaemonSets of a namespace."""
    found = cluster.kubectl(
        "get", "deployments,daemonsets", f"--namespace={namespace}", "--output=json"
    )
    return list(json.loads(found.stdout)["items"])


def diagnosis(cluster: Cluster, namespace: str) -> str:
    """For each pod that is not ready: why, and its last log lines; then the latest warnings."""
    found = cluster.kubectl("get", "pods", f"--namespace={namespace}", "--output=json", check=False)
    pods = json.loads(found.stdout)["items"] if found.returncode == 0 else []
    parts = [_explain(cluster, pod) for pod in pods if not is_ready(pod)]
    return "\n".join(
        [*(parts or ["every pod there is says that it is ready"]), _warnings(cluster, namespace)]
    )


def is_ready(pod: Object) -> bool:
    """Whether the pod says that it is ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def reasons(pod: Object) -> list[str]:
    """Why a pod is not ready, from its status."""
    status = pod.get("status", {})
    found = [
        f"{one['type']}: {one['message']}"
        for one in status.get("conditions", [])
        if one["status"] != "True" and one.get("message")
    ]
    for container in [*status.get("initContainerStatuses", []), *_containers(pod)]:
        for state in (container.get("state", {}), container.get("lastState", {})):
            for kind in ("waiting", "terminated"):
                if detail := state.get(kind):
                    what = " ".join(filter(None, [detail.get("reason"), detail.get("message")]))
                    found.append(f"container {container['name']} {kind}: {what}")
    return found


def _containers(pod: Object) -> list[Object]:
    return list(pod.get("status", {}).get("containerStatuses", []))


def _explain(cluster: Cluster, pod: Object) -> str:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    lines = [f"pod {name} is not ready ({pod.get('status', {}).get('phase', 'Unknown')})"]
    lines += [f"  {reason}" for reason in reasons(pod)]
    crashed = any(one.get("restartCount", 0) for one in _containers(pod))
    for flags in (["--previous"], []) if crashed else ([],):
        options = [f"--namespace={namespace}", "--all-containers", f"--tail={TAIL}", *flags]
        log = cluster.kubectl("logs", name, *options, check=False, timeout=30)
        if log.stdout.strip():
            lines.append(f"  its last log lines{' before it restarted' if flags else ''}:")
            lines += [f"    {line}" for line in log.stdout.splitlines()]
    return "\n".join(lines)


def _warnings(cluster: Cluster, namespace: str) -> str:
    options = [
        f"--namespace={namespace}",
        "--field-selector=type=Warning",
        "--sort-by=.lastTimestamp",
    ]
    found = cluster.kubectl("get", "events", *options, check=False, timeout=30)
    latest = found.stdout.splitlines()[-10:]
    return "\n".join(["the latest warnings:", *(f"  {line}" for line in latest)])
