"""Components die in the middle of their work; nothing is lost and no device is given twice."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.components import delete_component, kill_component, wait_component
from e2e.watching import holders, ready_shadows, wait_held
from support import objects
from support.kube import Kube, is_ready
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TWO_SHADOWS = {"devices": 2, "min": 0, "max": 2}
PODS = 8
"""Pods of a burst: all cards, two devices on each."""


def restart_counts(kube: Kube, tenant: str, pod: str) -> dict[str, int]:
    """How often each container of the pod has been started again."""
    statuses = kube.get("pod", pod, tenant)["status"]["containerStatuses"]  # type: ignore[index]
    return {one["name"]: one["restartCount"] for one in statuses}


def test_node_agent_restart(kube: Kube, stage: "Stage") -> None:
    """Running pods keep their devices; pods created while the agent is away run afterwards. A pod
    that the kubelet admits at the very moment of the agent's end fails, and its owner makes
    another."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    delete_component(kube, "nodeagent")
    kube.apply(objects.deployment(tenant, "more", replicas=2))
    wait_component(kube, "nodeagent")
    kube.run("rollout", "status", "deployment/more", f"--namespace={tenant}", "--timeout=240s")

    wait_for_more(kube, tenant, before, 2)
    assert restart_counts(kube, tenant, "a") == {"main": 0}


def wait_for_more(kube: Kube, tenant: str, before: dict[str, str], more: int) -> None:
    """Wait until the pods that held devices before hold them, and that many more pods hold one
    each."""

    def all_hold_one() -> bool:
        after = holders(kube, tenant)
        assert len(after) == len(before) + more, f"{before}, now {after}"
        assert before.items() <= after.items(), f"{before}, now {after}"
        return True

    wait_for(f"{more} more to hold a device each", all_hold_one)


def test_node_agent_killed(kube: Kube, stage: "Stage", mizar_cluster: Cluster) -> None:
    """After SIGKILL the agent can undo nothing: running pods go on, and a Deployment gets its pods.
    For up to ten seconds the kubelet still advertises devices that it can't give; a pod bound then
    fails, as with any device plugin that dies, and its owner makes another."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    kill_component(kube, mizar_cluster, "nodeagent")
    kube.apply(objects.deployment(tenant, "more", replicas=2))
    kube.run("rollout", "status", "deployment/more", f"--namespace={tenant}", "--timeout=240s")

    def a_kept_its_device() -> bool:
        return before.items() <= holders(kube, tenant).items()

    wait_for("the agents to tell that nothing has changed for a", a_kept_its_device)
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    status, answer = kube.exec(tenant, "a", "cuda-sample", "alloc", "12000")
    assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer


@pytest.mark.parametrize("victim", ["operator", "webhook", "nodeagent", "kubelet"])
def test_killed_in_the_middle_of_a_burst(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, victim: str
) -> None:
    """Running pods go on, the others follow, and nothing is made or given twice. Half of the pods
    are asked for just before, and need another shadow pod, so that the kill falls into the burst on
    any machine."""
    tenant = stage.tenant({"devices": 4, "min": 0, "max": PODS // 4})
    kube.apply(objects.deployment(tenant, "burst", "mizar.share/gpu.4", replicas=PODS // 2))
    begun = wait_for("the first pods to run", lambda: running(kube, tenant), interval=0)
    kube.run("scale", "deployment/burst", f"--namespace={tenant}", f"--replicas={PODS}")
    wait_for("a pod of the second half", lambda: created(kube, tenant) > PODS // 2, interval=0)
    if victim == "kubelet":
        for node in mizar_cluster.nodes:
            mizar_cluster.kill_kubelet(node.name)
    else:
        kill_component(kube, mizar_cluster, victim)
    during = len(running(kube, tenant))
    if victim == "kubelet":
        for node in mizar_cluster.nodes:
            mizar_cluster.start_kubelet(node.name)
    print(f"{victim} was killed when {len(begun)} to {during} of {PODS} pods ran")
    assert during < PODS, f"{victim} was killed when the burst was over"
    kube.run("rollout", "status", "deployment/burst", f"--namespace={tenant}", "--timeout=240s")
    after = wait_for("all pods to run", lambda: running(kube, tenant, PODS))
    assert begun.items() <= after.items()
    wait_held(kube, tenant, *after, timeout=180)
    ready_shadows(kube, tenant, PODS // 4)
    if victim != "kubelet":
        # The kubelet may wait before it starts a container again that was killed before.
        wait_component(kube, victim)


def test_a_node_that_is_registered_again(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Its Node object is deleted, and its kubelet, which is started again, makes another. Pods run
    on, the quota keeps its shadow pods, and the node serves further pods."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    held, (shadow,) = wait_held(kube, tenant, "a"), ready_shadows(kube, tenant)
    node = kube.get("pod", "a", tenant)["spec"]["nodeName"]  # type: ignore[index]
    labels = kube.get("node", node)["metadata"]["labels"]  # type: ignore[index]
    kube.run("delete", "node", node)
    mizar_cluster.restart_kubelet(node)
    wait_for(f"{node} to be registered", lambda: kube.get("node", node))
    kube.run("label", "node", node, "--overwrite", *(f"{k}={v}" for k, v in labels.items()))
    kube.run("wait", "--for=condition=Ready", f"node/{node}", "--timeout=240s")
    wait_component(kube, "nodeagent")
    kube.apply(share_pod(tenant, "b", nodeSelector={"kubernetes.io/hostname": node}))
    kube.wait_running(tenant, "b")

    wait_for_more(kube, tenant, held, 1)
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    (after,) = ready_shadows(kube, tenant)
    assert after["metadata"]["uid"] == shadow["metadata"]["uid"]


def created(kube: Kube, tenant: str) -> int:
    """How many share pods the tenant has, whether they run or not."""
    return len(kube.all("pods", tenant, objects.SHARE_PODS))


def running(kube: Kube, tenant: str, least: int = 1) -> dict[str, str]:
    """The tenant's share pods that run, with their containers; none unless there are that many."""
    found = {
        one["metadata"]["name"]: one["status"]["containerStatuses"][0]["containerID"]
        for one in kube.all("pods", tenant, objects.SHARE_PODS)
        if is_ready(one)
    }
    return found if len(found) >= least else {}


def test_operator_restart(kube: Kube, stage: "Stage") -> None:
    """Demand that arrives while the operator is away is served once, not twice."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    delete_component(kube, "operator")
    kube.apply(share_pod(tenant, "b"), share_pod(tenant, "c"))
    wait_component(kube, "operator")
    kube.wait_running(tenant, "a", "b", "c")
    wait_held(kube, tenant, "a", "b", "c")
    assert len(ready_shadows(kube, tenant, 2)) == 2


def test_kubelet_restart(kube: Kube, stage: "Stage", mizar_cluster: Cluster) -> None:
    """Devices are registered again; running pods go on, new ones start. A pod that is bound before
    the devices are there again is refused by the kubelet, and its owner makes another."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    for node in mizar_cluster.nodes:
        mizar_cluster.restart_kubelet(node.name)
    kube.apply(objects.deployment(tenant, "more", replicas=2))
    kube.run("rollout", "status", "deployment/more", f"--namespace={tenant}", "--timeout=240s")
    wait_for_more(kube, tenant, before, 2)
    assert restart_counts(kube, tenant, "a") == {"main": 0}


def test_container_restart_keeps_its_limits(kube: Kube, stage: "Stage") -> None:
    """A container that dies comes back on its device, limited as before."""
    tenant = stage.tenant(TWO_SHADOWS)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    # A container's first process never gets a signal that its program does not expect yet.
    kube.wait_holding(tenant, "a")
    kube.exec(tenant, "a", "sh", "-c", "kill -TERM 1")
    wait_for("the container to restart", lambda: restart_counts(kube, tenant, "a")["main"] == 1)
    kube.wait_running(tenant, "a")
    status, answer = kube.exec(tenant, "a", "cuda-sample", "alloc", "12000")
    assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
