"""Pods that share a card end, and their shadow pod with them: by a kubelet that is short of memory,
and because their Node is deleted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster import Cluster
from cluster.cluster import Node
from cluster.layout import Layout
from e2e.components import SYSTEM, component_pods, wait_component
from e2e.test_loss import running
from e2e.watching import wait_event, wait_held
from mizar_core.quantities import parse_bytes
from support.kube import Kube, Object
from support.objects import SHARE_PODS, deployment
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HALF = {"devices": 2, "min": 0, "max": 1}
SHARED_WITHIN_S = 240
IN_USE_MIB = 512
"""Less than a cluster uses of its machine's memory. A kubelet admits pods up to this much, and what
runs already must be admitted when it starts."""


def test_a_kubelet_short_of_memory(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, possible_faults: list[str]
) -> None:
    """It evicts the pods that share a card, and their shadow pod after them. When the node has
    memory again, others share a card there."""
    node = mizar_cluster.nodes[-1]
    tenant, before = _sharers_on(kube, stage, node)
    (shadow,) = kube.all("shadowpods", tenant)
    name = shadow["metadata"]["name"]
    possible_faults += _in_any_order(tenant, name)
    with _short_of_memory(kube, mizar_cluster, node):
        for pod in (*before, name):
            wait_event(kube, tenant, pod, "Evicted")
        assert wait_event(kube, tenant, name, "ShadowLost")
        wait_for("the next pods to wait", lambda: len(_waiting(kube, tenant)) == 2)
    after = _share_again(kube, tenant, before)
    held = wait_held(kube, tenant, *after, timeout=SHARED_WITHIN_S)
    assert not any(name in device for device in held)


@pytest.mark.parametrize("operator", ["runs", "away"])
def test_a_node_that_is_deleted(
    kube: Kube,
    stage: "Stage",
    mizar_cluster: Cluster,
    possible_faults: list[str],
    operator: str,
) -> None:
    """The operator evicts the pods that share a card, and says why; while it is away, Kubernetes'
    garbage collector deletes them and their shadow pod after a minute. When the kubelet registers
    the node again, others share a card there."""
    node = mizar_cluster.nodes[-1]
    tenant, before = _sharers_on(kube, stage, node)
    (shadow,) = kube.all("shadowpods", tenant)
    name = shadow["metadata"]["name"]
    possible_faults += _in_any_order(tenant, name)
    with _scaled(kube, "operator", 1 if operator == "runs" else 0):
        kube.run("delete", "node", node.name)
        try:
            for pod in (*before, name):
                kube.wait_gone("pod", tenant, pod)
        finally:
            mizar_cluster.restart_kubelet(node.name)
    if operator == "runs":
        for pod in before:
            assert f"its node {node.name} is gone" in wait_event(kube, tenant, pod, "ShareEvicted")
    wait_component(kube, "nodeagent")
    after = _share_again(kube, tenant, before)
    held = wait_held(kube, tenant, *after, timeout=SHARED_WITHIN_S)
    assert not any(name in device for device in held)


def _sharers_on(kube: Kube, stage: "Stage", node: Node) -> tuple[str, list[str]]:
    """A tenant, and its two pods that share a card of the node."""
    here = {"kubernetes.io/hostname": node.name}
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here))
    kube.apply(deployment(tenant, "users", replicas=2))
    names = wait_for("two pods on a card", lambda: running(kube, tenant, 2))
    wait_held(kube, tenant, *names)
    return tenant, names


def _in_any_order(tenant: str, shadow: str) -> list[str]:
    """What the watcher says where the shadow pod ends a moment before or after the pods that share
    its card: the kubelet, or the garbage collector, decides that. The kubelet forgets the devices
    of a pod before its containers have ended where the garbage collector deleted the pod, and where
    it refuses the pod because it starts under memory pressure."""
    return [
        f"{tenant}/{shadow} holds no card",
        "which was given to nobody",
        f"which was given to {tenant}/{shadow}",
    ]


def _share_again(kube: Kube, tenant: str, before: list[str]) -> list[str]:
    return wait_for(
        "two others",
        lambda: running(kube, tenant, 2, but=before),
        SHARED_WITHIN_S,
        explain=lambda: kube.attempt("get", "pods", "-A", "-o", "wide")[1],
    )


@contextmanager
def _short_of_memory(kube: Kube, cluster: Cluster, node: Node) -> Iterator[None]:
    """The node's kubelet is to keep more memory free than there is. Memory, since for want of disk
    it would remove images too."""
    file = Layout(cluster.name).node(node.name).config / "kubelet.yaml"
    before = file.read_text()
    config = yaml.safe_load(before)
    config["evictionHard"]["memory.available"] = f"{_capacity_mib(kube, node) - IN_USE_MIB}Mi"
    file.write_text(yaml.safe_dump(config))
    cluster.restart_kubelet(node.name)
    try:
        yield
    finally:
        file.write_text(before)
        cluster.restart_kubelet(node.name)


@contextmanager
def _scaled(kube: Kube, component: str, replicas: int) -> Iterator[None]:
    """So many pods of the component, which has one otherwise."""
    scale = ("scale", f"deployment/mizar-{component}", f"--namespace={SYSTEM}")
    kube.run(*scale, f"--replicas={replicas}")
    wait_for("its pods", lambda: len(component_pods(kube, component)) == replicas)
    try:
        yield
    finally:
        kube.run(*scale, "--replicas=1")
        wait_component(kube, component)


def _capacity_mib(kube: Kube, node: Node) -> int:
    found = kube.get("node", node.name)
    assert found
    return parse_bytes(found["status"]["capacity"]["memory"]) >> 20


def _waiting(kube: Kube, tenant: str) -> list[Object]:
    pods = kube.all("pods", tenant, SHARE_PODS)
    return [one for one in pods if one["status"].get("phase") == "Pending"]
