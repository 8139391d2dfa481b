"""Each way to give containers their cards, against a tenant who asks for all of them.

The tenant's variable comes from a ConfigMap, whose keys no admission policy sees. Pods of the
runtime class nvidia run under a stand-in for NVIDIA's container runtime, which does what the
variable says.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.layout import Layout
from cluster.mizar import NAMESPACE
from e2e.card_access import (
    AGENTS,
    CDI,
    HALF,
    NVIDIA,
    PLAIN,
    Access,
    card_nodes_inside,
    cdi_file,
    check_borrowed_card,
    check_own_cards,
    env_inside,
    greedy,
    minors,
)
from e2e.watcher import wait_noted
from e2e.watching import card_of, cards_seen_inside, wait_held
from support.kube import Kube, Object
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CARDS_PER_NODE = 2
RENEWED_S = 300.0
"""The kubelet renews a ConfigMap's files within a minute or so, and the agent starts anew then."""
PLUGINS_KIND = "k8s.device-plugin.nvidia.com/gpu"


@pytest.fixture
def plugins_cdi(mizar_cluster: Cluster, cdi: None) -> None:
    """The same files as those of NVIDIA's device plugin, all that the GPU Operator's nodes have."""
    for node in mizar_cluster.nodes:
        node.path(CDI).write_text(json.dumps(cdi_file(minors(node), PLUGINS_KIND)))


WAYS: dict[str, tuple[Object, Object, str]] = {
    "Auto": ({"strategy": "Auto"}, PLAIN, "NRI"),
    "NRI-EnvVar": ({"strategy": "NRI", "nriGives": "EnvVar"}, NVIDIA, "NRI"),
    "NRI-VolumeMounts": ({"strategy": "NRI", "nriGives": "VolumeMounts"}, NVIDIA, "NRI"),
    "NRI-CDI": ({"strategy": "NRI", "nriGives": "CDI"}, NVIDIA, "NRI"),
    "CDI": ({"strategy": "CDI"}, NVIDIA, "CDI"),
    "CDIAnnotations": ({"strategy": "CDIAnnotations"}, NVIDIA, "CDIAnnotations"),
    "CDI-and-nodes": ({"strategy": "CDI", "passDeviceSpecs": True}, NVIDIA, "CDI"),
    "VolumeMounts": ({"strategy": "VolumeMounts"}, NVIDIA, "VolumeMounts"),
    "Mounts": ({"strategy": "Mounts"}, PLAIN, "Mounts"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_pod_that_asks_for_all_cards_gets_only_its_own(
    kube: Kube, stage: "Stage", access: Access, cdi: None, way: str
) -> None:
    """Nor does a borrower get another card than the one that is lent."""
    values, spec, told = WAYS[way]
    access.use(**{"passDeviceSpecs": False, **values})
    access.wait_told("True", told)
    tenant, own = check_own_cards(kube, stage, spec)
    if told == "NRI":
        assert env_inside(kube, tenant, "a")["NVIDIA_VISIBLE_DEVICES"] != "all"
    check_borrowed_card(kube, stage, tenant, own, spec)


@pytest.mark.parametrize("strategy", ["Auto", "CDI"])
def test_cards_of_the_plugins_cdi_files_are_found(
    kube: Kube, stage: "Stage", access: Access, plugins_cdi: None, strategy: str
) -> None:
    """As the GPU Operator leaves a node: runc is the default runtime, and nobody has told the
    agent what cards are called there."""
    access.use(strategy=strategy, nriGives="Auto", passDeviceSpecs=False)
    told = "NRI" if strategy == "Auto" else "CDI"
    access.wait_told("True", told)
    assert access.messages() == {
        "containers get their cards by " + ("NRI, which gives CDI" if told == "NRI" else "CDI")
    }
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    (own,) = wait_for("the device to be held", lambda: card_of(kube, tenant, "a"))
    assert cards_seen_inside(kube, tenant, "a") == {own}


def test_the_variable_alone_can_be_overridden(
    kube: Kube, stage: "Stage", access: Access, expected_faults: list[str]
) -> None:
    """What docs/behaviour.md says of EnvVar, and that the stand-in follows the variable."""
    access.use(strategy="EnvVar")
    access.wait_told("True", "EnvVar")
    tenant = stage.tenant(HALF)
    expected_faults.append(f"{tenant}/a/main has card")
    asleep = {"command": ["sleep", "3600"], **NVIDIA}
    kube.apply(greedy(kube, tenant, "a", **asleep), share_pod(tenant, "b", **asleep))
    kube.wait_running(tenant, "a", "b")
    assert len(card_nodes_inside(kube, tenant, "a")) == CARDS_PER_NODE
    assert len(card_nodes_inside(kube, tenant, "b")) == 1
    wait_noted(expected_faults[0])


def nri_setting(cluster: Cluster, node: str) -> tuple[Path, str, str]:
    """The configuration of the node's runtime, and what it says with and without NRI."""
    folder = Layout(cluster.name).node(node).config
    if (config := folder / "crio.toml").exists():
        return config, "enable_nri = true", "enable_nri = false"
    setting = '[plugins."io.containerd.nri.v1.nri"]\ndisable = '
    return folder / "containerd.toml", f"{setting}false", f"{setting}true"


def test_without_nri_nothing_starts_until_it_is_back(
    kube: Kube, stage: "Stage", access: Access, mizar_cluster: Cluster
) -> None:
    """The runtime comes back without NRI, then with it. Pods that run notice nothing."""
    access.use(strategy="Auto", nriGives="Auto")
    access.wait_told("True", "NRI")
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (before,) = card_of(kube, tenant, "a")
    pod = kube.get("pod", "a", tenant)
    assert pod is not None
    node = pod["spec"]["nodeName"]
    config, with_nri, without = nri_setting(mizar_cluster, node)
    text = config.read_text()
    assert with_nri in text

    def restart(toml: str) -> None:
        mizar_cluster.kill_containerd(node)
        config.write_text(toml)
        mizar_cluster.start_containerd(node)

    restart(text.replace(with_nri, without))
    try:
        access.wait_told("False", "NRI", node)
        kube.apply(greedy(kube, tenant, "b"))
        wait_for("the kubelet to be told why", lambda: _waits(kube, tenant, "b"))
        assert kube.phase(tenant, "b") == "Pending"
    finally:
        restart(text)
    access.wait_told("True", "NRI", node)
    kube.wait_running(tenant, "b")
    assert cards_seen_inside(kube, tenant, "b") == {before}
    after = kube.get("pod", "a", tenant)
    assert after is not None
    (status,) = after["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    assert cards_seen_inside(kube, tenant, "a") == {before}


def _waits(kube: Kube, tenant: str, pod: str) -> bool:
    found = kube.get("pod", pod, tenant)
    assert found is not None
    for one in found["status"].get("containerStatuses", ()):
        message = str(one["state"].get("waiting", {}).get("message"))
        assert "is not connected to Mizar" in message, message
        return True
    return False


def agent_on(kube: Kube, node: str) -> Object:
    """The agent's pod of that node."""
    pods = kube.all("pods", NAMESPACE, AGENTS)
    (found,) = [one for one in pods if one["spec"]["nodeName"] == node]
    return found


def restarts(kube: Kube, node: str) -> int:
    (status,) = agent_on(kube, node)["status"]["containerStatuses"]
    return int(status["restartCount"])


def test_one_node_has_settings_of_its_own(
    kube: Kube, stage: "Stage", access: Access, mizar_cluster: Cluster
) -> None:
    """Pods that run notice nothing; a mistake in the settings ends no agent."""
    access.use(strategy="Auto", nriGives="Auto", passDeviceSpecs=False)
    access.wait_told("True", "NRI")
    mine, *others = [node.name for node in mizar_cluster.nodes]
    tenant = stage.tenant(HALF)
    pinned: Object = {"nodeSelector": {"kubernetes.io/hostname": mine}}
    kube.apply(share_pod(tenant, "a", **pinned))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (own,) = card_of(kube, tenant, "a")

    def override(settings: str) -> None:
        data = {"overrides.yaml": f"- nodes: [{mine}]\n  settings: {settings}\n"}
        where = ("configmap", "mizar-nodeagent-overrides", f"--namespace={NAMESPACE}")
        kube.run("patch", *where, "--type=merge", f"--patch={json.dumps({'data': data})}")

    def settings(status: str, reason: str, message: str) -> None:
        def told() -> bool:
            pod = agent_on(kube, mine)["status"].get("conditions", ())
            found = [one for one in pod if one["type"] == "mizar.share/node-settings"]
            return any(
                (one["status"], one["reason"]) == (status, reason) and message in one["message"]
                for one in found
            )

        wait_for(f"the agent to tell {status} {reason}", told, timeout=RENEWED_S)

    before = restarts(kube, mine)
    override("{cardAccess: {strategy: Mounts}}")
    settings("True", "Overridden", "cardAccess")
    access.wait_told("True", "Mounts", mine)
    for other in others:
        assert access.told(other) == {("True", "NRI")}
    # The agent may say so before its kubelet reports that it was started again.
    wait_for("its restart to be counted", lambda: restarts(kube, mine) == before + 1)
    override("{cardAccess: {strategi: CDI}}")
    settings("False", "Refused", "overrides[0].settings.cardAccess.strategi: there is no such")
    assert access.told(mine) == {("True", "Mounts")} and restarts(kube, mine) == before + 1
    kube.apply(share_pod(tenant, "b", **pinned))
    kube.wait_running(tenant, "b")
    assert cards_seen_inside(kube, tenant, "a") == cards_seen_inside(kube, tenant, "b") == {own}
    pod = kube.get("pod", "a", tenant)
    assert pod is not None and pod["status"]["containerStatuses"][0]["restartCount"] == 0
    override("{}")
    access.wait_told("True", "NRI", mine, RENEWED_S)
