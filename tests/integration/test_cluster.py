"""A local cluster is a real one: pods, Services, service accounts, logs, exec, cards, restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster
from cluster.binaries.progress import Progress
from cluster.errors import ClusterError, CommandFailed
from cluster.images import CUDA_SAMPLE, ensure_images
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAMESPACE = f"cluster-{os.getpid()}"
SERVER = """
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
print STDERR "serving\\n";
while (my $client = $server->accept) { print $client "hello from $ENV{HOSTNAME}\\n"; close $client }
"""


def pod(name: str, *command: str, cards: int = 0) -> Object:
    """A pod of the sample image, which has a shell and perl."""
    limits = {"nvidia.com/gpu": cards} if cards else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": CUDA_SAMPLE,
                    "command": list(command),
                    "resources": {"limits": limits},
                }
            ],
        },
    }


def service(name: str) -> Object:
    """A Service for the pod of that name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def asking(address: str) -> list[str]:
    """A command that prints what a TCP server at this address and port 80 says."""
    return ["timeout", "10", "bash", "-c", f"cat < /dev/tcp/{address}/80"]


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """kubectl on a cluster whose nodes know the sample image, with a namespace for the tests."""
    cluster.load_image(ensure_images(Progress(), [CUDA_SAMPLE])[CUDA_SAMPLE])
    kube = Kube(cluster)
    kube.run("create", "namespace", NAMESPACE)
    kube.wait_namespaces(NAMESPACE)
    yield kube
    kube.run("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def web(kube: Kube) -> str:
    """The cluster address of a Service; its pod is called web, and client is another pod."""
    kube.apply(pod("web", "perl", "-e", SERVER), pod("client", "sleep", "infinity"), service("web"))
    kube.wait_running(NAMESPACE, "web", "client")
    found = kube.get("service", "web", NAMESPACE)
    assert found is not None
    return str(found["spec"]["clusterIP"])


def test_logs_come_back(kube: Kube, web: str) -> None:
    wait_for("the log", lambda: "serving" in kube.run("logs", "web", f"--namespace={NAMESPACE}"))


@pytest.mark.parametrize("who", ["client", "web"])
def test_pods_reach_a_service_also_their_own(kube: Kube, web: str, who: str) -> None:
    wait_for(
        "an answer", lambda: kube.exec(NAMESPACE, who, *asking(web)) == (0, "hello from web\n")
    )


def test_nodes_and_so_the_api_server_reach_a_service(
    cluster: Cluster, kube: Kube, web: str
) -> None:
    node = cluster.nodes[0].name
    ask = asking(web)
    wait_for(
        "an answer",
        lambda: cluster.exec_on_node(node, ask, check=False).stdout == "hello from web\n",
    )


def test_exec_passes_the_exit_status_on(kube: Kube, web: str) -> None:
    assert kube.exec(NAMESPACE, "client", "sh", "-c", "exit 7")[0] == 7


def test_looking_for_a_name_server_fails_at_once(kube: Kube, web: str) -> None:
    status, said = kube.exec(NAMESPACE, "client", "timeout", "15", "getent", "hosts", "a.example")
    # "Not found"; 124 would be the timeout: without an answer the lookup would take a minute.
    assert status == 2, said


def test_a_pod_has_a_token_that_the_api_server_takes_and_no_rights(kube: Kube, web: str) -> None:
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    status, token = kube.exec(NAMESPACE, "client", "cat", f"{folder}/token")
    assert status == 0
    user = f"system:serviceaccount:{NAMESPACE}:default"
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    review = json.dumps({**kind, "spec": {"token": token}})
    answer = json.loads(kube.run("create", "--filename=-", "--output=json", input=review))
    assert answer["status"]["user"]["username"] == user
    assert kube.attempt("auth", "can-i", "list", "pods", f"--as={user}")[1].strip() == "no"


def test_nobody_in_particular_may_read_nothing(kube: Kube) -> None:
    status, said = kube.attempt("get", "pods", "--as=system:anonymous")
    assert status == 1 and "forbidden" in said


def test_kubelets_may_change_only_their_own_node(cluster: Cluster, kube: Kube) -> None:
    as_node = ["--as=system:node:other", "--as-group=system:nodes"]
    status, said = kube.attempt("label", "node", cluster.nodes[0].name, "a=b", *as_node)
    assert status == 1 and "forbidden" in said


def test_a_card_is_lent_with_its_device_node_and_driver(kube: Kube) -> None:
    kube.apply(pod("gpu", "sleep", "infinity", cards=1))
    kube.wait_running(NAMESPACE, "gpu")
    status, said = kube.exec(NAMESPACE, "gpu", "sh", "-c", "ls /dev/nvidia[0-9]; cuda-sample smi")
    assert status == 0, said
    kube.delete("pod", "gpu", NAMESPACE)


def test_the_node_shows_its_cards(cluster: Cluster, kube: Kube) -> None:
    node = kube.get("node", cluster.nodes[0].name)
    assert node is not None
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"


def test_pods_live_through_the_api_servers_death(cluster: Cluster, kube: Kube, web: str) -> None:
    cluster.kill_api_server()
    assert kube.attempt("get", "nodes")[0] != 0
    cluster.start_api_server()
    assert kube.run("get", "nodes", "--output=name").split()
    wait_for("exec to work again", lambda: kube.exec(NAMESPACE, "client", "true")[0] == 0)


def test_pods_live_through_their_kubelets_death(cluster: Cluster, kube: Kube, web: str) -> None:
    node = cluster.nodes[0].name
    cluster.kill_kubelet(node)
    assert kube.exec(NAMESPACE, "client", "true")[0] != 0
    cluster.start_kubelet(node)
    wait_for("exec to work again", lambda: kube.exec(NAMESPACE, "client", "true")[0] == 0)
    cluster.restart_kubelet(node)
    wait_for("exec to work again", lambda: kube.exec(NAMESPACE, "client", "true")[0] == 0)
    restarts = kube.run(
        "get",
        "pod",
        "client",
        f"--namespace={NAMESPACE}",
        "--output=jsonpath={.status.containerStatuses[0].restartCount}",
    )
    assert restarts == "0"


def test_what_a_node_writes_is_not_the_hosts(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    for place in ("/etc/mizar-test", "/var/lib/mizar/test", "/run/mizar-test"):
        cluster.exec_on_node(node.name, ["sh", "-c", f"echo here > {place}"])
        assert not Path(place).exists()
        assert node.path(place).read_text() == "here\n"


def test_the_machines_own_sysctls_are_left_alone(cluster: Cluster) -> None:
    here = Path("/proc/sys/kernel/panic").read_text()
    done = cluster.exec_on_node(
        cluster.nodes[0].name, ["sh", "-c", "echo 77 > /proc/sys/kernel/panic"]
    )
    assert done.returncode == 0
    assert Path("/proc/sys/kernel/panic").read_text() == here


def test_a_command_that_fails_on_a_node_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match="ended with 3"):
        cluster.exec_on_node(cluster.nodes[0].name, ["sh", "-c", "exit 3"])
    with pytest.raises(ClusterError, match="no node nowhere"):
        cluster.exec_on_node("nowhere", ["true"])


def test_helm_works_and_leaves_nothing_in_the_home_folder(cluster: Cluster) -> None:
    assert json.loads(cluster.helm("list", "--all-namespaces", "--output=json").stdout) == []
