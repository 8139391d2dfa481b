"""Each way to give cards, on the containerd that $MIZAR_CONTAINERD names: `make containerd`. It is
no part of `make e2e`, since that containerd has to be built first. $MIZAR_CONTAINERD_NEXT names
one to upgrade to.

What the agent takes for granted of a version is asked of containerd itself, by an NRI plugin of the
test's own.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.binaries import Progress, ensure
from cluster.binaries.other_containerd import VARIABLE, wanted
from cluster.cluster import Node
from cluster.layout import Layout
from cluster.local_cluster import LocalCluster
from e2e.card_access import (
    HALF,
    NVIDIA,
    PLAIN,
    Access,
    card_nodes_inside,
    check_borrowed_card,
    check_own_cards,
    env_inside,
    greedy,
)
from e2e.components import kill_containers
from e2e.test_restarts import restart_counts
from e2e.watcher import wait_noted
from e2e.watching import card_of, cards_seen_inside, wait_held
from mizar_nodeagent.container.auto_strategy import gives_cdi_by_nri, named
from mizar_nodeagent.nri.session import Session
from mizar_nodeagent.proto import nri_pb2 as pb
from simgpu.machine import Machine
from support.kube import Kube, Object
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not wanted(), reason=f"${VARIABLE} names no version"),
]
NEXT = "MIZAR_CONTAINERD_NEXT"
"""The variable of the environment that names the version of an upgrade."""
NRI_SOCKET = "/run/nri/nri.sock"
CONFIG = "/etc/containerd/config.toml"
CDI_ON = "enable_cdi = true"
ASKS = "asks-by-nri"
"""The container to which the test's own plugin gives a card."""


@pytest.fixture(scope="module")
def runtime(kube: Kube, mizar_cluster: Cluster) -> str:
    """The runtime's name and version, as in the nodes' status."""
    (found,) = {
        str(one["status"]["nodeInfo"]["containerRuntimeVersion"]) for one in kube.all("nodes")
    }
    assert found.removeprefix("containerd://").removeprefix("v") == wanted()
    return found


@contextmanager
def plugin(node: Node, device: str) -> Iterator[list[str]]:
    """An NRI plugin that asks for this CDI device for containers called ASKS; gives the names of
    those for which it did."""
    asked: list[str] = []
    connected = threading.Event()

    async def create(pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        if container.name != ASKS:
            return pb.ContainerAdjustment()
        asked.append(pod.name)
        return pb.ContainerAdjustment(CDI_devices=[pb.CDIDevice(name=device)])

    async def run() -> None:
        session = Session(create, lambda runtime, pods, containers: connected.set())
        await session.run(node.path(NRI_SOCKET))

    loop = asyncio.new_event_loop()
    task = loop.create_task(run())

    def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert connected.wait(30), "the runtime takes no plugin"
        yield asked
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def test_whether_a_cdi_device_of_a_plugin_arrives(
    kube: Kube,
    stage: "Stage",
    mizar_cluster: Cluster,
    cdi: None,
    runtime: str,
    expected_faults: list[str],
) -> None:
    """The agent takes it for granted by the version. A card that arrives is one that the pod does
    not own."""
    node = mizar_cluster.nodes[0]
    with Machine(node.simgpu_dir) as machine:
        card = machine.health()[0]
    tenant = stage.tenant()
    pod = share_pod(tenant, "a", command=["sleep", "3600"], nodeName=node.name)
    (container,) = pod["spec"]["containers"]
    container["name"] = ASKS
    del container["resources"]
    with plugin(node, f"nvidia.com/gpu={card.uuid}") as asked:
        kube.apply(pod)
        kube.wait_running(tenant, "a")
    assert asked == ["a"]
    arrived = {f"nvidia{card.minor}"} if gives_cdi_by_nri(runtime) else set()
    assert card_nodes_inside(kube, tenant, "a") == arrived
    if arrived:
        expected_faults.append(f"{tenant}/a/{ASKS} has card")
        wait_noted(expected_faults[0])


def auto(runtime: str) -> tuple[str, str]:
    """What Auto chooses where there are CDI files: the condition's reason and its message's end."""
    given = gives_cdi_by_nri(runtime)
    return ("NRI", "NRI, which gives CDI") if given else ("CDI", "CDI")


WAYS: dict[str, tuple[Object, Object, str]] = {
    "NRI-EnvVar": ({"strategy": "NRI", "nriGives": "EnvVar"}, NVIDIA, "NRI, which gives EnvVar"),
    "NRI-Mounts": ({"strategy": "NRI", "nriGives": "Mounts"}, PLAIN, "NRI, which gives Mounts"),
    "NRI-VolumeMounts": (
        {"strategy": "NRI", "nriGives": "VolumeMounts"},
        NVIDIA,
        "NRI, which gives VolumeMounts",
    ),
    "CDI": ({"strategy": "CDI"}, PLAIN, "CDI"),
    "CDIAnnotations": ({"strategy": "CDIAnnotations"}, PLAIN, "CDIAnnotations"),
    "CDI-and-nodes": ({"strategy": "CDI", "passDeviceSpecs": True}, NVIDIA, "CDI"),
    "VolumeMounts": ({"strategy": "VolumeMounts"}, NVIDIA, "VolumeMounts"),
    "Mounts": ({"strategy": "Mounts"}, PLAIN, "Mounts"),
}


def use(access: Access, values: Object, reason: str, words: str) -> None:
    """Use this `cardAccess`, for which all agents' conditions say this. Agents start anew for it:
    one that has once chosen CDI keeps it, also without CDI files."""
    access.use(strategy="Mounts", passDeviceSpecs=False, nriGives="Auto")
    access.use(**values)
    access.wait_told("True", reason)
    told = {one.partition("; ")[0] for one in access.messages()}  # a remark may follow
    assert told == {f"containers get their cards by {words}"}


@pytest.mark.parametrize("way", WAYS)
def test_a_pod_that_asks_for_all_cards_gets_only_its_own(
    kube: Kube, stage: "Stage", access: Access, cdi: None, way: str, runtime: str
) -> None:
    values, spec, words = WAYS[way]
    use(access, values, words.partition(",")[0], words)
    tenant, own = check_own_cards(kube, stage, spec)
    if words.startswith("NRI"):
        assert env_inside(kube, tenant, "a")["NVIDIA_VISIBLE_DEVICES"] != "all"
    check_borrowed_card(kube, stage, tenant, own, spec)


@pytest.fixture
def told_config(mizar_cluster: Cluster) -> Iterator[None]:
    """containerd's configuration is where the agent looks for it, as on other nodes."""
    paths = [node.path(CONFIG) for node in mizar_cluster.nodes]
    for node, path in zip(mizar_cluster.nodes, paths, strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(used_config(mizar_cluster, node.name).read_text())
    yield
    for path in paths:
        path.unlink()


def used_config(on: Cluster, node: str) -> Path:
    """The file that the node's containerd reads."""
    return Layout(on.name).node(node).config / "containerd.toml"


def test_auto_gives_cards(
    kube: Kube, stage: "Stage", access: Access, cdi: None, told_config: None, runtime: str
) -> None:
    use(access, {"strategy": "Auto"}, *auto(runtime))
    check_own_cards(kube, stage, PLAIN)


def test_auto_gives_cards_without_cdi_files(
    kube: Kube, stage: "Stage", access: Access, told_config: None
) -> None:
    use(access, {"strategy": "Auto"}, "NRI", "NRI, which gives Mounts")
    tenant, _ = check_own_cards(kube, stage, PLAIN)
    assert env_inside(kube, tenant, "a")["NVIDIA_VISIBLE_DEVICES"] != "all"


def test_nri_gives_cards_by_the_best_way_that_is_not_dropped(
    kube: Kube, stage: "Stage", access: Access, cdi: None, told_config: None, runtime: str
) -> None:
    gives = "CDI" if gives_cdi_by_nri(runtime) else "Mounts"
    use(access, {"strategy": "NRI"}, "NRI", f"NRI, which gives {gives}")
    check_own_cards(kube, stage, PLAIN)


def test_cdi_by_nri_works_or_is_refused(
    kube: Kube, stage: "Stage", access: Access, cdi: None, runtime: str
) -> None:
    """Nobody starts without a card."""
    values = {"strategy": "NRI", "nriGives": "CDI"}
    if gives_cdi_by_nri(runtime):
        use(access, values, "NRI", "NRI, which gives CDI")
        check_own_cards(kube, stage, PLAIN)
        return
    access.use(wait=False, passDeviceSpecs=False, **values)
    access.wait_told("False", "NRI")
    (message,) = access.messages()
    assert "drops CDI devices that are given by NRI" in message
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    wait_for("the kubelet to be told why", lambda: "drops CDI devices" in waits(kube, tenant, "a"))
    assert kube.phase(tenant, "a") == "Pending"


def waits(kube: Kube, tenant: str, pod: str) -> str:
    """Why the pod's container does not start, as the kubelet says; empty if it says nothing."""
    found = kube.get("pod", pod, tenant)
    assert found is not None
    statuses = found["status"].get("containerStatuses", ())
    return "".join(str(one["state"].get("waiting", {}).get("message", "")) for one in statuses)


def test_a_restart_of_containerd(
    kube: Kube,
    stage: "Stage",
    access: Access,
    mizar_cluster: Cluster,
    cdi: None,
    told_config: None,
    runtime: str,
) -> None:
    """Pods that run notice nothing, and new ones get their cards."""
    use(access, {"strategy": "Auto"}, *auto(runtime))
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (own,) = card_of(kube, tenant, "a")
    for node in mizar_cluster.nodes:
        mizar_cluster.kill_containerd(node.name)
        mizar_cluster.start_containerd(node.name)
    kube.apply(share_pod(tenant, "b"))
    kube.wait_running(tenant, "b")
    access.wait_told("True", auto(runtime)[0])
    assert cards_seen_inside(kube, tenant, "a") == cards_seen_inside(kube, tenant, "b") == {own}
    after = kube.get("pod", "a", tenant)
    assert after is not None and after["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.fixture
def without_cdi(mizar_cluster: Cluster, told_config: None) -> Iterator[None]:
    """containerd's configuration says that it reads no CDI devices, as 1.7 does by default."""
    texts = {one.name: used_config(mizar_cluster, one.name) for one in mizar_cluster.nodes}
    before = {name: path.read_text() for name, path in texts.items()}

    def restart(node: Node, text: str) -> None:
        mizar_cluster.kill_containerd(node.name)
        texts[node.name].write_text(text)
        node.path(CONFIG).write_text(text)
        mizar_cluster.start_containerd(node.name)

    try:
        for node in mizar_cluster.nodes:
            restart(node, before[node.name].replace(CDI_ON, CDI_ON.replace("true", "false")))
        yield
    finally:
        for node in mizar_cluster.nodes:
            restart(node, before[node.name])


def test_cdi_that_is_turned_off_is_told(
    kube: Kube, stage: "Stage", access: Access, cdi: None, without_cdi: None, runtime: str
) -> None:
    """containerd says nothing where it ignores CDI devices of the kubelet."""
    access.use(wait=False, strategy="CDI", passDeviceSpecs=False, nriGives="Auto")
    access.wait_told("False", "CDI")
    (message,) = access.messages()
    assert "does not set enable_cdi to true" in message
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a", command=["sleep", "3600"]))
    kube.wait_running(tenant, "a")
    assert card_nodes_inside(kube, tenant, "a") == set()


def test_nri_where_cdi_is_turned_off(
    kube: Kube, stage: "Stage", access: Access, cdi: None, without_cdi: None, runtime: str
) -> None:
    """From 2.1 on containerd gives CDI devices of NRI all the same; 1.7 refuses the container."""
    use(access, {"strategy": "Auto"}, "NRI", "NRI, which gives Mounts")
    check_own_cards(kube, stage, PLAIN)
    access.use(wait=False, strategy="NRI", passDeviceSpecs=False, nriGives="CDI")
    if named(runtime)[1] >= (2, 1):
        access.wait_told("True", "NRI")
        check_own_cards(kube, stage, PLAIN)
        return
    access.wait_told("False", "NRI")
    tenant = stage.tenant(HALF)
    kube.apply(share_pod(tenant, "a"))
    told = "CDI is disabled by configuration" if gives_cdi_by_nri(runtime) else "drops CDI devices"
    wait_for("the kubelet to be told why", lambda: told in waits(kube, tenant, "a"))


@pytest.fixture(scope="module")
def upgraded() -> tuple[str, Path]:
    """The containerd to which a node is upgraded: as in the node's status, and its programs."""
    version = os.environ.get(NEXT)
    if not version:
        pytest.skip(f"${NEXT} names no version")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, version)
        return f"containerd://v{version}", ensure(Progress()).dir


def restart_with(programs: Path, on: Cluster, node: str) -> None:
    """Have other programs go on where the node's containerd ends."""
    assert isinstance(on, LocalCluster)
    on.kill_containerd(node)
    local = replace(on._node(node), binaries=programs)
    local.start_containerd()
    local.wait_for_containerd()


def test_an_upgrade_of_containerd_and_back(
    kube: Kube,
    stage: "Stage",
    access: Access,
    mizar_cluster: Cluster,
    cdi: None,
    told_config: None,
    runtime: str,
    upgraded: tuple[str, Path],
) -> None:
    """Each pod has its card throughout, also when its container starts again."""
    use(access, {"strategy": "Auto"}, *auto(runtime))
    node = mizar_cluster.nodes[0].name
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 2})

    def check(*pods: str) -> None:
        cards = {pod: card_of(kube, tenant, pod) for pod in pods}
        assert {pod: cards_seen_inside(kube, tenant, pod) for pod in pods} == cards
        assert all(len(found) == 1 for found in cards.values())

    def start(pod: str, *before: str) -> None:
        kube.apply(greedy(kube, tenant, pod, nodeSelector={"kubernetes.io/hostname": node}))
        kube.wait_running(tenant, pod)
        wait_held(kube, tenant, *before, pod)
        check(*before, pod)

    def start_again(pod: str, *others: str) -> None:
        (killed,) = (one for one in kube.all("pods", tenant) if one["metadata"]["name"] == pod)
        kill_containers(mizar_cluster, killed)
        wait_for(f"{pod} to start again", lambda: restart_counts(kube, tenant, pod) == {"main": 1})
        kube.wait_running(tenant, pod)
        check(pod, *others)

    start("before")
    restart_with(upgraded[1], mizar_cluster, node)
    try:
        access.wait_told("True", auto(upgraded[0])[0], node)
        start("between", "before")
        start_again("before", "between")
    finally:
        mizar_cluster.kill_containerd(node)
        mizar_cluster.start_containerd(node)
    access.wait_told("True", auto(runtime)[0], node)
    start("after", "before", "between")
    start_again("between", "before", "after")
