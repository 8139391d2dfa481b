"""The runbook of a failing card, step by step, by the commands that it names."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.components import component_pods, wait_component
from e2e.test_card_health import metric_of
from e2e.test_loss import running
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from mizar_nodeagent.card_health import REPAIRED
from simgpu.machine import Machine
from support.kube import Kube, condition
from support.objects import deployment, share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbooks" / "failing-card.md"
THREE = {"devices": 2, "min": 0, "max": 3}
LIMIT_S = 240.0


@dataclass(frozen=True)
class Administrator:
    """Somebody at a shell with kubectl, and with another one on the node, who follows the
    runbook."""

    cluster: Cluster
    node: Node
    uuid: str

    def run(self, words: str, but: tuple[str, str] = ("", "")) -> str:
        """The output of a command of the runbook, in which NODE and UUID stand for the node and the
        card; `but`: something in it that the reader replaces."""
        return self._shell(["bash", "-c", self._filled(words).replace(*but)])

    def run_on_node(self, words: str) -> None:
        """Run a command of the runbook on the node."""
        self.cluster.exec_on_node(self.node.name, ["sh", "-c", self._filled(words)])

    def _filled(self, words: str) -> str:
        text = RUNBOOK.read_text()
        assert words in text or words in " ".join(text.split()), f"the runbook has no {words!r}"
        return words.replace("NODE", self.node.name).replace("UUID", self.uuid)

    def _shell(self, argv: list[str]) -> str:
        environment = self.cluster.environment()
        tools = self.cluster.tool("kubectl").parent
        environment["PATH"] = f"{tools}:{environment['PATH']}"
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _labels() -> str:
    """The runbook's commands that stop all programs that have the card open."""
    (found,) = re.findall(r"^   ```\n(.*?)^   ```$", RUNBOOK.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture
def administrator(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> Iterator[tuple[Administrator, str]]:
    """An administrator of a node with a card that two pods of the tenant share. Their Deployment's
    next pods may be on the other node."""
    node = mizar_cluster.nodes[-1]
    tenant = stage.tenant(THREE, pool=stage.pool())
    kube.run("cordon", mizar_cluster.nodes[0].name)
    kube.apply(deployment(tenant, "users", replicas=2))
    names = wait_for("two pods on a card", lambda: running(kube, tenant, 2))
    kube.run("uncordon", mizar_cluster.nodes[0].name)
    ready_shadows(kube, tenant)
    wait_held(kube, tenant, *names)
    (uuid,) = card_of(kube, tenant, names[0])
    try:
        yield Administrator(mizar_cluster, node, uuid), tenant
    finally:
        for one in mizar_cluster.nodes:
            kube.run("uncordon", one.name)
        parts = _labels().partition("for one in ")[2].partition(";")[0].split()
        kube.run("label", "node", node.name, *(f"nvidia.com/gpu.deploy.{one}-" for one in parts))
        with Machine(node.simgpu_dir) as machine:
            for card in machine.cards:
                machine.restore(card.uuid)
        (node.path("/var/lib/mizar") / f"{REPAIRED}{uuid}").touch()
        wait_component(kube, "nodeagent")


def test_an_administrator_who_follows_the_runbook(
    kube: Kube, mizar_cluster: Cluster, administrator: tuple[Administrator, str]
) -> None:
    """The pods go to another card; the card is reset, and pods use it again. It fails once more,
    and is masked; then it is replaced, and pods use the new one."""
    admin, tenant = administrator
    names = running(kube, tenant, 2) or []
    with Machine(admin.node.simgpu_dir) as machine:
        machine.set_health(admin.uuid, 79)
        for name in names:
            wait_event(kube, tenant, name, "DeviceUnhealthy")
        wait_for("the metric", lambda: metric_of(kube, admin.uuid) == 0)
        _look(kube, admin, tenant, names)
        _drain(kube, admin)
        wait_for("two others", lambda: running(kube, tenant, 2, but=names), LIMIT_S)
        _reset(kube, admin, machine)
        _use_both_cards(kube, tenant, admin.node.name, {one.uuid for one in machine.cards})

        machine.set_health(admin.uuid, 64)
        wait_for("the metric", lambda: metric_of(kube, admin.uuid) == 0)
        kube.run("delete", "pods", "one", "two", f"--namespace={tenant}")
        _drain(kube, admin)
        _mask(kube, mizar_cluster, admin, machine)
        new = _replace(mizar_cluster, admin, machine)
        wait_component(kube, "nodeagent")
        wait_for("the new card", lambda: metric_of(kube, new) == 1)
        admin.run("kubectl uncordon NODE")
        _use_both_cards(kube, tenant, admin.node.name, {one.uuid for one in machine.cards})


def _drain(kube: Kube, admin: Administrator) -> None:
    """No pod of the node holds a card on return."""
    admin.run("kubectl cordon NODE")
    admin.run("kubectl drain NODE --ignore-daemonsets --delete-emptydir-data")
    wait_for("the node's cards to be free", lambda: not _with_cards(kube, admin.node.name))


def _reset(kube: Kube, admin: Administrator, machine: Machine) -> None:
    """Reset the card while no agent runs."""
    admin.run(_labels())
    wait_for("the agent to go", lambda: not _agents_on(kube, admin.node.name))
    machine.set_health(admin.uuid, 0)
    admin.run_on_node("touch /var/lib/mizar/repaired-UUID")
    admin.run(_labels(), but=("=false", "=true"))
    wait_for("the card to be well", lambda: metric_of(kube, admin.uuid) == 1)
    admin.run("kubectl uncordon NODE")


def _mask(kube: Kube, cluster: Cluster, admin: Administrator, machine: Machine) -> None:
    """The node starts without the card; nothing is told of it any more."""
    (other,) = (one.uuid for one in machine.cards if one.uuid != admin.uuid)
    cluster.power_off(admin.node.name)
    machine.remove(admin.uuid)
    cluster.power_on(admin.node.name)
    wait_component(kube, "nodeagent")
    wait_for("the agent to see one card", lambda: metric_of(kube, other) == 1)
    assert metric_of(kube, admin.uuid) is None


def _replace(cluster: Cluster, admin: Administrator, machine: Machine) -> str:
    """The node starts with another card in the place of this one. Returns its UUID."""
    cluster.power_off(admin.node.name)
    new = machine.replace(admin.uuid)
    cluster.power_on(admin.node.name)
    return new


def _look(kube: Kube, admin: Administrator, tenant: str, pods: list[str]) -> None:
    """What the runbook says that one sees first is there."""
    assert admin.uuid in admin.run("kubectl get shadowpods -A -o wide")
    found = admin.run("kubectl get events -A --field-selector reason=DeviceUnhealthy")
    assert all(one in found for one in pods), found
    (shadow,) = kube.all("shadowpods", tenant)
    name = shadow["metadata"]["name"]
    assert admin.uuid in condition(shadow, "Healthy")["message"]
    words = "kubectl get shadowpod NAME -n NAMESPACE -o yaml"
    told = admin.run(words, but=("NAME -n NAMESPACE", f"{name} -n {tenant}"))
    assert all(one in told for one in [admin.uuid, *pods])


def _use_both_cards(kube: Kube, tenant: str, node: str, cards: set[str]) -> None:
    """Two pods that take a card each of the node see these two cards."""
    here = {"kubernetes.io/hostname": node}
    pods = [share_pod(tenant, name, count=2, nodeSelector=here) for name in ("one", "two")]
    kube.run("scale", "deployment/users", "--replicas=0", f"--namespace={tenant}")
    kube.apply(*pods)
    kube.wait_running(tenant, "one", "two", timeout=LIMIT_S)
    seen = [cards_seen_inside(kube, tenant, name) for name in ("one", "two")]
    assert seen[0] | seen[1] == cards and len(seen[0]) == len(seen[1]) == 1


def _with_cards(kube: Kube, node: str) -> list[str]:
    """The pods on the node that hold cards."""
    return [
        one["metadata"]["name"]
        for one in kube.all("pods")
        if one["spec"].get("nodeName") == node
        and any(
            "nvidia.com/gpu" in (of.get("resources", {}).get("limits") or {})
            for of in one["spec"]["containers"]
        )
    ]


def _agents_on(kube: Kube, node: str) -> list[str]:
    found = component_pods(kube, "nodeagent")
    return [one["metadata"]["name"] for one in found if one["spec"].get("nodeName") == node]
