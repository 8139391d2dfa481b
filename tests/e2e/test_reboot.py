"""A node loses its power while pods share a card of it, and starts again.

What is real: every process of the node ends at once, among them kubelet, containerd, containers and
agent; /run and all mounts are emptied; the kubelet reads another boot ID, and NVIDIA's plugin
starts after it. What is not: containers see the machine's own boot ID, so the agent's files are
changed to be of another boot; the network and the simulated cards stay.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.components import wait_component
from e2e.watcher import NodeWatch
from e2e.watching import cards_seen_inside, ready_shadows, wait_held
from mizar_core.device_ids import DeviceID
from mizar_core.names import parse_resource
from mizar_nodeagent import agent_checkpoint
from mizar_nodeagent.boot import boot_id
from support.kube import Kube, is_ready
from support.objects import SHARE_PODS, deployment
from support.waiting import wait_for
from support.watcher_faults import WHOLE_CARDS

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
STATE = "/var/lib/mizar"
EARLIER = "an-earlier-boot"
LOOK_S = 0.02


def test_a_node_that_loses_its_power(kube: Kube, stage: "Stage", mizar_cluster: Cluster) -> None:
    """Its share pods run again, on cards that the kubelet has confirmed, within their limits. What
    is left of the old boot is collected."""
    node = mizar_cluster.nodes[-1]
    here = {"kubernetes.io/hostname": node.name}
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here))
    kube.apply(deployment(tenant, "users", replicas=2))
    before = wait_for("two pods", lambda: two_running(kube, tenant))
    ready_shadows(kube, tenant)
    wait_held(kube, tenant, *before)
    slots = _slots(node, tenant)
    assert len(slots) == 2

    mizar_cluster.power_off(node.name)
    _make_state_of_an_earlier_boot(node.path(STATE))
    with _early_offers(node) as early:
        began = time.monotonic()
        mizar_cluster.power_on(node.name)
        wait_for("the kubelet to tell of it", lambda: _was_rebooted(kube, node.name))
        wait_component(kube, "nodeagent")
        after = wait_for(
            "two pods that started since",
            lambda: two_running(kube, tenant, but=before),
            timeout=240,
            explain=lambda: kube.attempt("get", "pods", "-A", "-o", "wide")[1],
        )
        same = len(before.keys() & after.keys())
        print(f"shared again {time.monotonic() - began:.1f} s after the power was back")
        print(f"{same} of the pods are the same, the others are their Deployment's next")
    assert not early
    held = wait_held(kube, tenant, *after)
    assert len(held) == 2
    for pod in after:
        assert len(cards_seen_inside(kube, tenant, pod)) == 1
        status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", "12000")
        assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
    # Sooner than a slot that may belong to an Allocate which the kubelet has not recorded yet.
    wait_for("the slots of the old boot to go", lambda: not _slots(node, tenant) & slots, 110)
    wait_for("one slot for each pod", lambda: len(_slots(node, tenant)) == 2)


def two_running(
    kube: Kube, tenant: str, but: dict[str, str] | None = None
) -> dict[str, str] | None:
    """The ready containers of the tenant's two pods, by pod, if none of them is in `but`."""
    found = {
        one["metadata"]["name"]: str(one["status"]["containerStatuses"][0]["containerID"])
        for one in kube.all("pods", tenant, SHARE_PODS)
        if is_ready(one) and "deletionTimestamp" not in one["metadata"]
    }
    old = set((but or {}).values())
    return found if len(found) == 2 and not set(found.values()) & old else None


def _slots(node: Node, tenant: str) -> set[str]:
    """Names of the tenant's slots."""
    found = set()
    for one in node.path(STATE).glob("slots/*/slot.json"):
        with suppress(FileNotFoundError):  # The agent may just be collecting it.
            if f'"{tenant}.' in one.read_text():
                found.add(one.parent.name)
    return found


def _was_rebooted(kube: Kube, node: str) -> bool:
    return "Rebooted" in {reason for reason, _ in kube.events("default", node)}


def _make_state_of_an_earlier_boot(folder: Path) -> None:
    file = folder / "checkpoint.json"
    known = agent_checkpoint.load(file, time.monotonic(), boot_id())
    assert known.carvings, "the agent knows of no shadow pod"
    file.write_bytes(agent_checkpoint.to_bytes(known, EARLIER))
    for slot in folder.glob("slots/*/slot.json"):
        slot.write_text(json.dumps(json.loads(slot.read_text()) | {"boot": EARLIER}))


@contextmanager
def _early_offers(node: Node) -> Iterator[set[str]]:
    """Virtual devices that the kubelet calls healthy although, by its own answer, their shadow pod
    has no card. They must be seen in two looks in a row, since the kubelet is asked for one list
    after the other."""
    found: set[str] = set()
    end, watch = threading.Event(), NodeWatch(node)

    def look() -> None:
        before: set[str] = set()
        while not end.wait(LOOK_S):
            if seen := watch.look():
                holding = {one.pod for one in seen.held if one.resource == WHOLE_CARDS}
                shares = [ids for name, ids in seen.offered.items() if parse_resource(name)]
                now = {one for ids in shares for one in ids if _shadow(one) not in holding}
                found.update(now & before)
                before = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()
        watch.close()


def _shadow(device: str) -> str:
    parsed = DeviceID.parse(device)
    return f"{parsed.namespace}/{parsed.shadow}"
