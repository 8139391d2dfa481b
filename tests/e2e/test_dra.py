"""Cards that NVIDIA's DRA driver allocates are shared like those of its device plugin.

The cluster has a node of each kind. Pods, shadow pods among them, request nvidia.com/gpu, for which
the scheduler makes a ResourceClaim on the node with the DRA driver.
"""

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import yaml

import cluster.mizar
from cluster import Cluster, ClusterSpec
from cluster.binaries import ensure
from cluster.binaries.folder import kubernetes_minor
from cluster.binaries.progress import Progress
from cluster.cluster import Node
from cluster.local_provider import LocalProvider
from e2e.components import delete_component, kill_component, wait_component
from e2e.dividing import by_size, divide
from e2e.test_compute import BUSY
from e2e.test_reboot import two_running
from e2e.test_restarts import restart_counts
from e2e.test_spot import LENDS, WORK, borrowing, lender, reason_of_eviction, start_borrower
from e2e.watcher import MONITOR, watching
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from mizar_nodeagent.card_health import REPAIRED
from simgpu.machine import Machine
from support import objects
from support.kube import Kube, Object, condition
from support.objects import deployment, share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
TWO_SHADOWS = {"devices": 2, "min": 0, "max": 2}
CARD_MIB = 16384
SIZE, SIZE_MIB = "2g.10gb", 9728
"""A size of MIG devices."""
AWAY_S = 30.0
"""Seconds for which a driver stays away after the kubelet has deleted its ResourceSlice."""
SINCE_MINOR = 36
"""The N of the first Kubernetes 1.N that satisfies requests for nvidia.com/gpu by DRA."""
CLASS = "gpu.nvidia.com"
"""The DeviceClass of the cards."""
OF_A_POD = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of claims that the scheduler makes for pods."""


@pytest.fixture(scope="module")
def mizar_cluster() -> Iterator[Cluster]:
    """A node whose cards the device plugin allocates, and one whose cards the DRA driver does, two
    cards on each."""
    if name := os.environ.get("MIZAR_E2E_CLUSTER"):
        up = LocalProvider().get(name)
        with watching(up):
            yield up
        return
    if kubernetes_minor(ensure(Progress(), ["kubelet"]).path("kubelet")) < SINCE_MINOR:
        pytest.skip(f"before Kubernetes 1.{SINCE_MINOR}, pods cannot request such cards by name")
    up = LocalProvider().up(ClusterSpec(f"dra-{os.getpid()}", nodes=2, dra_nodes=1), Progress())
    try:
        cluster.mizar.install(up, Progress())
        with watching(up):
            yield up
    finally:
        up.down()


@pytest.fixture(scope="module")
def kube(mizar_cluster: Cluster) -> Kube:
    return Kube(mizar_cluster)


@pytest.fixture
def node(mizar_cluster: Cluster) -> Node:
    """The node with the DRA driver."""
    return mizar_cluster.nodes[-1]


@pytest.fixture
def here(node: Node) -> dict[str, str]:
    """A selector of the node with the DRA driver."""
    return {"kubernetes.io/hostname": node.name}


@pytest.fixture
def machine(node: Node) -> Iterator[Machine]:
    """The node's cards, which are well again at the end."""
    with Machine(node.simgpu_dir) as machine:
        yield machine
        for card in machine.cards:
            machine.restore(card.uuid)
            (node.path("/var/lib/mizar") / f"{REPAIRED}{card.uuid}").touch()


def claims(kube: Kube, namespace: str) -> list[Object]:
    """The ResourceClaims of the namespace."""
    return kube.all("resourceclaims", namespace)


def devices_of(claim: Object) -> list[str]:
    """The names of the devices that the claim has."""
    allocation = claim.get("status", {}).get("allocation") or {}
    return [one["device"] for one in allocation.get("devices", {}).get("results", [])]


def names_of(machine: Machine) -> dict[str, str]:
    """The names that the driver gives to the cards, and their UUIDs."""
    return {f"gpu-{card.minor}": card.uuid for card in machine.cards}


def check_limits(kube: Kube, tenant: str, pod: str) -> None:
    """Assert that the pod has half of its card's memory."""
    status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", str(CARD_MIB // 2))
    assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
    status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", str(CARD_MIB // 4))
    assert status == 0, answer
    _, figures = kube.exec(tenant, pod, "cuda-sample", "smi")
    assert str(CARD_MIB // 2) in figures and str(CARD_MIB) not in figures


def test_two_pods_share_a_card_until_it_is_given_back(
    kube: Kube, stage: "Stage", here: dict[str, str], machine: Machine
) -> None:
    """The shadow pod's claim has one card, which both pods see, each limited to its half. The claim
    goes with the shadow pod when that is idle."""
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here, idleTimeoutSeconds=3))
    kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    kube.wait_running(tenant, "a", "b")
    (shadow,) = ready_shadows(kube, tenant)
    held = wait_held(kube, tenant, "a", "b")
    assert sorted(held) == [f"{tenant}/{shadow['metadata']['name']}-{i}" for i in range(2)]

    (claim,) = claims(kube, tenant)
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", shadow["metadata"]["name"])
    assert claim["metadata"]["annotations"][OF_A_POD] == "true"
    (name,) = devices_of(claim)
    card = names_of(machine)[name]
    (found,) = shadow["status"]["cards"]
    assert (found["uuid"], found["memoryMiB"]) == (card, CARD_MIB)
    for pod in ("a", "b"):
        assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod) == {card}
        check_limits(kube, tenant, pod)

    kube.delete("pod", "a", tenant)
    kube.delete("pod", "b", tenant)
    wait_for("the shadow pod to be reaped", lambda: not kube.all("shadowpods", tenant))
    wait_for("its claim to go", lambda: not claims(kube, tenant))
    kube.apply(whole_card_pod(tenant, "whole", cards=2, nodeSelector=here))
    kube.wait_running(tenant, "whole")
    assert cards_seen_inside(kube, tenant, "whole") == set(names_of(machine).values())


def test_four_devices_over_two_cards(kube: Kube, stage: "Stage", here: dict[str, str]) -> None:
    """A shadow pod's claim has both cards of the node."""
    pool = stage.pool(nodeSelector=here, profiles=[{"devices": 4, "cards": 2}])
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1}, pool=pool)
    pods = ["a", "b", "c", "d"]
    kube.apply(*(share_pod(tenant, name, "mizar.share/gpu.4") for name in pods))
    kube.wait_running(tenant, *pods)
    (shadow,) = ready_shadows(kube, tenant)
    wait_held(kube, tenant, *pods)
    first, second = (one["uuid"] for one in shadow["status"]["cards"])
    assert [one["card"] for one in shadow["status"]["devices"]] == [first, first, second, second]
    for pod in pods:
        assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod)


def test_a_pool_of_nodes_of_both_kinds(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, here: dict[str, str]
) -> None:
    """Its status counts all four cards, and its shadow pods get all of them, but not the one that a
    pod has whole."""
    pool = stage.pool()
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 4}, pool=pool)
    kube.apply(whole_card_pod(tenant, "whole", nodeSelector=here))
    kube.wait_running(tenant, "whole")
    kube.apply(*(share_pod(tenant, f"wide-{number}", count=2) for number in range(3)))
    kube.wait_running(tenant, *(f"wide-{number}" for number in range(3)))
    shadows = ready_shadows(kube, tenant, 3)
    nodes = sorted(one["status"]["node"] for one in shadows)
    first, last = (one.name for one in mizar_cluster.nodes)
    assert nodes == [first, first, last]

    def counted() -> bool:
        models = (kube.get("gpupool", pool) or {})["status"]["models"]
        assert [(one["total"], one["held"]) for one in models] == [(4, 3)], models
        return True

    wait_for("the pool to count them", counted)


def test_an_idle_shadow_pod_gives_way_to_a_pod_with_whole_cards(
    kube: Kube, stage: "Stage", here: dict[str, str]
) -> None:
    """It is idle for less than its idle timeout, and the pod needs its card."""
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    ready_shadows(kube, tenant)
    kube.apply(whole_card_pod(tenant, "whole", cards=2, nodeSelector=here))
    wait_event(kube, tenant, "whole", "FailedScheduling")
    assert kube.phase(tenant, "whole") == "Pending"
    kube.delete("pod", "a", tenant)
    kube.wait_running(tenant, "whole")
    assert len(cards_seen_inside(kube, tenant, "whole")) == 2


def with_claim(tenant: str, name: str, **spec: object) -> list[Object]:
    """A ResourceClaim of one card, and a pod that uses it."""
    meta = {"name": name, "namespace": tenant}
    request = {"name": "card", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    pod = objects.plain_pod(tenant, name, resourceClaims=[{"name": "c", "resourceClaimName": name}])
    container = pod["spec"]["containers"][0]
    container["resources"] = {"claims": [{"name": "c"}]}
    container["command"] = ["cuda-sample", "hold", "1024"]
    pod["spec"].update(spec)
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": meta,
        "spec": {"devices": {"requests": [request]}},
    }
    return [claim, pod]


def test_a_pod_with_a_claim_of_its_own(kube: Kube, stage: "Stage", here: dict[str, str]) -> None:
    """Its card is not free for shadow pods, and is when the pod is gone."""
    tenant = stage.tenant(TWO_SHADOWS, pool=stage.pool(nodeSelector=here))
    kube.apply(*with_claim(tenant, "own", nodeSelector=here))
    kube.wait_running(tenant, "own")
    (card,) = cards_seen_inside(kube, tenant, "own")
    kube.apply(share_pod(tenant, "a", count=2), share_pod(tenant, "b", count=2))

    def one_runs() -> str | None:
        phases = {name: kube.phase(tenant, name) for name in ("a", "b")}
        return next((name for name, phase in phases.items() if phase == "Running"), None)

    first = wait_for("one of the pods to run", one_runs)
    (other,) = {"a", "b"} - {first}
    kube.wait_running(tenant, first)
    wait_held(kube, tenant, first)
    assert cards_seen_inside(kube, tenant, first) != {card}
    wait_event(kube, tenant, other, "NoCardFree")
    assert restart_counts(kube, tenant, "own") == {"main": 0}
    kube.delete("pod", "own", tenant)
    kube.delete("resourceclaim", "own", tenant)
    kube.wait_running(tenant, other)
    assert cards_seen_inside(kube, tenant, other) == {card}


def test_a_monitor_takes_no_card(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, here: dict[str, str], machine: Machine
) -> None:
    """It has all cards by a claim with adminAccess, which takes them from nobody: shared cards stay
    so, also for an agent that starts anew, and free ones are given to shadow pods."""
    tenant = stage.tenant(TWO_SHADOWS, pool=stage.pool(nodeSelector=here))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    kube.run("label", "namespace", tenant, "resource.kubernetes.io/admin-access=true")
    claim, pod = with_claim(tenant, MONITOR, nodeSelector=here)
    (request,) = claim["spec"]["devices"]["requests"]
    request["exactly"] |= {"adminAccess": True, "allocationMode": "All"}
    pod["spec"]["containers"][0]["command"] = ["sleep", "infinity"]
    kube.apply(claim, pod)
    kube.wait_running(tenant, MONITOR)
    assert cards_seen_inside(kube, tenant, MONITOR) == set(names_of(machine).values())
    kill_component(kube, mizar_cluster, "nodeagent")
    wait_component(kube, "nodeagent")
    kube.apply(share_pod(tenant, "b", count=2))
    kube.wait_running(tenant, "b")
    assert before.items() <= wait_held(kube, tenant, "a", "b").items()
    for name in ("a", "b"):
        assert cards_seen_inside(kube, tenant, name) == card_of(kube, tenant, name)
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    assert not {"CardLost", "DeviceUnhealthy"} & dict(kube.events(tenant, "a")).keys()


def test_a_device_class_that_is_made_again(
    kube: Kube, stage: "Stage", here: dict[str, str]
) -> None:
    """As when the driver's chart is installed anew. A shadow pod that is kept warm stays, although
    it is idle; pods that need another one wait until the class is back."""
    pool = stage.pool(nodeSelector=here, idleTimeoutSeconds=1)
    tenant = stage.tenant({"devices": 2, "min": 1, "max": 2}, pool=pool)
    (warm,) = ready_shadows(kube, tenant)
    found = kube.get("deviceclass", CLASS)
    assert found is not None
    again = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    kube.run("delete", "deviceclass", CLASS)
    try:
        wait_ready(kube, pool, "2 cards, 0 healthy")
        time.sleep(5)
        kube.apply(share_pod(tenant, "a", count=2))
        kube.wait_running(tenant, "a")
        kube.apply(share_pod(tenant, "b"))
        time.sleep(2)
        assert kube.phase(tenant, "b") == "Pending"
    finally:
        kube.apply(again | {"metadata": {"name": CLASS}})
    wait_ready(kube, pool, "2 cards, 2 healthy")
    kube.wait_running(tenant, "b")
    names = [one["metadata"]["name"] for one in ready_shadows(kube, tenant, 2)]
    assert warm["metadata"]["name"] in names


def wait_ready(kube: Kube, pool: str, message: str) -> None:
    """Wait until that is the message of the pool's condition Ready."""

    def told() -> bool:
        said = condition(kube.get("gpupool", pool) or {}, "Ready")["message"]
        assert said == message, said
        return True

    wait_for(f"the pool to say {message}", told)


def class_of_size(size: str) -> Object:
    """The DeviceClass of the MIG devices of a size, by the name that NVIDIA's plugin gives them."""
    which = f"device.attributes['{CLASS}'].type == 'mig'"
    which += f" && device.attributes['{CLASS}'].profile == '{size}'"
    selector = {"cel": {"expression": f"device.driver == '{CLASS}' && {which}"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"mig-{size}"},
        "spec": {"extendedResourceName": by_size(size), "selectors": [selector]},
    }


@pytest.fixture
def mig_device(kube: Kube, machine: Machine) -> Iterator[str]:
    """A MIG device that pods can request by its size, beside one of another size."""
    card = machine.cards[0].uuid
    _, made = divide(machine, card, "1g.5gb", SIZE)
    kube.apply(class_of_size(SIZE))
    yield made
    kube.delete("deviceclass", f"mig-{SIZE}")
    divide(machine, card)


def test_a_mig_device_is_shared(
    kube: Kube, mig_device: str, stage: "Stage", here: dict[str, str], machine: Machine
) -> None:
    """By a pool of its size, as with the device plugin; the node's other card stays whole."""
    pool = stage.pool(nodeSelector=here, physicalResource=by_size(SIZE), idleTimeoutSeconds=3)
    tenant = stage.tenant(HALF, pool=pool)
    kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    kube.wait_running(tenant, "a", "b")
    (shadow,) = ready_shadows(kube, tenant)
    wait_held(kube, tenant, "a", "b")
    (claim,) = claims(kube, tenant)
    assert devices_of(claim) == ["gpu-0-mig-14-2-2"]
    (found,) = shadow["status"]["cards"]
    assert (found["uuid"], found["memoryMiB"]) == (mig_device, SIZE_MIB)
    for pod in ("a", "b"):
        assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod) == {mig_device}
        status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", str(SIZE_MIB // 2))
        assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
    kube.apply(whole_card_pod(tenant, "whole", nodeSelector=here))
    kube.wait_running(tenant, "whole")
    assert cards_seen_inside(kube, tenant, "whole") == {machine.cards[1].uuid}

    def counted() -> bool:
        models = (kube.get("gpupool", pool) or {})["status"]["models"]
        model = f"NVIDIA-A100-SXM4-40GB-MIG-{SIZE}"
        assert [(one["model"], one["total"], one["held"]) for one in models] == [(model, 1, 1)]
        return True

    wait_for("the pool to count it", counted)


@pytest.mark.parametrize("victim", ["nodeagent", "operator", "kubelet", "driver"])
def test_restarts(
    kube: Kube,
    stage: "Stage",
    mizar_cluster: Cluster,
    node: Node,
    here: dict[str, str],
    victim: str,
) -> None:
    """Running pods keep their devices, and pods that are made meanwhile get theirs. A kubelet that
    starts deletes the node's ResourceSlices, which the driver makes again."""
    tenant = stage.tenant(TWO_SHADOWS, pool=stage.pool(nodeSelector=here))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    restart(kube, mizar_cluster, node, victim)
    kube.apply(deployment(tenant, "more", replicas=2))
    kube.run("rollout", "status", "deployment/more", f"--namespace={tenant}", "--timeout=240s")

    def three_hold() -> bool:
        found = kube.all("shadowpods", tenant)
        devices = [one for shadow in found for one in shadow["status"]["devices"]]
        held = {one["id"]: one["holder"]["name"] for one in devices if one.get("holder")}
        assert len(held) == 3, held
        assert all(held.get(device) == "a" for device in before), held
        return True

    wait_for("three pods to hold devices", three_hold)
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    assert not {"CardLost", "DeviceUnhealthy"} & dict(kube.events(tenant, "a")).keys()
    check_limits(kube, tenant, "a")


def restart(kube: Kube, on: Cluster, node: Node, victim: str) -> None:
    """End a program by SIGKILL, and have it started again."""
    if victim == "kubelet":
        on.kill_kubelet(node.name)
        on.start_kubelet(node.name)
    elif victim == "driver":
        on.kill_allocator(node.name)
        on.start_allocator(node.name)
    elif victim == "operator":
        delete_component(kube, victim)
        wait_component(kube, victim)
    else:
        kill_component(kube, on, victim)
        wait_component(kube, victim)


def test_a_shadow_pods_claim_is_for_nobody_else(
    kube: Kube, stage: "Stage", here: dict[str, str]
) -> None:
    """A pod that names it would have the whole card, without limits; without it, the card would be
    given to others. An editor of the namespace may do neither."""
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    (claim,) = claims(kube, tenant)
    name = claim["metadata"]["name"]
    editor = "--as=somebody"
    bind = ("rolebinding", "editors", "--clusterrole=edit", "--user=somebody")
    kube.run("create", *bind, f"--namespace={tenant}")
    _, thief = with_claim(tenant, "thief")
    thief["spec"]["resourceClaims"][0]["resourceClaimName"] = name
    copied = {key: claim[key] for key in ("apiVersion", "kind", "spec")}
    copied["metadata"] = {
        "name": "mine",
        "namespace": tenant,
        "annotations": {OF_A_POD: "true"},
        "ownerReferences": claim["metadata"]["ownerReferences"],
    }
    for made in (thief, copied):
        status, said = kube.attempt("create", editor, "--filename=-", input=yaml.safe_dump(made))
        assert status and "shadow pod" in said, said
    status, said = kube.attempt("delete", "resourceclaim", name, f"--namespace={tenant}", editor)
    assert status and "only the scheduler" in said, said
    assert [one["metadata"]["name"] for one in claims(kube, tenant)] == [name]
    check_limits(kube, tenant, "a")


def test_a_driver_that_is_away_for_long(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, node: Node, here: dict[str, str]
) -> None:
    """The kubelet deletes the node's ResourceSlice 30 s after it has lost the driver. Nobody loses
    a card, also with a node agent that starts meanwhile; pods that need another card wait."""
    tenant = stage.tenant(TWO_SHADOWS, pool=stage.pool(nodeSelector=here))
    kube.apply(share_pod(tenant, "a"))
    kube.wait_running(tenant, "a")
    before = wait_held(kube, tenant, "a")
    mizar_cluster.kill_allocator(node.name)
    try:
        wait_for("the slice to go", lambda: not kube.all("resourceslices"))
        check_limits(kube, tenant, "a")
        kube.apply(share_pod(tenant, "b"), share_pod(tenant, "c"))
        kill_component(kube, mizar_cluster, "nodeagent")
        time.sleep(AWAY_S)
    finally:
        mizar_cluster.start_allocator(node.name)
    wait_component(kube, "nodeagent")
    kube.wait_running(tenant, "b", "c", timeout=300)
    after = wait_held(kube, tenant, "a", "b", "c")
    assert before.items() <= after.items()
    assert restart_counts(kube, tenant, "a") == {"main": 0}
    assert not {"CardLost", "DeviceUnhealthy"} & dict(kube.events(tenant, "a")).keys()
    check_limits(kube, tenant, "a")


def test_a_card_that_fails(
    kube: Kube, stage: "Stage", node: Node, here: dict[str, str], machine: Machine
) -> None:
    """The driver taints it. Its users are told and run on, and no other pod gets a device of it;
    nor does a shadow pod get the card, until it was repaired."""
    fourths = {"devices": 4, "cards": 1}
    pool = stage.pool(nodeSelector=here, profiles=[fourths])
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1}, pool=pool)
    resource = "mizar.share/gpu.4"
    kube.apply(share_pod(tenant, "a", resource, command=BUSY))
    kube.wait_running(tenant, "a")
    wait_held(kube, tenant, "a")
    (card,) = card_of(kube, tenant, "a")
    machine.set_health(card, 48)
    assert "XID 48" in wait_event(kube, tenant, "a", "DeviceUnhealthy")
    wait_healthy(kube, tenant, "False")
    kube.apply(share_pod(tenant, "late", resource))
    wait_event(kube, tenant, "late", "QuotaExceeded")
    kube.apply(whole_card_pod(tenant, "whole", cards=2, nodeSelector=here))
    wait_event(kube, tenant, "whole", "FailedScheduling")

    machine.set_health(card, 0)
    (node.path("/var/lib/mizar") / f"{REPAIRED}{card}").touch()
    wait_healthy(kube, tenant, "True")
    kube.wait_running(tenant, "late")
    assert cards_seen_inside(kube, tenant, "late") == {card}
    assert restart_counts(kube, tenant, "a") == {"main": 0}


def wait_healthy(kube: Kube, tenant: str, status: str) -> None:
    """Wait until that is the condition Healthy of the tenant's ShadowPod."""

    def told() -> bool:
        (shadow,) = kube.all("shadowpods", tenant)
        return bool(condition(shadow, "Healthy")["status"] == status)

    wait_for(f"the ShadowPod's Healthy to be {status}", told)


def test_a_card_that_is_gone(
    kube: Kube, stage: "Stage", here: dict[str, str], machine: Machine
) -> None:
    """The driver leaves it out of the ResourceSlice. Its users are evicted when it is gone for
    good, and others run on the node's other card."""
    tenant = stage.tenant(TWO_SHADOWS, pool=stage.pool(nodeSelector=here))
    kube.apply(deployment(tenant, "users", replicas=1))
    pod = wait_for("a pod", lambda: running(kube, tenant))
    wait_held(kube, tenant, pod)
    (card,) = card_of(kube, tenant, pod)
    machine.remove(card)
    assert "gone" in wait_event(kube, tenant, pod, "DeviceUnhealthy")
    assert card in wait_event(kube, tenant, pod, "CardLost", timeout=240)
    other = wait_for("another pod", lambda: running(kube, tenant, but=pod), 240)
    assert cards_seen_inside(kube, tenant, other) == {
        one.uuid for one in machine.cards if one.uuid != card
    }


def running(kube: Kube, tenant: str, but: str = "") -> str | None:
    """The Deployment's pod that runs, other than `but`."""
    pods = kube.all("pods", tenant, objects.SHARE_PODS)
    found = [one for one in pods if one["status"].get("phase") == "Running"]
    names = [str(one["metadata"]["name"]) for one in found]
    return next((one for one in names if one != but), None)


def test_a_sleeping_owners_card_is_lent_and_comes_back(
    kube: Kube, stage: "Stage", here: dict[str, str]
) -> None:
    """A borrower has the card until its owner works."""
    owner = lender(kube, stage, pool=stage.pool(nodeSelector=here, spot=LENDS))
    other = borrowing(kube, stage)
    start_borrower(kube, other, "train")
    assert cards_seen_inside(kube, other, "train") == card_of(kube, owner, "owner")
    status, answer = kube.exec(owner, "owner", *WORK)
    assert status == 0, answer
    assert "(OwnerBack)" in reason_of_eviction(kube, other, "train")
    kube.wait_gone("pod", other, "train")


def test_a_node_that_loses_its_power(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, node: Node, here: dict[str, str]
) -> None:
    """Its share pods run again, on cards that the kubelet has prepared anew."""
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=here))
    kube.apply(deployment(tenant, "users", replicas=2))
    before = wait_for("two pods", lambda: two_running(kube, tenant))
    wait_held(kube, tenant, *before)
    mizar_cluster.power_off(node.name)
    mizar_cluster.power_on(node.name)
    after = wait_for(
        "two pods that started since",
        lambda: two_running(kube, tenant, but=before),
        timeout=300,
        explain=lambda: kube.attempt("get", "pods", "-A", "-o", "wide")[1],
    )
    ready_shadows(kube, tenant, timeout=300)
    wait_held(kube, tenant, *after, timeout=240)
    for name in after:
        assert cards_seen_inside(kube, tenant, name) == card_of(kube, tenant, name)
        check_limits(kube, tenant, name)
