"""Mizar is upgraded, and rolled back, while pods share a card and others are created."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.binaries.progress import Progress
from cluster.images import NODEAGENT, OPERATOR, ensure_images
from cluster.images.archive import write_derived
from cluster.mizar import CHART, RELEASE
from e2e.asking import asking
from e2e.components import SYSTEM, WORKLOADS, component_pods, container_id, wait_component
from e2e.test_limits_follow import HALF_MIB, alloc, change, profile, wait_memory
from e2e.test_spot import borrowing, lender, start_borrower
from e2e.watching import wait_held
from support.kube import Kube
from support.objects import SHARE_PODS, deployment, share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HERE = f"--namespace={SYSTEM}"
NEXT = "next"
"""The tag of the later version."""
LIBRARY = "usr/lib/mizar/libmizar.so"
"""The shim in the agent's image."""
STATE = "/var/lib/mizar"
"""The node agent's folder on a node."""
IN_CONTAINER = "/run/mizar/libmizar.so"
MOST_S = "--timeout=5m"


def test_running_pods_do_not_notice_an_upgrade_nor_a_rollback(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, tmp_path: Path
) -> None:
    """Here both versions have the same code; see test_upgrade_from.py."""
    check_upgrade(kube, stage, mizar_cluster, tmp_path)


def check_upgrade(kube: Kube, stage: "Stage", on: Cluster, folder: Path) -> None:
    """Upgrade the cluster's Mizar to this one, and roll back. Assert that containers go on
    meanwhile, within their limits, with the shim that they started with, also the one that borrows
    a card, and that limits follow the pool under agents of either version. Pods that are created
    meanwhile and afterwards are neither refused nor lost, and get the shim of the agent that starts
    them."""
    pool = stage.pool(profiles=profile())
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 3}, pool=pool)
    kube.apply(share_pod(tenant, "old", command=["cuda-sample", "hold", "5120"]))
    kube.wait_running(tenant, "old")
    kube.wait_holding(tenant, "old")
    devices, started = wait_held(kube, tenant, "old"), containers(kube, tenant, "old")
    lender(kube, stage)
    borrows = borrowing(kube, stage)
    start_borrower(kube, borrows, "train")
    borrower = containers(kube, borrows, "train")
    shim = later_version(on, folder)

    with (
        asking(on, tenant) as asked,
        upgraded(kube, on, deployment(tenant, "during", replicas=2)),
    ):
        kube.run("rollout", "status", "deployment/during", f"--namespace={tenant}", MOST_S)
        kube.apply(share_pod(tenant, "new"))
        kube.wait_running(tenant, "new")
        assert loaded(kube, tenant, "new") == shim
        assert loaded(kube, tenant, "old") != shim
        change(kube, pool, profiles=profile(memory="6Gi"))
        for pod in ("old", "new"):
            wait_memory(kube, tenant, pod, 6144)
        assert alloc(kube, tenant, "old", 1100) == "CUDA_ERROR_OUT_OF_MEMORY"
        started |= containers(kube, tenant, "new")
    assert not asked.refused, asked.refused

    change(kube, pool, profiles=profile())
    for pod in ("old", "new"):
        wait_memory(kube, tenant, pod, HALF_MIB)
    assert loaded(kube, tenant, "new") == shim
    assert containers(kube, tenant, "old", "new") == started
    check_pods_start(kube, tenant, loaded(kube, tenant, "old"))
    assert containers(kube, tenant, "old", "new") == started
    assert devices.items() <= wait_held(kube, tenant, *shares(kube, tenant)).items()
    assert containers(kube, borrows, "train") == borrower
    assert not set_aside(on)


def check_pods_start(kube: Kube, tenant: str, shim: str) -> None:
    """Assert that the pods of the Deployment are replaced, with this shim. The first one needs
    another shadow pod, and the next one gets a device of which a pod made way."""
    before = pods_of(kube, tenant, "during")
    here = f"--namespace={tenant}"
    kube.run("rollout", "restart", "deployment/during", here)
    kube.run("rollout", "status", "deployment/during", here, MOST_S)
    wait_for("the former pods to go", lambda: not before & pods_of(kube, tenant, "during"), 240)
    for pod in pods_of(kube, tenant, "during"):
        assert loaded(kube, tenant, pod) == shim
        wait_memory(kube, tenant, pod, HALF_MIB)


def set_aside(cluster: Cluster) -> list[Path]:
    """What agents could not read of the checkpoints that agents of the other version left."""
    found = (node.path(STATE) / "checkpoint.damaged" for node in cluster.nodes)
    return [one for one in found if one.exists()]


def later_version(cluster: Cluster, folder: Path) -> str:
    """Give the cluster's nodes images of a later version, whose shim differs; returns its hash."""
    made = ensure_images(Progress.silent(), [OPERATOR, NODEAGENT])
    shim = shim_of(made[NODEAGENT]) + b"\0"
    contents: dict[str, dict[str, bytes]] = {NODEAGENT: {LIBRARY: shim}, OPERATOR: {}}
    for image, files in contents.items():
        archive = folder / "image.tar"
        write_derived(archive, f"{image.rpartition(':')[0]}:{NEXT}", made[image], files)
        cluster.load_image(archive)
        archive.unlink()
    return hashlib.sha256(shim).hexdigest()


def shim_of(archive: Path) -> bytes:
    """The shim of the agent's image."""
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest
        for name in json.load(manifest)[0]["Layers"]:
            layer = image.extractfile(name)
            assert layer
            with tarfile.open(fileobj=io.BytesIO(layer.read())) as files:
                if LIBRARY in files.getnames():
                    found = files.extractfile(LIBRARY)
                    assert found
                    return found.read()
    raise LookupError(f"no {LIBRARY} in {archive}")


@contextmanager
def upgraded(kube: Kube, cluster: Cluster, *meanwhile: dict[str, object]) -> Iterator[None]:
    """Inside, the later version runs; these objects are created while it replaces the other."""
    before = json.loads(cluster.helm("status", RELEASE, HERE, "--output=json").stdout)["version"]
    values = ("--reset-then-reuse-values", f"--set=image.tag={NEXT}")
    try:
        crds = f"--filename={CHART / 'crds'}"
        cluster.kubectl("apply", "--server-side", "--force-conflicts", crds)
        cluster.helm("upgrade", RELEASE, str(CHART), HERE, *values)
        kube.apply(*meanwhile)
        wait_version(kube, NEXT)
        yield
    finally:
        cluster.helm("rollback", RELEASE, str(before), HERE)
        wait_version(kube, "dev")


def wait_version(kube: Kube, tag: str) -> None:
    """Wait until all of Mizar's programs are of this version, and nothing else of them is left."""
    for component in WORKLOADS:
        wait_component(kube, component)
        wait_for(f"{component} of version {tag}", lambda: versions(kube, component) == {tag}, 240)  # noqa: B023


def versions(kube: Kube, component: str) -> set[str]:
    """The tags of the images that the component's pods run."""
    pods = component_pods(kube, component)
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods}


def loaded(kube: Kube, tenant: str, pod: str) -> str:
    """The hash of the shim in the pod's container."""
    status, answer = kube.exec(tenant, pod, "sha256sum", IN_CONTAINER)
    assert status == 0, answer
    return answer.split()[0]


def containers(kube: Kube, tenant: str, *pods: str) -> dict[str, str]:
    """The containers in which the pods run."""
    found = {}
    for name in pods:
        pod = kube.get("pod", name, tenant)
        assert pod
        (status,) = pod["status"]["containerStatuses"]
        found[name] = container_id(status)
    return found


def pods_of(kube: Kube, tenant: str, app: str) -> set[str]:
    """The pods of the Deployment."""
    return {str(one["metadata"]["name"]) for one in kube.all("pods", tenant, f"app={app}")}


def shares(kube: Kube, tenant: str) -> list[str]:
    """The tenant's share pods."""
    return [one["metadata"]["name"] for one in kube.all("pods", tenant, SHARE_PODS)]
