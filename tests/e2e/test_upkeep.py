"""What Mizar makes and removes by itself, apart from shadow pods."""

import json
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.mizar import CHART
from support.kube import Kube
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SYSTEM = "mizar-system"


def test_the_default_pool_is_its_administrators(kube: Kube) -> None:
    """The pool is there from the start, and an operator that starts anew does not change it."""
    patch = ("patch", "gpupool", "default", "--type=merge")
    kube.run(*patch, '--patch={"spec":{"idleTimeoutSeconds":77}}')
    kube.run("rollout", "restart", "deployment/mizar-operator", f"--namespace={SYSTEM}")
    status = ("rollout", "status", "deployment/mizar-operator", "--timeout=240s")
    kube.run(*status, f"--namespace={SYSTEM}")
    try:
        wait_for("the new operator to lead", lambda: leads(kube))
        pool = kube.get("gpupool", "default")
        assert pool is not None
        assert pool["spec"]["idleTimeoutSeconds"] == 77
    finally:
        kube.run(*patch, '--patch={"spec":{"idleTimeoutSeconds":300}}')


def leads(kube: Kube) -> bool:
    """Whether the operator's only pod holds the Lease."""
    lease = kube.get("lease", "mizar-operator", SYSTEM)
    assert lease is not None
    pods = kube.all("pods", SYSTEM, "app.kubernetes.io/component=operator")
    return [one["metadata"]["name"] for one in pods] == [lease["spec"].get("holderIdentity")]


def test_former_tenants_are_swept_off_the_node(kube: Kube, stage: "Stage") -> None:
    """The kubelet itself leaves resources of former tenants on the node as 0, for ever."""
    former = f"{stage.mark}.mizar.share/gpu.2"
    node = kube.all("nodes")[0]["metadata"]["name"]
    none = {"status": {"capacity": {former: "0"}, "allocatable": {former: "0"}}}
    kube.run(
        *("patch", "node", node, "--subresource=status", "--type=merge"),
        f"--patch={json.dumps(none)}",
    )
    agents = kube.all("pods", SYSTEM, "app.kubernetes.io/component=nodeagent")
    (mine,) = [one for one in agents if one["spec"]["nodeName"] == node]
    kube.delete("pod", mine["metadata"]["name"], SYSTEM)

    def swept() -> bool:
        found = kube.get("node", node)
        assert found is not None
        status = found["status"]
        return not any(former in status[field] for field in ("capacity", "allocatable"))

    # The agent does this a minute after its start.
    wait_for(f"{former} to go from {node}", swept, timeout=240)


@pytest.mark.parametrize("release", ["second", "mizar"])
def test_a_second_release_is_refused(mizar_cluster: Cluster, release: str) -> None:
    """The policies of each would refuse what the other's operator does. Helm itself refuses one of
    the same name in another namespace, but not if nameOverride gives its objects other names."""
    second = ("install", release, str(CHART), "--namespace=second", "--dry-run=server")
    done = mizar_cluster.helm(*second, "--set=nameOverride=other", check=False)
    assert done.returncode != 0
    assert (
        "Mizar is in this cluster already, as release mizar of namespace mizar-system"
        in f"{done.stdout}{done.stderr}"
    )
