"""What docs/karpenter.md says, with its NodePool, on a cluster with the Karpenter that
$MIZAR_KARPENTER names: `make karpenter`. It is no part of `make e2e`, since Karpenter has to be
built first.

Karpenter's kwok provider creates the nodes; spare machines of the test cluster become their
kubelets, so that Mizar's agents run on them as on any node.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

import cluster.mizar
from cluster import Cluster, ClusterSpec, karpenter
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from cluster.spare_machines import STARTING, SpareMachines
from e2e.watching import wait_held
from support import objects
from support.kube import Kube, Object
from support.waiting import wait_for

VARIABLE = "MIZAR_KARPENTER"
TENANT = "team-a"
PAGE = (Path(__file__).parents[2] / "docs" / "karpenter.md").read_text()
BLOCKS: list[str] = re.findall(r"^```(?:yaml)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

TYPES = {"two-cards": {"nvidia.com/gpu": "2"}}
KWOK = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
}
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def block(word: str) -> str:
    """The first block of the page that contains the word."""
    return next(one for one in BLOCKS if word in one)


@pytest.fixture(scope="module")
def with_karpenter() -> Iterator[Cluster]:
    """A cluster whose only node has no free cards, with Mizar, Karpenter and the page's NodePool;
    two further machines may become nodes."""
    version = os.environ.get(VARIABLE)
    if not version:
        pytest.skip(f"${VARIABLE} names no version")
    built = karpenter.build(version, Progress())
    up = LocalProvider().up(ClusterSpec(name=f"karpenter-{os.getpid()}", nodes=3), Progress())
    with ExitStack() as stack:
        stack.callback(up.down)
        machines = SpareMachines(up)
        stack.callback(machines.close)
        cluster.mizar.install(up, Progress())
        karpenter.install(up, built)
        karpenter.start(up, built, TYPES)
        prepare(Kube(up))
        yield up


def prepare(kube: Kube) -> None:
    """Take the cards of the first node, and create the tenant and the page's NodePool."""
    kube.apply(objects.namespace(TENANT), objects.namespace("others"))
    kube.wait_namespaces(TENANT, "others")
    kube.apply(objects.whole_card_pod("others", "first", 2), objects.pool(idleTimeoutSeconds=5))
    kube.wait_running("others", "first")
    pool = yaml.safe_load(block("kind: NodePool"))
    pool["spec"]["template"]["spec"]["nodeClassRef"] = {
        "group": "karpenter.kwok.sh",
        "kind": KWOK["kind"],
        "name": "default",
    }
    starting = {"key": STARTING, "effect": "NoSchedule"}
    pool["spec"]["template"]["spec"]["startupTaints"] = [starting]
    pool["spec"]["disruption"]["consolidateAfter"] = "1s"
    kube.apply(KWOK, pool, objects.quota(TENANT, {"devices": 2, "max": 8}))


@pytest.fixture
def kube(with_karpenter: Cluster) -> Iterator[Kube]:
    """kubectl on the cluster. What a test creates is deleted at its end, and Karpenter then removes
    its nodes, since Mizar has ended the idle shadow pods."""
    found = Kube(with_karpenter)
    yield found
    kinds = "deployments,daemonsets,pods"
    found.run("delete", kinds, f"--namespace={TENANT}", f"--selector={objects.SHARE_PODS}")
    wait_for("Karpenter to remove its nodes", lambda: not added(found), 300)


def added(kube: Kube) -> list[str]:
    """The nodes that Karpenter has added, by their NodeClaims."""
    return [str(one["metadata"]["name"]) for one in kube.all("nodeclaims")]


def test_one_node_is_added_for_the_shadow_pods_and_removed_after_them(kube: Kube) -> None:
    kube.apply(*(objects.share_pod(TENANT, name) for name in "abc"))
    wait_held(kube, TENANT, *"abc", timeout=300)
    assert len(added(kube)) == 1, "one per two shadow pods, not one per share pod"


def test_replicas_that_must_be_apart_get_a_node_each(kube: Kube) -> None:
    kube.apply(replicas("apart"))
    names = wait_for("two replicas to run", lambda: running(kube, "apart", 2), 300)
    wait_held(kube, TENANT, *names)
    assert len(added(kube)) == 2


def replicas(name: str) -> Object:
    """A Deployment of two share pods, each on a node of its own."""
    found = objects.deployment(TENANT, name, replicas=2)
    term = {"labelSelector": found["spec"]["selector"], "topologyKey": "kubernetes.io/hostname"}
    found["spec"]["template"]["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    }
    return found


def running(kube: Kube, app: str, count: int) -> list[str]:
    """The names of the app's running pods, if they are so many."""
    pods = kube.all("pods", TENANT, f"app={app}")
    names = [one["metadata"]["name"] for one in pods if one["status"]["phase"] == "Running"]
    return names if len(names) == count else []


def test_a_daemon_set_with_the_pages_affinity_does_not_stop_karpenter(kube: Kube) -> None:
    one = objects.deployment(TENANT, "each")
    one["kind"] = "DaemonSet"
    del one["spec"]["replicas"]
    one["spec"]["template"]["spec"] |= yaml.safe_load(block("mizar.share/node"))
    kube.apply(one, objects.share_pod(TENANT, "a"))
    kube.wait_running(TENANT, "a", timeout=300)
    wait_for("the DaemonSet's pod on the new node to run", lambda: running(kube, "each", 1), 300)
    assert len(added(kube)) == 1


def test_a_node_in_use_stays_when_its_node_pool_changes(kube: Kube) -> None:
    kube.apply(objects.share_pod(TENANT, "a"))
    wait_held(kube, TENANT, "a", timeout=300)
    before = added(kube)
    change = '{"spec":{"template":{"metadata":{"annotations":{"changed":"yes"}}}}}'
    kube.run("patch", "nodepool", "gpus", "--type=merge", f"--patch={change}")
    wait_for("the node to have drifted", lambda: drifted(kube, before[0]))
    said = wait_for("Karpenter to say why it stays", lambda: blocked(kube, before[0]))
    assert "shadow-2-" in said
    assert added(kube) == before
    kube.delete("pod", "a", TENANT)
    wait_for("the node to be replaced or removed", lambda: before[0] not in added(kube), 300)


def drifted(kube: Kube, claim: str) -> bool:
    conditions = (kube.get("nodeclaim", claim) or {}).get("status", {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Drifted", "True") for one in conditions)


def blocked(kube: Kube, claim: str) -> str:
    """What Karpenter says about why it does not disrupt the node."""
    said = (message for reason, message in kube.events("default", claim) if "Blocked" in reason)
    return next((one for one in said if "shadow" in one), "")
