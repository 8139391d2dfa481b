"""One local cluster, without Mizar, for all integration tests of a run.

MIZAR_INTEGRATION_CLUSTER reuses one instead: the name of a local cluster that is up, or the path
of a kubeconfig for tests that need no more than an API server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cluster import Cluster, ClusterSpec
from cluster.binaries import ensure
from cluster.binaries.progress import Progress
from cluster.images import CUDA_SAMPLE, PAUSE, ensure_images
from cluster.local_cluster import LocalCluster
from cluster.local_provider import LocalProvider
from integration.agent_on_node import ROOT, AgentProcess, Tenant
from simgpu import Machine
from support import objects
from support.kube import Kube

NAME = f"integration-{os.getpid()}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of one node with two simulated cards and no Mizar."""
    if chosen := os.environ.get("MIZAR_INTEGRATION_CLUSTER"):
        yield _existing(chosen)
        return
    up = LocalProvider().up(ClusterSpec(name=NAME, mizar=False), Progress())
    try:
        yield up
    finally:
        up.down()


def _existing(chosen: str) -> Cluster:
    if "/" not in chosen:
        return LocalProvider().get(chosen)
    programs = ensure(Progress(), ["kubectl", "helm"])
    tools = {name: programs.path(name) for name in ("kubectl", "helm")}
    return Cluster("existing", Path(chosen), tools)


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> LocalCluster:
    """The cluster with Mizar's kinds and the images that the tests run."""
    assert isinstance(cluster, LocalCluster)
    cluster.kubectl("apply", "--server-side", f"--filename={ROOT / 'charts/mizar/crds'}")
    for archive in ensure_images(Progress(), [PAUSE, CUDA_SAMPLE]).values():
        cluster.load_image(archive)
    for kind in ("gpupools", "gpuquotas", "shadowpods"):
        wait = f"crd/{kind}.mizar.share"
        cluster.kubectl("wait", "--for=condition=Established", wait, "--timeout=60s")
    return cluster


@pytest.fixture(scope="module")
def agent(prepared: LocalCluster) -> Iterator[AgentProcess]:
    # The node has the cluster's own folder at the same path.
    folder = prepared.logs_dir / f"nodeagent-{uuid4().hex[:8]}"
    folder.mkdir()
    made = AgentProcess(prepared, folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def machine(prepared: LocalCluster) -> Iterator[Machine]:
    with Machine(prepared.nodes[0].simgpu_dir) as machine:
        yield machine


@pytest.fixture
def kube(prepared: LocalCluster) -> Kube:
    return Kube(prepared)


@pytest.fixture
def tenant(kube: Kube, agent: AgentProcess) -> Iterator[Tenant]:
    made = Tenant(kube, agent)
    kube.apply(objects.namespace(made.name))
    kube.wait_namespaces(made.name)
    yield made
    kube.run("delete", "pods", "--all", f"--namespace={made.name}", "--grace-period=1")
    kube.delete("namespace", made.name, None, "--wait=false")
