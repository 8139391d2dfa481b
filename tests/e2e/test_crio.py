"""What differs where CRI-O is the nodes' runtime, on the cluster with the CRI-O that $MIZAR_CRIO
names: `make crio`. It is no part of `make e2e`, since CRI-O has to be built first.
"""

import json
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.card_access import greedy
from e2e.components import container_id, delete_component, uses_crio, wait_component
from e2e.test_restarts import restart_counts
from e2e.test_spot import (
    WORK,
    borrower,
    borrowing,
    end_of,
    kept,
    lender,
    node_of,
    reason_of_eviction,
)
from e2e.watching import card_of, cards_seen_inside, wait_held
from mizar_core.names import container_devices_from
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HALF = {"devices": 2, "min": 0, "max": 1}


@pytest.fixture(autouse=True)
def crio_only(mizar_cluster: Cluster) -> None:
    if not all(uses_crio(node) for node in mizar_cluster.nodes):
        pytest.skip("$MIZAR_CRIO names no version")


def monitor(node: Node, container: str) -> tuple[int, str]:
    """PID on the node of the container's conmon, and its cgroups."""
    folder = node.path(f"/run/containers/storage/overlay-containers/{container}/userdata")
    pid = int((folder / "conmon-pidfile").read_text())
    return pid, node.path(f"/proc/{pid}/cgroup").read_text()


def test_a_borrower_is_ended_and_its_monitor_tells_how(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """The container's conmon is in the pod's cgroup. Were it ended as well, nobody would know how
    the container ended."""
    owner, other = lender(kube, stage), borrowing(kube, stage)
    with kept(kube, borrower(other, "train", restartPolicy="Never")):
        pod = kube.get("pod", "train", other) or {}
        container = container_id(pod["status"]["containerStatuses"][0])
        _, cgroups = monitor(node_of(kube, mizar_cluster, other, "train"), container)
        assert f"pod{pod['metadata']['uid']}/crio-conmon-{container}" in cgroups
        status, answer = kube.exec(owner, "owner", *WORK)
        assert status == 0, answer
        reason_of_eviction(kube, other, "train")
        ended = wait_for("the borrower to have ended", lambda: end_of(kube, other, "train"))
        assert ended["exitCode"] == 137, ended


def test_pods_outlive_their_runtime_and_the_agent(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """CRI-O is killed and started again, and the agent replaced, which then finds nothing wrong
    with what runs. The next pod gets its own card, whatever it asks for."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (own,) = card_of(kube, tenant, "a")
    node = node_of(kube, mizar_cluster, tenant, "a").name
    mizar_cluster.kill_containerd(node)
    mizar_cluster.start_containerd(node)
    delete_component(kube, "nodeagent")
    wait_component(kube, "nodeagent")
    kube.apply(greedy(kube, tenant, "b"))
    kube.wait_running(tenant, "b")
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    assert cards_seen_inside(kube, tenant, "a") == cards_seen_inside(kube, tenant, "b") == {own}
    assert "NoCardAccess" not in [reason for reason, _ in kube.events(tenant, "a")]
    for pod in ("a", "b"):
        status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", "12000")
        assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer


def test_annotations_of_a_pod_grant_nothing(kube: Kube, stage: "Stage") -> None:
    """CRI-O passes them on to containers, where Mizar's own are."""
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    (held,) = wait_held(kube, tenant, "a")
    device = held.rpartition("/")[2]
    shadow = device.rpartition("-")[0]
    thief = share_pod(tenant, "b")
    thief["metadata"]["annotations"] = {
        container_devices_from("other"): json.dumps({f"_/{shadow}/main": {"*": [device]}})
    }
    kube.apply(thief)
    wait_for("it to be refused", lambda: _is_refused(kube, tenant, "b"))


def _is_refused(kube: Kube, tenant: str, pod: str) -> bool:
    found = kube.get("pod", pod, tenant) or {}
    waiting = [one["state"].get("waiting", {}) for one in found["status"]["containerStatuses"]]
    return any("2 resources of Mizar" in str(one.get("message")) for one in waiting)
