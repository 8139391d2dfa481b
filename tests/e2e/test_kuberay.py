"""RayClusters of the KubeRay that $MIZAR_KUBERAY names: `make kuberay`. It is no part of
`make e2e`, since KubeRay has to be built first.

The pods are as KubeRay makes them, with its init container, command and probes. Their `ray` and
`wget` are scripts of the test, which make the pods ready and hold memory of the card.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cluster.mizar
from cluster import Cluster, ClusterSpec, kuberay
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from e2e.watching import holders, wait_event, wait_held
from support import objects
from support.kube import Kube, Object, is_ready
from support.waiting import wait_for

VARIABLE = "MIZAR_KUBERAY"
TENANT = "team-a"
ALIAS = "example.com/gpu"
SETTLED_S = 15.0
PROGRAMS = {
    "ray": """#!/bin/bash
case "$*" in
"health-check "*) exit 0 ;;
"start --head"*) exec sleep infinity ;;
"start "*) exec cuda-sample hold 64 ;;
*) exec sleep infinity ;;
esac
""",
    "wget": "#!/bin/bash\necho success\n",
}
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def with_kuberay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node, with Mizar and KubeRay, and a tenant with two cards of halves."""
    version = os.environ.get(VARIABLE)
    if not version:
        pytest.skip(f"${VARIABLE} names no version")
    built = kuberay.build(version, Progress())
    up = LocalProvider().up(ClusterSpec(name=f"ray-{os.getpid()}"), Progress())
    try:
        cluster.mizar.install(up, Progress(), values(tmp_path_factory.mktemp("values")))
        kuberay.start(up, built)
        kube = Kube(up)
        kube.apply(objects.namespace(TENANT))
        kube.wait_namespaces(TENANT)
        kube.apply(
            objects.pool("rays", profiles=[{"devices": 2, "cards": 1, "alias": ALIAS}]),
            objects.quota(TENANT, {"devices": 2, "max": 2}, pool="rays"),
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "programs", "namespace": TENANT},
                "data": PROGRAMS,
            },
        )
        yield up
    finally:
        up.down()


def values(folder: Path) -> Path:
    """The values of local clusters, with the alias, as a file."""
    found: dict[str, Any] = yaml.safe_load(cluster.mizar.LOCAL_VALUES.read_text())
    found.setdefault("webhook", {})["resourceNames"] = [ALIAS]
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


@pytest.fixture
def kube(with_kuberay: Cluster) -> Iterator[Kube]:
    """kubectl on the cluster. At a test's end, all devices are free once its RayClusters are gone,
    and nothing is left of these."""
    found = Kube(with_kuberay)
    yield found
    found.run("delete", "rayclusters", "--all", f"--namespace={TENANT}")
    wait_for("all devices to be free", lambda: not holders(found, TENANT))
    wait_for("the pods to go", lambda: not found.all("pods", TENANT, objects.SHARE_PODS))


def ray(replicas: int, resource: str = "mizar.share/gpu.2", **spec: Any) -> Object:
    """A RayCluster whose head needs no device, and whose workers need one each."""
    params = {"num-gpus": "1"} if resource != ALIAS else {}
    workers = {
        "groupName": "workers",
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 9,
        "rayStartParams": params,
        "template": template("ray-worker", {resource: 1}),
    }
    head = {"rayStartParams": {}, "template": template("ray-head", {})}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "namespace": TENANT},
        "spec": {
            "rayVersion": "2.46.0",
            "headGroupSpec": head,
            "workerGroupSpecs": [workers],
            **spec,
        },
    }


def template(name: str, limits: Object) -> Object:
    """A group's template, as a user writes it."""
    where = "/usr/local/bin/"
    container = {
        "name": name,
        "image": objects.SAMPLE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits},
        "volumeMounts": [
            {"name": "programs", "mountPath": f"{where}{one}", "subPath": one} for one in PROGRAMS
        ],
    }
    programs = {"name": "programs", "configMap": {"name": "programs", "defaultMode": 0o755}}
    grace = {"terminationGracePeriodSeconds": 1}
    return {"spec": {"containers": [container], "volumes": [programs], **grace}}


def workers(kube: Kube) -> list[Object]:
    """The workers' pods that are not being deleted."""
    found = kube.all("pods", TENANT, "ray.io/node-type=worker")
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def wait_workers(kube: Kube, count: int, but: str = "") -> list[str]:
    """Wait until there are so many workers, all ready and with a device, and none of that name;
    gives their names."""

    def ready() -> list[str]:
        found = workers(kube)
        names = [str(one["metadata"]["name"]) for one in found]
        good = len(names) == count and but not in names and all(map(is_ready, found))
        return names if good else []

    names = wait_for(
        f"{count} workers to be ready", ready, timeout=240, explain=lambda: described(kube)
    )
    wait_held(kube, TENANT, *names)
    return names


def described(kube: Kube) -> str:
    """What a person would look at when the workers do not start."""
    return "\n".join(kube.describe(TENANT, one["metadata"]["name"]) for one in workers(kube))


def change(kube: Kube, *patch: Object) -> None:
    """Change the workers' group, as Ray's autoscaler does."""
    group = "/spec/workerGroupSpecs/0/"
    full = [{**one, "path": group + one["path"]} for one in patch]
    where = ("raycluster", "ray", f"--namespace={TENANT}", "--type=json")
    kube.run("patch", *where, f"--patch={json.dumps(full)}")


def replicas(count: int) -> Object:
    """A change of the number of workers."""
    return {"op": "replace", "path": "replicas", "value": count}


def to_delete(*names: str) -> Object:
    """A change that names the workers to delete."""
    return {"op": "add", "path": "scaleStrategy", "value": {"workersToDelete": list(names)}}


@pytest.mark.parametrize("resource", ["mizar.share/gpu.2", ALIAS])
def test_workers_get_devices_and_nobody_changes_them_again(kube: Kube, resource: str) -> None:
    kube.apply(ray(2, resource))
    wait_workers(kube, 2)
    before = workers(kube)
    for one in before:
        (container,) = one["spec"]["containers"]
        assert container["resources"]["limits"] == {f"{TENANT}.mizar.share/gpu.2": "1"}
        (command,) = container["args"]
        assert re.search(r"--num-gpus=1\b", command), command
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("RayCluster", "ray")
    time.sleep(SETTLED_S)
    versions = [one["metadata"]["resourceVersion"] for one in before]
    assert [one["metadata"]["resourceVersion"] for one in workers(kube)] == versions


def test_workers_that_the_autoscaler_adds_and_removes(kube: Kube) -> None:
    mounts = template("any", {})["spec"]["containers"][0]["volumeMounts"]
    kube.apply(ray(1, enableInTreeAutoscaling=True, autoscalerOptions={"volumeMounts": mounts}))
    (first,) = wait_workers(kube, 1)
    change(kube, replicas(3))
    wait_workers(kube, 3)
    change(kube, replicas(2), to_delete(first))
    left = wait_workers(kube, 2, but=first)
    change(kube, replicas(0), to_delete(*left))
    wait_for("all devices to be free", lambda: not holders(kube, TENANT))


def test_a_worker_beyond_the_quota_waits_for_another_to_end(kube: Kube) -> None:
    kube.apply(ray(5))
    (waiting,) = wait_for("four to hold devices", lambda: four(kube), timeout=240)
    wait_event(kube, TENANT, waiting, "QuotaExceeded")
    change(kube, replicas(4), to_delete(sorted(holding(kube))[0]))
    assert waiting in wait_workers(kube, 4)


def holding(kube: Kube) -> set[str]:
    """The names of the pods that hold a device."""
    return {name.partition("/")[2] for name in holders(kube, TENANT).values()}


def four(kube: Kube) -> list[str]:
    """The names of those without a device, once four have one."""
    names = {str(one["metadata"]["name"]) for one in workers(kube)}
    return sorted(names - holding(kube)) if len(holding(kube)) == 4 else []


def test_evicted_workers_are_replaced(kube: Kube) -> None:
    kube.apply(ray(2))
    before = wait_workers(kube, 2)
    (shadow,) = [one for one in kube.all("shadowpods", TENANT) if holds(one)]
    kube.run("delete", "pod", shadow["metadata"]["name"], f"--namespace={TENANT}", "--wait=false")
    assert wait_event(kube, TENANT, before[0], "ShareEvicted")
    wait_for("both to be replaced", lambda: not {*before} & {*wait_workers(kube, 2)}, timeout=240)


def holds(shadow: Object) -> bool:
    """Whether a pod has a device of the shadow pod."""
    return any(one.get("holder") for one in shadow.get("status", {}).get("devices", []))


def test_a_refused_worker_is_an_event_of_its_cluster_and_a_mended_one_starts(kube: Kube) -> None:
    wrong = ray(1)
    (container,) = wrong["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    kube.apply(wrong)
    said = wait_event(kube, TENANT, "ray", "FailedToCreateWorkerPod")
    assert "container ray-worker" in said and "NVIDIA_VISIBLE_DEVICES" in said
    kube.apply(ray(1))
    wait_workers(kube, 1)


def test_a_suspended_cluster_gives_its_devices_back_and_gets_others(kube: Kube) -> None:
    kube.apply(ray(2))
    wait_workers(kube, 2)
    kube.apply(ray(2, suspend=True))
    wait_for("all devices to be free", lambda: not holders(kube, TENANT))
    kube.apply(ray(2, suspend=False))
    wait_workers(kube, 2)
