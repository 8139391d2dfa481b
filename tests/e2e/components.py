"""Ends Mizar's own programs in a cluster and waits for them; reaches containers without the API
server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import yaml

from cluster import Cluster, crio
from cluster.binaries import ensure
from cluster.binaries.progress import Progress
from cluster.cluster import COMMAND_LIMIT, Done, Node, command
from cluster.mizar import CHART, RELEASE
from e2e.watcher import container_folders, read_container
from support.admission import wait_until_asked
from support.kube import Kube, Object

SYSTEM = "mizar-system"
WORKLOADS = {
    "operator": ("deployment", "mizar-operator"),
    "webhook": ("deployment", "mizar-webhook"),
    "nodeagent": ("daemonset", "mizar-nodeagent"),
}


def component_pods(kube: Kube, component: str) -> list[Object]:
    """The pods of `operator`, `webhook` or `nodeagent`."""
    return kube.all("pods", SYSTEM, f"app.kubernetes.io/component={component}")


def delete_component(kube: Kube, component: str) -> None:
    """Delete the component's pods without grace, as a crashed node would lose them."""
    selector = f"--selector=app.kubernetes.io/component={component}"
    kube.run("delete", "pods", f"--namespace={SYSTEM}", selector, "--grace-period=0", "--force")


def wait_component(kube: Kube, component: str) -> None:
    """Wait until the workload has all of its pods back: for nearly as long as a command may take,
    since the kubelet waits up to 5 minutes before it starts a container again."""
    workload = "/".join(WORKLOADS[component])
    wait = f"--timeout={COMMAND_LIMIT - 10:.0f}s"
    kube.run("rollout", "status", workload, f"--namespace={SYSTEM}", wait)
    if component == "webhook":
        wait_until_asked(kube)


def set_values(on: Cluster, **values: Any) -> None:
    """Change these values of the chart."""
    helm = ("upgrade", RELEASE, str(CHART), f"--namespace={SYSTEM}", "--reuse-values")
    on.helm(*helm, "--values=-", input=yaml.safe_dump(values))


@contextmanager
def previous_values(on: Cluster) -> Iterator[None]:
    """At the end, the chart's values are again what they were at the beginning."""
    here = f"--namespace={SYSTEM}"
    before = json.loads(on.helm("status", RELEASE, here, "--output=json").stdout)
    try:
        yield
    finally:
        on.helm("rollback", RELEASE, str(before["version"]), here)


def set_agent_values(kube: Kube, on: Cluster, wait: bool = True, **values: Any) -> None:
    """Change these values of the chart's `nodeagent`; all agents have them on return, unless it
    does not `wait`, as where they do not become ready with them."""
    set_values(on, nodeagent=values)
    if wait:
        rollout = ("rollout", "status", "daemonset/mizar-nodeagent", "--timeout=240s")
        kube.run(*rollout, f"--namespace={SYSTEM}")


def kill_component(kube: Kube, on: Cluster, component: str) -> None:
    """SIGKILL the component's containers."""
    for pod in component_pods(kube, component):
        kill_containers(on, pod)


def kill_containers(on: Cluster, pod: Object) -> None:
    """SIGKILL a pod's containers that run, through the runtime. Raises CommandFailed where that is
    away, or a container has just ended."""
    (node,) = (one for one in on.nodes if one.name == pod["spec"]["nodeName"])
    for status in pod["status"]["containerStatuses"]:
        if "running" in status["state"]:
            kill_container(node, container_id(status))


def container_id(status: Object) -> str:
    """The runtime's ID of a container, by its status in the pod."""
    return str(status["containerID"]).rpartition("://")[2]


def living_container(node: Node, pod: str, name: str = "main") -> str:
    """The runtime's ID of a container of `pod` (namespace/name) that lives, by the runtime's
    folder. Raises LookupError."""
    for identity, folder in container_folders(node).items():
        found = read_container(folder, node)
        if found and (found.pod, found.name) == (pod, name) and found.lives():
            return identity
    raise LookupError(f"no container {name} of {pod} lives on {node.name}")


def kill_container(node: Node, container: str) -> None:
    """SIGKILL a container, through the runtime. Raises CommandFailed as `kill_containers` does."""
    if uses_crio(node):
        inside = ["nsenter", f"--target={node.root.parts[2]}", "--mount", "--pid"]
        kill = [crio.RUNTIME, f"--root=/run/{crio.RUNTIME}", "kill", container, "KILL"]
        command([*inside, *kill], None, check=True, timeout=30)
        return
    ctr = str(ensure(Progress(), ["ctr"]).path("ctr"))
    address = f"--address={node.path('/run/containerd/containerd.sock')}"
    kill = ["tasks", "kill", "--signal=SIGKILL", container]
    command([ctr, address, "--namespace=k8s.io", *kill], None, check=True, timeout=30)


def uses_crio(node: Node) -> bool:
    """Whether the node's container runtime is CRI-O."""
    return node.path(crio.SOCKET).exists()


def exec_in_container(
    on: Cluster, node: str, container: str, *words: str, detach: bool = False, check: bool = True
) -> Done:
    """Run a command in a container, without kubelet and API server. Raises CommandFailed where it
    fails and `check` is true."""
    (place,) = (one for one in on.nodes if one.name == node)
    if uses_crio(place):
        flags = [f"--root=/run/{crio.RUNTIME}", "exec", *(["--detach"] if detach else [])]
        return on.exec_on_node(node, [crio.RUNTIME, *flags, container, *words], check=check)
    flags = [f"--exec-id={uuid4().hex[:8]}", *(["--detach"] if detach else [])]
    ctr = ["ctr", "--namespace=k8s.io", "tasks", "exec", *flags, container, *words]
    return on.exec_on_node(node, ctr, check=check)
