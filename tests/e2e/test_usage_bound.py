"""Where the agent's folder is a file system of its own, a tenant can fill that file system only.

The usage file is the one file of the node that a tenant writes to. While the test runs, the folder
of one node is a tmpfs of fixed size, as docs/behaviour.md advises.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.components import SYSTEM, component_pods
from e2e.test_restarts import restart_counts
from e2e.test_spot_restarts import agent_on
from e2e.watching import wait_held
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
STATE = "/var/lib/mizar"
SIZE_MIB = 32
HALF = {"devices": 2, "min": 0, "max": 1}
FILL = (
    "while :; do dd if=/dev/zero of=/run/mizar/usage bs=1M seek=2 count=4096 conv=notrunc"
    " 2>/tmp/dd; done"
)


@pytest.fixture
def node(kube: Kube, mizar_cluster: Cluster) -> Iterator[Node]:
    """A node whose agent keeps its files on a file system of SIZE_MIB."""
    node = mizar_cluster.nodes[-1]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=0755", "mizar", STATE]
    _change_agents_folder(kube, mizar_cluster, node, mount)
    try:
        yield node
    finally:
        _change_agents_folder(kube, mizar_cluster, node, ["umount", "--lazy", STATE])


def _change_agents_folder(kube: Kube, cluster: Cluster, node: Node, command: list[str]) -> None:
    """Run the command, and make the node's agent start anew after it."""
    before = agent_on(kube, node)
    cluster.exec_on_node(node.name, command)
    for pod in component_pods(kube, "nodeagent"):
        if pod["spec"].get("nodeName") == node.name:
            kube.delete("pod", pod["metadata"]["name"], SYSTEM)
    wait_for("the next agent", lambda: agent_on(kube, node) not in (None, before))


def test_a_tenant_that_fills_its_usage_file(kube: Kube, node: Node, stage: "Stage") -> None:
    """The tenant writes again and again, as fast as it can: it gets what the file system has, and
    no more. Meanwhile its neighbour's programs start and take memory, and no program is ended."""
    pool = stage.pool(nodeSelector={"kubernetes.io/hostname": node.name})
    tenant = stage.tenant(HALF, pool=pool)
    kube.apply(share_pod(tenant, "near"), share_pod(tenant, "greedy"))
    kube.wait_running(tenant, "near", "greedy")
    wait_held(kube, tenant, "near", "greedy")
    status, answer = kube.exec(tenant, "greedy", "sh", "-c", f"({FILL}) >/dev/null 2>&1 &")
    assert status == 0, answer

    def is_full() -> bool:
        status, answer = kube.exec(tenant, "greedy", "cat", "/tmp/dd")
        return status == 0 and "No space left on device" in answer

    wait_for("the file system to be full", is_full)
    for _ in range(5):
        status, answer = kube.exec(tenant, "near", "cuda-sample", "alloc", "2048")
        assert status == 0, answer

    def told() -> bool:
        messages = [message for _, message in kube.events(tenant, "greedy")]
        assert any("it is cut off" in message for message in messages), messages
        return True

    wait_for("its pod to be told", told)
    assert restart_counts(kube, tenant, "near") == {"main": 0}
