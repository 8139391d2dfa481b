"""Mizar is uninstalled and installed again: nothing is taken from pods that share cards, and
nothing is left behind.

The tests have a cluster of their own, on which each finds Mizar installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

import cluster.mizar
from cluster import Cluster, ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from cluster.mizar import NAMESPACE, RELEASE
from e2e.watcher import watching
from e2e.watching import ready_shadows, wait_held
from support import objects
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

HERE = f"--namespace={NAMESPACE}"
OPERATOR = "deployment/mizar-operator"
PROGRAMS = "app.kubernetes.io/component!=uninstall"
TWO = {"devices": 2, "min": 0, "max": 1}
WARM = {"devices": 2, "min": 1, "max": 1}
KUBERNETES_OWN = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
"""In every namespace."""


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """One node of two cards."""
    spec = ClusterSpec(name=f"uninstall-{os.getpid()}")
    up = LocalProvider().up(spec, Progress())
    try:
        with watching(up):
            yield up
    finally:
        up.down()


@pytest.fixture
def installed(own_cluster: Cluster) -> Cluster:
    """The cluster with Mizar installed."""
    listed = own_cluster.helm("list", HERE, "--short", "--deployed").stdout
    if RELEASE not in listed.split():
        cluster.mizar.install(own_cluster, Progress())
    return own_cluster


@pytest.fixture
def kube(installed: Cluster) -> Kube:
    return Kube(installed)


@pytest.fixture
def tenant(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace, which is deleted after the test; Mizar is installed again if that is needed for
    it."""
    name = re.sub("[^a-z]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    kube.apply(objects.namespace(name))
    kube.wait_namespaces(name)
    yield name
    kube.run("delete", "gpuquota,pods", "--all", f"--namespace={name}", "--wait=false")
    kube.delete("namespace", name, None, "--timeout=240s")


def uninstall(of: Cluster, *flags: str) -> tuple[int, str]:
    """The exit status of helm and all that it prints."""
    done = of.helm("uninstall", RELEASE, HERE, *flags, check=False)
    return done.returncode, f"{done.stdout}{done.stderr}"


def shares(kube: Kube, tenant: str, pod: str) -> None:
    """Start a share pod and wait until it runs."""
    kube.apply(objects.quota(tenant, TWO), objects.share_pod(tenant, pod))
    kube.wait_running(tenant, pod)
    wait_held(kube, tenant, pod)


def left(of: Cluster) -> list[str]:
    """What is left of the release: every object that the API server can list, except the
    definitions, the pools, and the namespace that helm made."""
    kinds = of.kubectl("api-resources", "--verbs=list", "--output=name").stdout.split()
    asked = ",".join(one for one in kinds if not one.startswith("events"))
    found = of.kubectl("get", asked, "--all-namespaces", "--output=json")
    names = {_full_name(one) for one in json.loads(found.stdout)["items"] if _is_ours(one)}
    return sorted(names - KUBERNETES_OWN - {f"Namespace/{NAMESPACE}"})


def _full_name(obj: Object) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


def _is_ours(obj: Object) -> bool:
    meta = obj["metadata"]
    labels = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/name": "mizar"}
    return (
        meta.get("namespace") == NAMESPACE
        or meta["name"].startswith(RELEASE)
        or bool(labels.items() & (meta.get("labels") or {}).items())
    )


def left_on_nodes(of: Cluster) -> list[str]:
    """What is left of the node agent on the nodes' disks."""
    folders = ("/var/lib/mizar/*", "/var/lib/mizar/.*", "/var/lib/kubelet/device-plugins/mizar-*")
    return [
        f"{node.name}:{path}"
        for node in of.nodes
        for pattern in folders
        for path in node.root.glob(pattern.lstrip("/"))
    ]


def assert_nothing_left(of: Cluster) -> None:
    """Assert that nothing is left once Kubernetes has cleared up after helm."""

    def nothing() -> bool:
        found = [*left(of), *left_on_nodes(of)]
        assert not found, found
        return True

    wait_for("all of Mizar to be gone", nothing, timeout=240)


def test_it_stays_while_shadow_pods_hold_cards(installed: Cluster, kube: Kube, tenant: str) -> None:
    kube.apply(objects.quota(tenant, WARM))
    wait_for("a shadow pod that begins", lambda: kube.all("shadowpods", tenant))
    status, said = uninstall(installed)
    assert status != 0
    assert "Mizar is not uninstalled, since 1 shadow pod holds cards, not in use." in said
    ready_shadows(kube, tenant)

    kube.apply(objects.share_pod(tenant, "train"))
    kube.wait_running(tenant, "train")
    wait_held(kube, tenant, "train")
    status, said = uninstall(installed)
    assert status != 0
    assert f"1 shadow pod holds cards, in use by {tenant}/train." in said
    assert "kubectl delete gpuquota --all --all-namespaces" in said
    assert "scale deployment" not in said
    kube.apply(objects.share_pod(tenant, "next"))
    kube.wait_running(tenant, "next")
    wait_held(kube, tenant, "next", "train")

    assert installed.helm("list", HERE, "--short", "--deployed").stdout.split() == []
    rollback = re.search(r"^ *helm (rollback .*)$", said, re.MULTILINE)
    assert rollback is not None
    installed.helm(*rollback[1].split())
    cluster.mizar.install(installed, Progress())
    wait_held(kube, tenant, "next", "train")


def test_it_says_so_when_no_operator_is_there_to_let_shadow_pods_go(
    installed: Cluster, kube: Kube, tenant: str
) -> None:
    shares(kube, tenant, "train")
    kube.run("scale", OPERATOR, "--replicas=0", HERE)
    wait_for(
        "the operator to go",
        lambda: not kube.all("pods", NAMESPACE, "app.kubernetes.io/component=operator"),
    )
    status, said = uninstall(installed)
    assert status != 0
    scale = re.search(r"^ *kubectl (scale deployment .*?) +# it is not running", said, re.MULTILINE)
    assert scale is not None, said
    installed.kubectl(*scale[1].split())
    kube.run("rollout", "status", OPERATOR, HERE, "--timeout=240s")
    status, said = uninstall(installed)
    assert status != 0 and "it is not running" not in said
    rollback = re.search(r"^ *helm (rollback .*)$", said, re.MULTILINE)
    assert rollback is not None
    installed.helm(*rollback[1].split())


def test_without_the_check_shadow_pods_and_their_users_wait_for_the_next(
    installed: Cluster, kube: Kube, tenant: str
) -> None:
    shares(kube, tenant, "train")
    (shadow,) = ready_shadows(kube, tenant)
    status, said = uninstall(installed, "--no-hooks")
    assert status == 0, said
    wait_for("Mizar's pods to go", lambda: not kube.all("pods", NAMESPACE, PROGRAMS), timeout=240)
    # Slots of earlier tests' containers may still be there, and no agent collects them now.
    slots = (installed.nodes[0].path("/var/lib/mizar") / "slots").glob("*/slot.json")
    (slot,) = (one.parent for one in slots if f'"{tenant}.' in one.read_text())
    assert {"libmizar.so", "limits", "usage", "ld.so.preload"} <= {
        one.name for one in slot.iterdir()
    }
    cluster.mizar.install(installed, Progress())
    kube.apply(objects.share_pod(tenant, "next"))
    kube.wait_running(tenant, "next")
    wait_held(kube, tenant, "next", "train")
    (again,) = ready_shadows(kube, tenant)
    assert again["metadata"]["uid"] == shadow["metadata"]["uid"]
    train = kube.get("pod", "train", tenant)
    assert train is not None and train["status"]["containerStatuses"][0]["restartCount"] == 0


def test_nothing_is_left_and_it_can_come_back(installed: Cluster, kube: Kube, tenant: str) -> None:
    """An uninstall that was interrupted can be repeated."""
    shares(kube, tenant, "train")
    assert left_on_nodes(installed)
    kube.run("delete", "gpuquota", "--all", "--all-namespaces")
    interrupted(installed, kube)
    kube.delete("pod", "train", tenant, "--wait=false")
    status, said = uninstall(installed)
    assert status == 0, said
    assert_nothing_left(installed)

    cluster.mizar.install(installed, Progress())
    shares(kube, tenant, "again")


def interrupted(of: Cluster, kube: Kube) -> None:
    """Kill helm while it waits for shadow pods that are on their way out."""
    argv = [str(of.tool("helm")), "uninstall", RELEASE, HERE]
    helm = subprocess.Popen(argv, env=of.environment(), stdout=subprocess.PIPE)
    wait_for(
        "the check to run",
        lambda: [
            one
            for one in kube.all("pods", NAMESPACE, "app.kubernetes.io/component=uninstall")
            if one["status"].get("phase") == "Running"
        ],
    )
    helm.kill()
    helm.communicate()


def test_a_namespace_that_goes_at_the_same_time_does_not_hang(
    installed: Cluster, kube: Kube, tenant: str
) -> None:
    shares(kube, tenant, "train")
    kube.delete("namespace", tenant, None, "--wait=false")

    def done() -> bool:
        status, said = uninstall(installed)
        assert status == 0 or "Mizar is not uninstalled" in said, said
        return status == 0

    wait_for("an uninstall that succeeds", done, timeout=180)
    kube.wait_gone("namespace", "", tenant, timeout=240)
    assert_nothing_left(installed)
