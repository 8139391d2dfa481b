"""The node agent lends cards on a real kubelet; admission and the operator's part are left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.local_cluster import LocalCluster
from integration.agent_on_node import NODE, Tenant
from mizar_core.models import Spot
from mizar_core.spot_rules import CONFIG_MAP, KEY, SpotRule, SpotRules
from mizar_nodeagent.kubelet.device_checkpoint import FILE
from simgpu import Machine
from support import objects
from support.kube import Kube, condition
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

IDLE_S = 2
RESOURCE = "mizar.spot/gpu"
LOW_POWER = {"mizar.share/low-power": "true"}


@pytest.fixture(scope="module", autouse=True)
def without_a_trace(prepared: LocalCluster) -> Iterator[None]:
    """After the tests the kubelet forgets the resource; otherwise it would refuse pods that ask for
    it in other modules' tests.

    The kubelet remembers a resource whose plugin has ended for minutes, and across restarts. A
    kubelet that finds no record of devices when it starts takes all of them off the node's status,
    unless a plugin registers before that: then it leaves those that it does not know.
    """
    yield
    (node,) = prepared.nodes
    prepared.kill_kubelet(node.name)
    node.path(f"/var/lib/kubelet/device-plugins/{FILE}").unlink()
    prepared.start_kubelet(node.name)
    kube = Kube(prepared)
    wait_for("the kubelet to offer its cards", lambda: _offered(kube)["nvidia.com/gpu"] == "2")
    nothing = {RESOURCE: None}
    patch = json.dumps({"status": {"capacity": nothing, "allocatable": nothing}})
    kube.run("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={patch}")
    wait_for(
        "the node to offer its own cards alone",
        lambda: (
            _offered(kube)["nvidia.com/gpu"] == "2" and _offered(kube).get(RESOURCE, "0") == "0"
        ),
        explain=lambda: str(_offered(kube)),
    )


def _offered(kube: Kube) -> dict[str, str]:
    """How many of the resource the node has to give."""
    found: dict[str, str] = (kube.get("node", NODE) or {})["status"]["allocatable"]
    return found


@pytest.fixture(autouse=True)
def rules(kube: Kube) -> Iterator[None]:
    """Write the rules that the operator would write."""
    how = SpotRule(pool="default", spot=Spot(enabled=True, idle_after_seconds=IDLE_S))
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": "default"},
        "data": {KEY: SpotRules(rules=(how,)).to_json()},
    }
    kube.apply(body)
    yield
    kube.delete("configmap", CONFIG_MAP, "default")


@pytest.fixture
def card(tenant: Tenant, machine: Machine) -> str:
    """The card of a whole-card pod that holds memory and sleeps."""
    apply(tenant, objects.whole_card_pod(tenant.name, "owner"), LOW_POWER)
    tenant.run("owner")
    tenant.kube.wait_holding(tenant.name, "owner")
    wait_for(
        "the card to be lendable", lambda: allocatable(tenant) == "1", 120, 0.05, tenant.agent.log
    )
    (found,) = (one.uuid for one in machine.cards if one.used)
    return found


def apply(tenant: Tenant, pod: dict[str, Any], notes: dict[str, str] | None = None) -> None:
    pod["metadata"].setdefault("annotations", {}).update(notes or {})
    tenant.kube.apply(pod)


def borrow(tenant: Tenant) -> None:
    pod = objects.spot_pod(tenant.name, "train")
    pod["spec"]["containers"][0]["command"] = ["cuda-sample", "busy"]
    apply(tenant, pod)
    tenant.run("train")


def allocatable(tenant: Tenant) -> str | None:
    node = tenant.kube.get("node", NODE)
    assert node is not None
    found: str | None = node["status"]["allocatable"].get(RESOURCE)
    return found


def has_condition(tenant: Tenant, pod: str, *wanted: str) -> bool:
    """Whether the pod has this condition: type, status and reason."""
    found = condition(tenant.kube.get("pod", pod, tenant.name) or {}, wanted[0])
    assert (found["status"], found["reason"]) == wanted[1:], found
    return True


def works(machine: Machine, uuid: str) -> frozenset[int]:
    """The processes on the card that have worked for more than a moment."""
    return frozenset(one.pid for one in machine.card(uuid).processes if one.work_ns > 50_000_000)


def test_a_card_is_lent_while_its_owner_sleeps_and_comes_back_at_once(
    tenant: Tenant,
    machine: Machine,
    card: str,
) -> None:
    wait_for(
        "the owner's condition",
        lambda: has_condition(tenant, "owner", "mizar.share/active", "False", "CardLendable"),
    )
    borrow(tenant)
    (borrower,) = wait_for("the borrower to work", lambda: works(machine, card))
    wait_for(
        "the borrower's condition",
        lambda: has_condition(tenant, "train", "mizar.share/borrows", "True", "CardBorrowed"),
    )
    code, out = tenant.kube.exec(tenant.name, "train", "cuda-sample", "alloc", "15000")
    assert code != 0 and "OUT_OF_MEMORY" in out, "the owner's memory and the reserve are left"
    pids = {one.pid for one in machine.card(card).processes}
    began: list[float] = []

    def is_back() -> bool:
        now = {one.pid: one for one in machine.card(card).processes}
        if now.keys() - pids and not began:
            began.append(time.monotonic())
        return borrower not in now

    started, awake = tenant.kube.exec(
        tenant.name, "owner", "sh", "-c", "cuda-sample busy >/dev/null 2>&1 & echo $!"
    )
    assert started == 0, awake
    wait_for("the borrower to be gone", is_back, 60, 0.002, tenant.agent.log)
    print(f"the borrower was gone {time.monotonic() - began[0]:.3f} s after the owner's context")
    wait_for(
        "the borrower's condition",
        lambda: has_condition(tenant, "train", "DisruptionTarget", "True", "OwnerBack"),
    )
    wait_for(
        "the owner's condition",
        lambda: has_condition(tenant, "owner", "mizar.share/active", "True", "CardKept"),
    )
    wait_for("nothing to be offered", lambda: allocatable(tenant) == "0")
    evicted = f'mizar_spot_evictions_total{{node="{NODE}",reason="OwnerBack"}} 1.0'
    wait_for("it to be counted", lambda: evicted in tenant.agent.page("/metrics"))
    wait_for(
        "the event", lambda: card in dict(tenant.kube.events(tenant.name, "train"))["SpotEvicted"]
    )
    tenant.kube.delete("pod", "train", tenant.name)
    status, said = tenant.kube.exec(tenant.name, "owner", "sh", "-c", f"kill {awake.strip()}")
    assert status == 0, said
    wait_for("the card to be lendable again", lambda: allocatable(tenant) == "1")


def test_what_is_lent_stays_lent_while_agent_and_kubelet_start_anew(
    tenant: Tenant,
    machine: Machine,
    card: str,
    prepared: LocalCluster,
) -> None:
    borrow(tenant)
    (borrower,) = wait_for("the borrower to work", lambda: works(machine, card))
    tenant.agent.restart("KILL")
    prepared.restart_kubelet(NODE)
    wait_for("the card to be offered again", lambda: allocatable(tenant) == "1")
    before = {one.pid: one.work_ns for one in machine.card(card).processes}
    wait_for(
        "the borrower to go on",
        lambda: (
            {one.pid: one.work_ns for one in machine.card(card).processes}[borrower]
            > before[borrower]
        ),
    )
    assert not [one for one, _ in tenant.kube.events(tenant.name, "train") if one == "SpotEvicted"]


def test_share_pods_lend_their_card_while_all_of_them_agree(
    tenant: Tenant, machine: Machine
) -> None:
    tenant.shadow()
    share = objects.share_pod(tenant.name, "one", tenant.resource)
    apply(tenant, share, LOW_POWER)
    tenant.run("one")
    tenant.kube.wait_holding(tenant.name, "one")
    wait_for("the card to be lendable", lambda: allocatable(tenant) == "1")
    borrow(tenant)
    tenant.wait_condition("Ready", "True", "Serving")
    (card,) = (one["uuid"] for one in tenant.status()["cards"])
    wait_for("the borrower to work", lambda: works(machine, card))
    tenant.share("two")
    wait_for(
        "the borrower's condition",
        lambda: has_condition(tenant, "train", "DisruptionTarget", "True", "OwnerAlive"),
        120,
        0.2,
        tenant.agent.log,
    )
    tenant.run("two")
