"""Values of the node agent that only nodes show: where the driver is, what happens without one,
which XIDs count, further ways to give a card, and other settings for nodes with a label."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.card_access import card_nodes_inside
from e2e.components import SYSTEM, component_pods, previous_values, set_agent_values, wait_component
from e2e.test_figures import scrape
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from mizar_nodeagent.card_health import REPAIRED
from simgpu.machine import Machine
from support.kube import Kube, Object, condition
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ROOT = "/run/own-driver"
SIMULATED = "/run/simgpu"
XID = 48
LABEL = "example.com/rack"
MARKS = "/var/run/nvidia-container-devices"
VALUES: Object = {
    "driverRoot": ROOT,
    "failOnInitError": True,
    "ignoredXids": [XID],
    # Nothing but driverRoot says where NVML and the device nodes are.
    "extraEnv": [{"name": "SIMGPU_DEV", "value": f"{SIMULATED}/dev"}],
    "cardAccess": {"strategy": "Mounts", "devRoot": f"{ROOT}/dev", "also": ["VolumeMounts"]},
    "overrides": [{"nodeSelector": {LABEL: "old"}, "settings": {"ignoredXids": []}}],
}


@pytest.fixture
def labelled(kube: Kube, mizar_cluster: Cluster) -> Iterator[tuple[Node, Node]]:
    """Two nodes of which the second has LABEL, with agents that were given VALUES while there is no
    driver below ROOT. At the end all is as before."""
    plain, old = mizar_cluster.nodes
    kube.run("label", "node", old.name, f"{LABEL}=old")
    try:
        with previous_values(mizar_cluster):
            set_agent_values(kube, mizar_cluster, wait=False, **VALUES)
            yield plain, old
    finally:
        wait_component(kube, "nodeagent")
        kube.run("label", "node", old.name, f"{LABEL}-")
        for node in (plain, old):
            mizar_cluster.exec_on_node(node.name, ["rm", "-rf", ROOT])
            repair(node)


def repair(node: Node) -> None:
    """All cards of the node are well again, and its agent is told so."""
    with Machine(node.simgpu_dir) as machine:
        for card in machine.cards:
            machine.restore(card.uuid)
            (node.path("/var/lib/mizar") / f"{REPAIRED}{card.uuid}").touch()


def install_driver(on: Cluster, node: Node) -> None:
    """Put the simulated driver and its device nodes below ROOT, as a driver container does."""
    copy = f"cp -a {SIMULATED}/driver/lib64 {ROOT}/usr/ && cp -a {SIMULATED}/dev {ROOT}/"
    on.exec_on_node(node.name, ["sh", "-c", f"mkdir -p {ROOT}/usr && {copy}"])


def ended_agent(kube: Kube) -> str | None:
    """What an agent that exited with an error said; None while there is none."""
    for pod in component_pods(kube, "nodeagent"):
        for status in pod["status"].get("containerStatuses", ()):
            found = status["state"].get("terminated") or status["lastState"].get("terminated")
            if found and found["exitCode"] == 1:
                where = (pod["metadata"]["name"], f"--namespace={SYSTEM}")
                running = "running" in status["state"]
                return kube.attempt("logs", *where, *(["--previous"] if running else []))[1]
    return None


def settings_of(kube: Kube, node: Node) -> tuple[str, str]:
    """Reason and message of the agent's condition about its settings."""
    pods = component_pods(kube, "nodeagent")
    (agent,) = [one for one in pods if one["spec"]["nodeName"] == node.name]
    found = condition(agent, "mizar.share/node-settings")
    return str(found["reason"]), str(found["message"])


def test_agents_follow_the_charts_values_on_their_nodes(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, labelled: tuple[Node, Node]
) -> None:
    """An agent without a driver exits and says why, and works once the driver is below driverRoot.
    Containers get their card in both ways. An XID that is ignored changes nothing; on the node
    whose label brings other settings, it fails the card."""
    said = wait_for("an agent to exit", lambda: ended_agent(kube))
    assert f"failOnInitError is set, and there is no libnvidia-ml.so.1 below driverRoot {ROOT}" in (
        said
    )
    for node in labelled:
        install_driver(mizar_cluster, node)
    wait_component(kube, "nodeagent")
    plain, old = labelled
    wait_for("the settings", lambda: settings_of(kube, plain)[0] == "Default")
    reason, message = settings_of(kube, old)
    assert reason == "Overridden" and "ignoredXids" in message, message

    tenants = {one.name: shared_on(kube, stage, one) for one in labelled}
    for node in labelled:
        with Machine(node.simgpu_dir) as machine:
            (uuid,) = card_of(kube, tenants[node.name], "a")
            machine.state.raise_xid(machine.card(uuid).index, XID)
    assert f"XID {XID}" in wait_event(kube, tenants[old.name], "a", "DeviceUnhealthy")
    (uuid,) = card_of(kube, tenants[plain.name], "a")
    wait_for("the other agent to see its XID", lambda: has_seen(kube, uuid))
    (shadow,) = ready_shadows(kube, tenants[plain.name])
    assert condition(shadow, "Healthy")["status"] == "True"
    assert "DeviceUnhealthy" not in dict(kube.events(tenants[plain.name], "a"))
    repair(old)
    ready_shadows(kube, tenants[old.name])


def shared_on(kube: Kube, stage: "Stage", node: Node) -> str:
    """A tenant whose pod `a` has a device of the node, and its card in both ways."""
    pool = stage.pool(nodeSelector={"kubernetes.io/hostname": node.name})
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, pool=pool)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (uuid,) = card_of(kube, tenant, "a")
    assert cards_seen_inside(kube, tenant, "a") == {uuid}
    assert len(card_nodes_inside(kube, tenant, "a")) == 1
    assert kube.exec(tenant, "a", "ls", MARKS)[1].split() == [uuid]
    return tenant


def has_seen(kube: Kube, uuid: str) -> bool:
    """Whether an agent counts the XID of this card."""
    lines = scrape(kube, "nodeagent").splitlines()
    counted = [one for one in lines if one.startswith("mizar_card_xids_total{") and uuid in one]
    return any(f'xid="{XID}"' in one and float(one.split()[-1]) > 0 for one in counted)
