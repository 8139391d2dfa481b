"""The node agent on a real kubelet, with shadow pods made by hand instead of by an operator."""

from __future__ import annotations

import pytest

from cluster.local_cluster import LocalCluster
from integration.agent_on_node import NODE, Tenant
from mizar_core.models import Isolation
from simgpu import Machine
from support.waiting import wait_for

MIB = 1 << 20

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_shadow_pods_card_is_carved_and_shown(tenant: Tenant, machine: Machine) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    status = tenant.status()
    (card,) = status["cards"]
    assert card["uuid"] in {one.uuid for one in machine.cards}
    assert card["memoryMiB"] == 16384
    assert [one["id"] for one in status["devices"]] == [
        f"{tenant.name}/shadow-2-aaaaa-{index}" for index in (0, 1)
    ]
    assert status["node"] == NODE and status["usage"] == "0/2"
    wait_for("the node to offer both", lambda: tenant.allocatable() == "2")


def test_two_share_pods_run_on_one_card_within_their_memory(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.share("two", command=["sleep", "3600"])
    tenant.run("one", "two")
    wait_for("both holders", lambda: sorted(tenant.holders().values()) == ["one", "two"])
    code, out = tenant.kube.exec(tenant.name, "two", "cuda-sample", "alloc", "7000")
    assert code == 0, out
    code, out = tenant.kube.exec(tenant.name, "two", "cuda-sample", "alloc", "9000")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out and code != 0
    wait_for("its memory in the figures", lambda: used_by(tenant, "one") >= 1024 * MIB)


def used_by(tenant: Tenant, pod: str) -> float:
    """Bytes that the pod uses by the agent's metrics. LookupError: the metrics do not have the
    pod."""
    labels = f'namespace="{tenant.name}",node="{NODE}",pod="{pod}"'
    used = [
        float(line.rpartition(" ")[2])
        for line in tenant.agent.page("/metrics").splitlines()
        if line.startswith("mizar_device_memory_used_bytes") and labels in line
    ]
    return used[0]


def test_devices_of_a_deleted_pod_are_used_again(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one", count=2)
    tenant.run("one")
    wait_for("the holder", lambda: set(tenant.holders().values()) == {"one"})
    tenant.kube.delete("pod", "one", tenant.name)
    wait_for("the devices to be free", lambda: tenant.holders() == {})
    assert tenant.status()["idleSince"]
    tenant.share("two", count=2)
    tenant.run("two")
    wait_for("the new holder", lambda: set(tenant.holders().values()) == {"two"})


def test_an_agents_restart_loses_nothing(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.run("one")
    tenant.kube.wait_holding(tenant.name, "one")
    tenant.wait_condition("Ready", "True", "Serving")
    before = tenant.status()["devices"]
    tenant.agent.restart("KILL")
    with tenant.another():
        wait_for("both holders", tenant.both_hold)
    assert [one["id"] for one in tenant.status()["devices"]] == [one["id"] for one in before]
    code, out = tenant.kube.exec(tenant.name, "one", "cuda-sample", "alloc", "7500")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out, f"its 1 GiB counts: {code} {out}"


def test_a_kubelets_restart_loses_nothing(tenant: Tenant, prepared: LocalCluster) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.run("one")
    prepared.restart_kubelet(NODE)
    with tenant.another():
        tenant.run("one")
        wait_for("both holders", tenant.both_hold)
    tenant.wait_condition("Ready", "True", "Serving")


def test_a_restarted_container_keeps_its_limits(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.run("one")
    # A container's first process never gets a signal that its program does not expect yet.
    tenant.kube.wait_holding(tenant.name, "one")
    tenant.kube.exec(tenant.name, "one", "sh", "-c", "kill -TERM 1")

    def restarted() -> bool:
        pod = tenant.kube.get("pod", "one", tenant.name)
        assert pod is not None
        return bool(pod["status"]["containerStatuses"][0]["restartCount"] >= 1)

    wait_for("the container to start again", restarted)
    tenant.run("one")
    code, out = tenant.kube.exec(tenant.name, "one", "cuda-sample", "alloc", "9000")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out and code != 0


def test_what_is_not_enforced_does_not_start(tenant: Tenant) -> None:
    tenant.shadow(isolation=Isolation(backend="MPS"))
    tenant.share("one")
    wait_for(
        "the event",
        lambda: "IsolationNotEnforced" in dict(tenant.kube.events(tenant.name, "one")),
    )
    assert tenant.kube.phase(tenant.name, "one") == "Pending"


def test_a_drain_ends_drained_and_can_be_called_off(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    tenant.drain()
    tenant.wait_condition("Draining", "True", "Drained")
    # The kubelet may have written its earlier count over the agent's, until either writes again.
    wait_for("the node to offer nothing", lambda: tenant.allocatable() == "0")
    tenant.drain(on=False)
    tenant.wait_condition("Ready", "True", "Serving")
    tenant.share("one")
    tenant.run("one")
    tenant.drain()
    tenant.wait_condition("Draining", "False", "InUse")
    wait_for("the node to offer both", lambda: tenant.allocatable() == "2")


def test_a_broken_card_is_reported(tenant: Tenant, machine: Machine) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    uuid = tenant.status()["cards"][0]["uuid"]
    machine.remove(uuid)
    try:
        tenant.wait_condition("Healthy", "False", "CardFailed")
        wait_for("the node to offer nothing", lambda: tenant.allocatable() == "0")
    finally:
        machine.restore(uuid)
    tenant.wait_condition("Healthy", "True", "CardsWell")


def test_two_shadow_pods_of_one_resource_are_one_count(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.shadow("shadow-2-bbbbb")
    wait_for("all four devices", lambda: tenant.allocatable() == "4")
    tenant.share("pair", count=2)
    tenant.run("pair")
    shadows = [tenant.holders(name) for name in ("shadow-2-aaaaa", "shadow-2-bbbbb")]
    wait_for(
        "both devices from one shadow pod",
        lambda: (
            sorted(len(tenant.holders(name)) for name in ("shadow-2-aaaaa", "shadow-2-bbbbb"))
            == [0, 2]
        ),
        explain=lambda: str(shadows),
    )
    tenant.kube.delete("pod", "shadow-2-bbbbb", tenant.name, "--grace-period=0")


def test_the_agent_ends_promptly(tenant: Tenant) -> None:
    assert tenant.agent.stop() < 15  # seconds, as many as its pod is given to end
    tenant.agent.start()
