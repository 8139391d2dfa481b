"""Changes how containers of the cluster get their cards, and tells which cards they got."""

import re
from typing import TYPE_CHECKING, Any, cast

from cluster import Cluster
from cluster.cluster import Node
from cluster.mizar import NAMESPACE
from e2e.components import set_agent_values
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event
from simgpu.machine import CONTROL_NODES, Machine
from support.kube import Kube, Object, condition
from support.objects import share_pod, spot_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

HALF = {"devices": 2, "min": 0, "max": 1}
LENDS = {"enabled": True, "idleAfterSeconds": 2}
AGENTS = "app.kubernetes.io/component=nodeagent"
CDI = "/run/cdi/nvidia.json"
CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
NVIDIA: Object = {"runtimeClassName": "nvidia"}
PLAIN: Object = {}


def cdi_file(cards: dict[str, int], kind: str = "nvidia.com/gpu") -> Object:
    """A CDI file as nvidia-ctk writes it, with cards by UUID. `cards`: their minor numbers. `kind`:
    another one, as in the file of NVIDIA's device plugin."""
    mounts = [
        {
            "hostPath": outside,
            "containerPath": inside,
            "options": ["rbind", "ro" if read_only else "rw"],
        }
        for outside, inside, read_only in (
            ("/run/simgpu/driver", "/usr/local/nvidia", True),
            ("/run/simgpu/state", "/run/simgpu/state", False),
        )
    ]

    mark = "/var/run/nvidia-container-devices/void"
    mounts.append({"hostPath": "/dev/null", "containerPath": mark, "options": ["ro", "bind"]})

    def nodes(*names: str) -> Object:
        paths = [{"path": f"/dev/{one}", "hostPath": f"/run/simgpu/dev/{one}"} for one in names]
        return {"deviceNodes": paths}

    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "mounts": mounts, **nodes(*CONTROL_NODES)}
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": uuid, "containerEdits": nodes(f"nvidia{minor}")}
            for uuid, minor in cards.items()
        ],
        "containerEdits": edits,
    }


def minors(node: Node) -> dict[str, int]:
    """Minor numbers of the node's cards, by UUID."""
    with Machine(node.simgpu_dir) as machine:
        return {card.uuid: card.minor for card in machine.health()}


class Access:
    """Changes how the cluster's containers get their cards."""

    def __init__(self, kube: Kube, cluster: Cluster) -> None:
        self.kube = kube
        self.cluster = cluster

    def use(self, *, wait: bool = True, **access: Any) -> None:
        """Have all agents use this `cardAccess`; they do on return, if it is to `wait`."""
        set_agent_values(self.kube, self.cluster, wait, cardAccess=access)

    def told(self, node: str | None = None) -> set[tuple[str, str]]:
        """Status and reason of the condition, over the agents' pods. LookupError: an agent has not
        set it yet."""
        pods = self.kube.all("pods", NAMESPACE, AGENTS)
        found = [
            condition(one, "mizar.share/card-access")
            for one in pods
            if node in (None, one["spec"].get("nodeName"))
            and "deletionTimestamp" not in one["metadata"]
        ]
        return {(str(one["status"]), str(one["reason"])) for one in found}

    def messages(self) -> set[str]:
        """What the agents' conditions say. LookupError: as `told`."""
        pods = self.kube.all("pods", NAMESPACE, AGENTS)
        found = [
            condition(one, "mizar.share/card-access")
            for one in pods
            if "deletionTimestamp" not in one["metadata"]
        ]
        return {str(one["message"]) for one in found}

    def wait_told(
        self, status: str, reason: str, node: str | None = None, timeout: float = 120
    ) -> None:
        wait_for(
            f"the agents to tell {status} {reason}",
            lambda: self.told(node) == {(status, reason)},
            timeout,
            explain=lambda: str(
                [one["status"] for one in self.kube.all("pods", NAMESPACE, AGENTS)]
            ),
        )


def greedy(kube: Kube, tenant: str, name: str, **spec: Any) -> Object:
    """A share pod that asks for all cards where no policy looks."""
    return asking_for_all(kube, share_pod(tenant, name, **spec))


def asking_for_all(kube: Kube, pod: Object) -> Object:
    """The pod, which asks for all cards where no policy looks."""
    data = {"NVIDIA_VISIBLE_DEVICES": "all"}
    metadata = {"name": "greedy", "namespace": pod["metadata"]["namespace"]}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "greedy"}}]
    return pod


def env_inside(kube: Kube, tenant: str, pod: str) -> dict[str, str]:
    status, answer = kube.exec(tenant, pod, "env")
    assert status == 0, answer
    return dict(one.partition("=")[::2] for one in answer.splitlines())


def card_nodes_inside(kube: Kube, tenant: str, pod: str) -> set[str]:
    """Names of the cards' device nodes that the pod has."""
    status, answer = kube.exec(tenant, pod, "ls", "/dev")
    assert status == 0, answer
    return set(re.findall(r"\bnvidia\d+\b", answer))


def check_own_cards(kube: Kube, stage: "Stage", spec: Object) -> tuple[str, str]:
    """Start two pods, one of which asks for all cards, and check that they have their own only.
    Both agree to lend it. Returns the tenant and the card."""
    tenant = stage.tenant(HALF, pool=stage.pool(spot=LENDS))
    pods = greedy(kube, tenant, "a", **spec), share_pod(tenant, "b", **spec)
    for pod in pods:
        pod["metadata"]["annotations"] = {"mizar.share/low-power": "true"}
    kube.apply(*pods)
    kube.wait_running(tenant, "a", "b")
    ready_shadows(kube, tenant)
    (own,) = wait_for("the device to be held", lambda: card_of(kube, tenant, "a"))
    assert cards_seen_inside(kube, tenant, "a") == {own}
    assert cards_seen_inside(kube, tenant, "b") == {own}
    return tenant, own


def check_borrowed_card(kube: Kube, stage: "Stage", owner: str, own: str, spec: Object) -> None:
    """Start a borrower that asks for all cards, and check that it has the card `own` only, which
    its owner, the tenant's pod `a`, gets back when it works."""
    tenant = stage.tenant(pool=stage.pool(), spot={"max": 1})
    kube.apply(asking_for_all(kube, spot_pod(tenant, "borrower", **spec)))
    kube.wait_running(tenant, "borrower")
    kube.wait_holding(tenant, "borrower")
    assert cards_seen_inside(kube, tenant, "borrower") == {own}
    nodes = cast(Cluster, kube.cluster).nodes
    number = {uuid: number for node in nodes for uuid, number in minors(node).items()}[own]
    assert card_nodes_inside(kube, tenant, "borrower") == {f"nvidia{number}"}
    status, answer = kube.exec(owner, "a", "cuda-sample", "busy", "--seconds", "4")
    assert status == 0, answer
    assert f"card {own}" in wait_event(kube, tenant, "borrower", "SpotEvicted")
    kube.wait_gone("pod", tenant, "borrower")
