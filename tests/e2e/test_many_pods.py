"""Many share pods start on one node at the same time.

MIZAR_PODS=200 says how many (60). They take the more of the machine the more they are.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.kubelet_config import kubelet_with
from e2e.test_figures import pages
from e2e.watching import ready_shadows
from support.kube import Kube, Object, is_ready
from support.objects import deployment
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
CARD_MIB = 16384
ALL = int(os.environ.get("MIZAR_PODS", "60"))
PODS = {"small": ALL * 3 // 5, "large": ALL - ALL * 3 // 5}
"""How many pods share a card, by the name of their Deployment."""
START_S = 900.0
OTHERS = 50
"""Pods of the node that are not the test's."""
SAYS = (
    "echo uid $POD_UID; grep -q $POD_UID /run/mizar/limits && grep -q main /run/mizar/limits"
    " && echo mine; cuda-sample smi; exec sleep infinity"
)
"""What a container does: it says its pod's UID, whether its limits name that and itself, and what
its card is to it."""


@pytest.fixture
def node(mizar_cluster: Cluster) -> Iterator[Node]:
    """A node whose kubelet runs as many pods as there are."""
    node = mizar_cluster.nodes[-1]
    with kubelet_with(mizar_cluster, node, maxPods=ALL + OTHERS):
        yield node


def sharers(tenant: str, name: str) -> Object:
    """The Deployment of pods that share a card."""
    count = PODS[name]
    made = deployment(tenant, name, f"mizar.share/gpu.{count}", count)
    (main,) = made["spec"]["template"]["spec"]["containers"]
    main["command"] = ["sh", "-c", SAYS]
    uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
    main["env"] = [{"name": "POD_UID", "valueFrom": uid}]
    return made


def test_each_of_many_pods_has_its_own_slot_and_limits(
    kube: Kube, stage: "Stage", node: Node
) -> None:
    """The pods of each card have a part of their own size. Each container, the node agent's map and
    the slots on the node's disk agree on who has what."""
    profiles = [{"devices": one, "cards": 1} for one in PODS.values()]
    here = {"kubernetes.io/hostname": node.name}
    pool = stage.pool(nodeSelector=here, profiles=profiles)
    quotas = [{"devices": one, "min": 1, "max": 1} for one in PODS.values()]
    tenant = stage.tenant(*quotas, pool=pool)
    ready_shadows(kube, tenant, len(PODS))
    kube.apply(*(sharers(tenant, name) for name in PODS))

    uids = wait_all_run(kube, tenant)
    for name, count in PODS.items():
        said = wait_all_said(kube, tenant, name, count)
        for pod, lines in said.items():
            assert lines[:2] == [f"uid {uids[pod]}", "mine"], lines
            limit = f"/ {CARD_MIB // count:6}MiB"
            assert any(limit in one for one in lines), lines
    check_map(kube, node, tenant, uids)


def wait_all_run(kube: Kube, tenant: str) -> dict[str, str]:
    """Wait until all pods run; their UIDs by name."""

    def all_run() -> list[Object] | None:
        found = kube.all("pods", tenant, "app in (small,large)")
        ready = [one for one in found if is_ready(one)]
        assert len(ready) == len(found) == ALL, f"{len(ready)} of {len(found)} run"
        return found

    found = wait_for("all pods to run", all_run, START_S, interval=2)
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}


def wait_all_said(kube: Kube, tenant: str, app: str, count: int) -> dict[str, list[str]]:
    """What each pod of the Deployment says, by its name. A container that the runtime created
    without asking the agent, which may be too busy, is killed and says it when it has started
    again."""

    def all_said() -> dict[str, list[str]]:
        said = words(kube, tenant, app, count)
        lacks = [pod for pod, lines in said.items() if not any("MiB /" in one for one in lines)]
        assert len(said) == count and not lacks, (
            f"{len(said)} pods, of which these have no card: {lacks}"
        )
        return said

    return wait_for("all pods to have their cards", all_said, START_S, interval=2)


def words(kube: Kube, tenant: str, app: str, count: int) -> dict[str, list[str]]:
    """What each pod of the Deployment says, by its name."""
    flags = ("--prefix", "--tail=-1", "--ignore-errors", f"--max-log-requests={count}")
    out = kube.run("logs", f"--namespace={tenant}", f"--selector=app={app}", *flags)
    said = defaultdict(list)
    for line in out.splitlines():
        place, _, text = line.partition(" ")
        said[place.split("/")[1]].append(text)
    return said


def check_map(kube: Kube, node: Node, tenant: str, uids: dict[str, str]) -> None:
    """Assert that the agent's map has each of the tenant's pods with a device and a slot of its
    own, that the slot is the pod's, and that the device's holder is the pod."""

    def complete() -> dict[str, Any] | None:
        found = [json.loads(one) for one in pages(kube, "nodeagent", "/debug/devices")]
        mine = [one for page in found for one in page["sharePods"] if of(one)]
        assert len(mine) == len(uids), len(mine)
        assert all(one["containers"][0]["slot"] for one in mine), mine
        return {of(one): one["containers"] for one in mine} | {"": found}

    def of(pod: Object) -> str:
        space, _, name = str(pod["name"]).partition("/")
        return name if space == tenant else ""

    known = wait_for("the agent's map to have all pods", complete)
    held = {
        device["id"]: device["holder"]
        for page in known.pop("")
        for shadow in page["shadowPods"]
        for device in shadow["devices"]
    }
    slots, devices = set(), set()
    for pod, uid in uids.items():
        (container,) = known[pod]
        (device,) = container["devices"]
        assert container["container"] == "main" and held[device] == f"{tenant}/{pod}/main"
        limits = node.path(f"/var/lib/mizar/slots/{container['slot']}/limits").read_bytes()
        assert uid.encode() in limits, container
        slots.add(container["slot"])
        devices.add(device)
    assert len(slots) == len(devices) == len(uids)
