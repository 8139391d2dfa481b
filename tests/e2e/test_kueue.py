"""What docs/kueue.md says, with its manifests, on a cluster with the Kueue that $MIZAR_KUEUE names:
`make kueue`. It is no part of `make e2e`, since Kueue has to be built first.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cluster.mizar
from cluster import Cluster, ClusterSpec, kueue
from cluster.binaries.progress import Progress
from cluster.errors import CommandFailed
from cluster.local_provider import LocalProvider
from e2e.watching import holders, ready_shadows, wait_event, wait_held
from support import objects
from support.kube import Kube, Object
from support.waiting import wait_for

VARIABLE = "MIZAR_KUEUE"
TENANT = "team-a"
PAGE = (Path(__file__).parents[2] / "docs" / "kueue.md").read_text()
BLOCKS: list[str] = re.findall(r"^```(?:yaml)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def block(word: str) -> str:
    """The first block of the page that contains the word."""
    return next(one for one in BLOCKS if word in one)


@pytest.fixture(scope="module")
def with_kueue() -> Iterator[Cluster]:
    """A cluster of one node with Mizar, Kueue and the page's queues."""
    version = os.environ.get(VARIABLE)
    if not version:
        pytest.skip(f"${VARIABLE} names no version")
    built = kueue.build(version, Progress())
    up = LocalProvider().up(ClusterSpec(name=f"kueue-{os.getpid()}"), Progress())
    try:
        cluster.mizar.install(up, Progress())
        kueue.install(up, built, block("transformations:"))
        prepare(Kube(up))
        yield up
    finally:
        up.down()


def prepare(kube: Kube) -> None:
    """Create the namespace, and what the page says, as soon as Kueue's webhooks answer."""
    kube.apply(objects.namespace(TENANT))
    kube.wait_namespaces(TENANT)

    def created() -> bool:
        try:
            kube.apply(*yaml.safe_load_all(block("kind: ClusterQueue")))
        except CommandFailed as refused:
            raise AssertionError(str(refused)) from refused
        return True

    wait_for("Kueue to take the queues", created)
    high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    kube.apply({**high, "metadata": {"name": "high"}, "value": 1000})


@pytest.fixture
def kube(with_kueue: Cluster) -> Iterator[Kube]:
    """kubectl on the cluster; what a test has created there is deleted at its end."""
    found = Kube(with_kueue)
    yield found
    found.run("delete", "jobs,pods", f"--namespace={TENANT}", f"--selector={objects.SHARE_PODS}")
    wait_for("all devices to be free", lambda: not holders(found, TENANT))


def job(name: str, count: int = 1, priority: str = "") -> Object:
    """The page's Job, for that many devices, until it is deleted."""
    found: Object = yaml.safe_load(block("kind: Job"))
    found["metadata"]["name"] = name
    if priority:
        found["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    found["spec"]["template"]["spec"] |= {"terminationGracePeriodSeconds": 1}
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["image"], container["command"] = objects.SAMPLE_IMAGE, ["cuda-sample", "hold", "64"]
    container["resources"]["limits"] = dict.fromkeys(container["resources"]["limits"], count)
    return found


def pod(name: str, count: int = 1) -> Object:
    """A pod in the page's queue."""
    found = objects.share_pod(TENANT, name, count=count)
    found["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    return found


def pod_of(kube: Kube, name: str) -> str:
    """Wait until the Job has one pod, which runs; gives the pod's name."""

    def running() -> Any:
        pods = kube.all("pods", TENANT, f"job-name={name}")
        live = [one for one in pods if one["status"].get("phase") == "Running"]
        return live[0]["metadata"]["name"] if len(live) == 1 else None

    return str(wait_for(f"the pod of Job {name} to run", running))


def suspended(kube: Kube, name: str) -> bool:
    found = kube.get("job", name, TENANT)
    return bool(found and found["spec"].get("suspend"))


def test_a_job_waits_for_the_quota_and_starts_on_the_same_shadow_pod(kube: Kube) -> None:
    kube.apply(job("first", count=2))
    first = pod_of(kube, "first")
    wait_held(kube, TENANT, first)
    (shadow,) = ready_shadows(kube, TENANT)
    kube.apply(job("second"))
    wait_for("a workload to wait", lambda: pending(kube) == 1)
    assert suspended(kube, "second")
    kube.delete("job", "first", TENANT)
    wait_held(kube, TENANT, pod_of(kube, "second"))
    assert [one["metadata"]["uid"] for one in ready_shadows(kube, TENANT)] == [
        shadow["metadata"]["uid"]
    ]


def test_a_preempted_job_starts_again(kube: Kube) -> None:
    kube.apply(job("low", count=2))
    first = pod_of(kube, "low")
    kube.apply(job("high", priority="high"))
    wait_held(kube, TENANT, pod_of(kube, "high"))
    assert suspended(kube, "low")
    kube.delete("job", "high", TENANT)
    again = pod_of(kube, "low")
    assert again != first
    wait_held(kube, TENANT, again)


def test_pods_and_jobs_are_counted_together(kube: Kube) -> None:
    kube.apply(job("first"), pod("plain"))
    wait_held(kube, TENANT, pod_of(kube, "first"), "plain")
    kube.apply(pod("gated"))
    wait_for("a workload to wait", lambda: pending(kube) == 1)
    gates = (kube.get("pod", "gated", TENANT) or {})["spec"]["schedulingGates"]
    assert "kueue.x-k8s.io/admission" in [one["name"] for one in gates]
    kube.delete("pod", "plain", TENANT)
    kube.wait_running(TENANT, "gated")


def test_shadow_pods_are_refused_beside_a_default_queue_until_they_are_exempt(kube: Kube) -> None:
    tenant = "team-b"
    kube.apply(objects.namespace(tenant))
    kube.wait_namespaces(tenant)
    # The share pod itself is made before there is a queue for it.
    kube.apply(objects.quota(tenant, {"devices": 2, "max": 0}), objects.share_pod(tenant, "a"))
    everything = yaml.safe_load_all(block("kind: LocalQueue"))
    queue = next(one for one in everything if one["kind"] == "LocalQueue")
    kube.apply({**queue, "metadata": {"name": "default", "namespace": tenant}})
    wait_for("Kueue to see the queue", lambda: seen(kube.get("localqueue", "default", tenant)))
    kube.apply(objects.quota(tenant, {"devices": 2, "max": 1}))
    said = wait_event(kube, tenant, "a", "ShadowRefused")
    assert "a webhook added kueue.x-k8s.io/admission" in said

    exempt = re.search(r"--patch '\n(.*?)'", block("objectSelector"), re.DOTALL)
    assert exempt
    where = ("mutatingwebhookconfiguration", "kueue-mutating-webhook-configuration")
    kube.run("patch", *where, "--type=strategic", f"--patch={exempt[1]}")
    kube.wait_running(tenant, "a")


def seen(queue: Object | None) -> bool:
    """Whether Kueue has written a state of the LocalQueue."""
    return bool(queue and queue.get("status", {}).get("conditions"))


def pending(kube: Kube) -> int:
    """How many workloads wait in the page's queue."""
    found = kube.get("clusterqueue", TENANT) or {}
    return int(found.get("status", {}).get("pendingWorkloads", 0))
