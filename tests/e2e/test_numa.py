"""The kubelet learns near which processors a device is, and its topology manager uses that."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.kubelet_config import kubelet_with
from e2e.watching import card_of, holders, ready_shadows, wait_held
from simgpu.machine import Machine
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SYSFS = "/sys/devices/system/node"
TWO_NODES = "/run/numa"
ONE = {"devices": 1, "cards": 1}
SIXTEEN = {"devices": 16, "cards": 2}


@pytest.fixture
def node(mizar_cluster: Cluster) -> Iterator[Node]:
    """A node whose kubelet finds two NUMA nodes, each with a processor and a card, and demands that
    all a container gets be of one NUMA node. The kubelet believes what sysfs says, and only
    that."""
    node = mizar_cluster.nodes[-1]
    _make_nodes(node.path(TWO_NODES))
    mizar_cluster.exec_on_node(node.name, ["mount", "--bind", TWO_NODES, SYSFS])
    with Machine(node.simgpu_dir) as machine, ExitStack() as undo:
        undo.callback(rmtree, node.path(TWO_NODES))
        undo.callback(mizar_cluster.exec_on_node, node.name, ["umount", SYSFS])
        for number, card in enumerate(machine.cards):
            undo.callback(machine.set_numa, card.uuid, None)
            machine.set_numa(card.uuid, number)
        with kubelet_with(mizar_cluster, node, topologyManagerPolicy="single-numa-node"):
            try:
                yield node
            finally:
                undo.close()  # before the kubelet starts again


def _make_nodes(folder: Path) -> None:
    """Make files that show two NUMA nodes of a processor each, as the kernel does."""
    for number, distance in enumerate(("10 21", "21 10")):
        own = folder / f"node{number}"
        (own / "hugepages").mkdir(parents=True)
        (own / "meminfo").write_text(f"Node {number} MemTotal:       8388608 kB\n")
        (own / "distance").write_text(f"{distance}\n")
        (own / f"cpu{number}").symlink_to(f"/sys/devices/system/cpu/cpu{number}")


def test_a_container_gets_no_devices_of_two_numa_nodes(
    kube: Kube, node: Node, stage: "Stage"
) -> None:
    """Two cards are near two NUMA nodes, with a device on each. One device is given. Two are
    refused by the topology manager, which can know this only from the devices' topology. When both
    cards are near the same processors, two are given."""
    with Machine(node.simgpu_dir) as machine:
        here = {"kubernetes.io/hostname": node.name}
        pool = stage.pool(nodeSelector=here, profiles=[ONE], idleTimeoutSeconds=3)
        tenant = stage.tenant({"devices": 1, "min": 2, "max": 2}, pool=pool)
        ready_shadows(kube, tenant, 2)
        resource = "mizar.share/gpu.1"
        kube.apply(share_pod(tenant, "one", resource))
        kube.wait_running(tenant, "one")
        kube.delete("pod", "one", tenant)
        wait_for("its device to be free", lambda: not holders(kube, tenant))

        kube.apply(share_pod(tenant, "apart", resource, count=2))
        wait_for("the kubelet to refuse it", lambda: _refusal(kube, tenant, "apart"))
        assert _refusal(kube, tenant, "apart") == "TopologyAffinityError"
        kube.delete("pod", "apart", tenant)

        for card in machine.cards:
            machine.set_numa(card.uuid, 1)
        near = stage.tenant({"devices": 1, "min": 2, "max": 2}, pool=pool)
        kube.run("delete", "gpuquotas", "--all", f"--namespace={tenant}")
        ready_shadows(kube, near, 2)
        kube.apply(share_pod(near, "together", resource, count=2))
        kube.wait_running(near, "together")


def test_of_two_cards_near_a_numa_node_a_container_gets_devices_of_one(
    kube: Kube, node: Node, stage: "Stage"
) -> None:
    """The topology manager leaves the choice among fifteen devices to the agent, which prefers the
    card that has all eight. By chance, this would be so once in 6,435 times."""
    with Machine(node.simgpu_dir) as machine:
        for card in machine.cards:
            machine.set_numa(card.uuid, 1)
    here = {"kubernetes.io/hostname": node.name}
    pool = stage.pool(nodeSelector=here, profiles=[SIXTEEN])
    tenant = stage.tenant({"devices": 16, "min": 1, "max": 1}, pool=pool)
    ready_shadows(kube, tenant)
    kube.apply(share_pod(tenant, "one", "mizar.share/gpu.16"))
    kube.wait_running(tenant, "one")
    kube.apply(share_pod(tenant, "eight", "mizar.share/gpu.16", count=8))
    kube.wait_running(tenant, "eight")
    wait_held(kube, tenant, "one", "eight")
    (first,), second = card_of(kube, tenant, "one"), card_of(kube, tenant, "eight")
    assert len(second) == 1 and first not in second, (first, second)


def _refusal(kube: Kube, tenant: str, pod: str) -> str:
    """Why the kubelet refused the pod; empty while it has not."""
    found = kube.get("pod", pod, tenant)
    return str(found["status"].get("reason", "")) if found else ""
