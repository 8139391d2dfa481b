"""Static pods: a kubelet runs them from a folder of its node, past admission and scheduler."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster import Cluster
from cluster.cluster import Node
from e2e.kubelet_config import kubelet_with
from e2e.test_sharing import check_limits
from e2e.watching import (
    card_of,
    cards_seen_inside,
    holders,
    ready_shadows,
    wait_event,
    wait_held,
)
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FOLDER = "/run/static-pods"
TENTHS = {"devices": 10, "cards": 1}
RESOURCE = "mizar.share/gpu.10"


@dataclass(frozen=True)
class StaticPods:
    """The static pods of a node. `folder`: where their manifests are."""

    kube: Kube
    node: Node
    folder: Path

    def start(self, tenant: str, name: str, resource: str, count: int = 1) -> str:
        """Write the pod's manifest; returns the name of the object that its kubelet makes."""
        manifest = share_pod(tenant, name, resource, count, ["sleep", "3600"])
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(manifest))
        return f"{name}-{self.node.name}"

    def end(self, tenant: str, name: str) -> None:
        """Remove the pod's manifest; on return its kubelet's object is gone."""
        (self.folder / f"{name}.yaml").unlink()
        self.kube.wait_gone("pod", tenant, f"{name}-{self.node.name}")


@pytest.fixture(scope="module")
def node(mizar_cluster: Cluster) -> Iterator[Node]:
    """A node whose kubelet runs static pods."""
    node = mizar_cluster.nodes[-1]
    node.path(FOLDER).mkdir(parents=True, exist_ok=True)
    with kubelet_with(mizar_cluster, node, staticPodPath=FOLDER):
        yield node


@pytest.fixture
def static(kube: Kube, stage: "Stage", node: Node) -> Iterator[StaticPods]:
    """The node's static pods, of which none are left at the end."""
    made = StaticPods(kube, node, node.path(FOLDER))
    yield made
    for manifest in made.folder.iterdir():
        manifest.unlink()


def tenant_with_a_shadow_pod(kube: Kube, stage: "Stage", node: Node) -> str:
    """A tenant that has a shadow pod of ten devices on the node."""
    here = {"kubernetes.io/hostname": node.name}
    pool = stage.pool(nodeSelector=here, profiles=[TENTHS])
    tenant = stage.tenant({"devices": 10, "min": 1, "max": 1}, pool=pool)
    ready_shadows(kube, tenant)
    return tenant


def test_a_static_pod_has_a_device_by_the_name_that_admission_writes(
    kube: Kube, stage: "Stage", static: StaticPods, possible_faults: list[str]
) -> None:
    """Its limits are those of its object at the API server, which has another UID than the kubelet
    calls it by."""
    tenant = tenant_with_a_shadow_pod(kube, stage, static.node)
    pod = static.start(tenant, "static", f"{tenant}.{RESOURCE}", count=2)
    kube.wait_running(tenant, pod)
    wait_held(kube, tenant, pod)
    check_limits(kube, tenant, pod, "main", 2)
    assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod)
    wait_event(kube, tenant, pod, "DeviceGranted")
    # The kubelet forgets a static pod with its manifest, before its container has ended.
    possible_faults.append(f"{tenant}/{pod}/main has card")
    static.end(tenant, "static")
    wait_for("its devices to be free", lambda: not holders(kube, tenant))


def test_a_static_pod_that_runs_without_a_device_is_told_why(
    kube: Kube, stage: "Stage", static: StaticPods
) -> None:
    """With the name that every other pod may use, the kubelet knows no device, and starts it all
    the same. A shadow pod that has to go does not wait for it."""
    tenant = tenant_with_a_shadow_pod(kube, stage, static.node)
    pod = static.start(tenant, "static", RESOURCE)
    told = wait_event(kube, tenant, pod, "StartedWithoutDevice")
    assert f"{tenant}.{RESOURCE}" in told
    kube.run("delete", "gpuquotas", "--all", f"--namespace={tenant}")
    wait_for("the shadow pod to be reaped", lambda: not kube.all("shadowpods", tenant))
    assert kube.phase(tenant, pod) == "Running"
    static.end(tenant, "static")


def test_a_static_pod_for_which_no_device_is_free_is_refused_and_the_event_says_so(
    kube: Kube, stage: "Stage", static: StaticPods
) -> None:
    """The kubelet emits the event, and makes no object for the pod."""
    tenant = tenant_with_a_shadow_pod(kube, stage, static.node)
    kube.apply(share_pod(tenant, "all", RESOURCE, count=10))
    kube.wait_running(tenant, "all")
    pod = static.start(tenant, "static", f"{tenant}.{RESOURCE}")
    told = wait_event(kube, tenant, pod, "UnexpectedAdmissionError")
    assert f"{tenant}.{RESOURCE}. Requested: 1, Available: 0" in told
