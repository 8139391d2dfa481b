"""The fields of a pod that are kept, and the pods that wait for devices."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mizar_core.errors import CarveRefused
from mizar_core.names import SPOT_RESOURCE
from mizar_nodeagent import container_processes
from mizar_nodeagent.agent_loop import Agent
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.kubelet.claims import from_list
from mizar_nodeagent.pods import trim
from mizar_nodeagent.proto import podresources_pb2 as pb
from unit.nodeagent.makers import (
    RESOURCE,
    device,
    new_slots,
    shadow_object,
    share,
    share_claim,
    share_object,
    snapshot,
)


def test_a_shadow_pod_is_read() -> None:
    pod = trim(shadow_object(drain="now"))
    assert pod is not None and pod.shadow
    assert pod.carve.resource == RESOURCE
    assert (pod.drain, pod.owner_uid) == ("now", "owner-shadow-2-aaaaa")


@pytest.mark.parametrize(
    ("phase", "waiting", "cannot_start"),
    [
        ("Pending", {"reason": "ErrImagePull", "message": "no such host"}, True),
        ("Pending", {"reason": "CreateContainerError"}, True),
        ("Pending", {"reason": "ContainerCreating"}, False),
        ("Pending", {}, False),
        ("Running", {"reason": "CrashLoopBackOff", "message": "back-off 10s"}, False),
    ],
)
def test_a_shadow_pod_that_cannot_start(
    phase: str, waiting: dict[str, str], cannot_start: bool
) -> None:
    body = shadow_object()
    statuses = [{"name": "main", "state": {"waiting": waiting}}]
    body["status"] = {"phase": phase, "containerStatuses": statuses}
    pod = trim(body)
    assert pod is not None and pod.cannot_start == cannot_start


@pytest.mark.parametrize(
    ("owners", "controller"),
    [
        ([], ""),
        ([{"kind": "Workflow"}, {"kind": "Job", "controller": True}], "Job"),
        ([{"kind": "Job", "controller": False}], ""),
        ([{"kind": "Node", "controller": True}], ""),
    ],
)
def test_a_share_pods_controller(owners: list[dict[str, Any]], controller: str) -> None:
    """A static pod's node would run the same pod again."""
    body = share_object()
    body["metadata"]["ownerReferences"] = owners
    pod = trim(body)
    assert pod is not None and pod.controller == controller


def test_a_share_pod_is_read() -> None:
    body = share_object(count=2)
    body["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {RESOURCE: "1"}}}]
    pod = trim(body)
    assert pod is not None and not pod.shadow
    assert pod.requested(RESOURCE) == 2 and pod.requested("mizar.share/gpu.2") == 0
    assert pod.uids == {"uid-share"}
    assert pod.admitted and not pod.ended


STATIC = f"{0xAB:032x}"
VICTIM = "5b9e9c5e-52a4-4c0e-8d0e-6f1f7a0f3c11"
"""The UID of another tenant's pod."""


@pytest.mark.parametrize(
    ("notes", "other"),
    [
        ({"config.hash": STATIC, "config.mirror": STATIC}, {STATIC}),
        ({"config.hash": VICTIM}, set()),
        ({"config.hash": VICTIM, "config.mirror": VICTIM}, set()),
        ({"config.hash": STATIC}, set()),
        ({"config.hash": STATIC, "config.mirror": "x"}, set()),
    ],
    ids=["static", "another pod's", "another pod's, like a mirror", "no mirror", "another mirror"],
)
def test_a_user_gives_his_pod_no_uid_of_another(notes: dict[str, str], other: set[str]) -> None:
    body = share_object()
    body["metadata"]["annotations"] = {f"kubernetes.io/{key}": one for key, one in notes.items()}
    pod = trim(body)
    assert pod is not None and pod.uids == {"uid-share"} | other


@pytest.mark.parametrize("resource", [RESOURCE, SPOT_RESOURCE])
def test_no_process_of_another_pod_is_taken_for_a_pods_own(tmp_path: Path, resource: str) -> None:
    """The agent kills the processes of a spot pod that loses its card, by the pod's UIDs."""
    process = tmp_path / "7"
    process.mkdir()
    (process / "cgroup").write_text(f"0::/kubepods.slice/kubepods-pod{VICTIM}.slice/cri-1\n")
    (process / "stat").write_text("7 (train) S 1")
    (process / "comm").write_text("train\n")
    body = share_object(resource=resource)
    body["metadata"]["annotations"] = {"kubernetes.io/config.hash": VICTIM}
    pod = trim(body)
    assert pod is not None
    assert container_processes.of_pods({VICTIM}, tmp_path)
    assert not container_processes.of_pods(pod.uids, tmp_path)


def test_other_pods_are_of_no_interest() -> None:
    assert trim(share_object(resource="hugepages-2Mi")) is None


def test_an_owner_of_whole_cards_says_whether_they_may_be_lent() -> None:
    body = share_object(resource="nvidia.com/gpu")
    found = trim(body)
    assert found is not None and not found.low_power and not found.uses_devices
    body["metadata"]["annotations"] = {"mizar.share/low-power": "true"}
    assert trim(body).low_power


@pytest.mark.parametrize("text, seconds", [("5", 5), ("0.5", 0.5), ("", 0), ("soon", 0), ("-1", 0)])
def test_a_spot_pod_sets_its_notice_and_grace_by_annotations(text: str, seconds: float) -> None:
    body = share_object(resource="mizar.spot/gpu")
    body["metadata"]["annotations"] = {
        "mizar.share/spot-notice": text,
        "mizar.share/spot-grace": text,
    }
    found = trim(body)
    assert found.uses_devices and found.requested("mizar.spot/gpu") == 1
    assert (found.spot_notice, found.spot_grace) == (seconds, seconds)
    assert trim({"metadata": {"namespace": "a", "name": "b"}, "spec": {"containers": []}}) is None


def test_a_share_pod_cannot_claim_to_be_carved() -> None:
    body = share_object()
    body["metadata"]["annotations"] = shadow_object()["metadata"]["annotations"]
    pod = trim(body)
    assert pod is not None and not pod.carve_json
    with pytest.raises(CarveRefused):
        assert pod.carve


@pytest.mark.parametrize(
    ("changes", "waits"),
    [({}, False), ({"admitted": False}, True), ({"admitted": False, "ended": True}, False)],
)
def test_waiting_pods(changes: dict[str, bool], waits: bool) -> None:
    assert bool(snapshot(1, [share(**changes)]).waiting_pods(RESOURCE)) is waits


def test_a_pod_with_devices_waits_no_more() -> None:
    pod = share(admitted=False)
    assert not snapshot(1, [pod], [share_claim(device(0))]).waiting_pods(RESOURCE)


def test_the_kubelets_answer_names_each_device_apart() -> None:
    entries = [
        pb.ContainerDevices(
            resource_name=RESOURCE,
            device_ids=[device(index)],
            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=index)]),
        )
        for index in (0, 1)
    ]
    container = pb.ContainerResources(name="main", devices=entries)
    pod = pb.PodResources(name="share", namespace="team-a", containers=[container])
    claims = from_list(pb.ListPodResourcesResponse(pod_resources=[pod]), 3.0)
    (claim,) = claims.all
    assert claim == share_claim(device(0), device(1))
    assert claim.numa == {device(0): (0,), device(1): (1,)}
    assert claims.exactly(RESOURCE, [device(1), device(0)]) == (claim,)
    assert claims.exactly(RESOURCE, [device(1)]) == ()


def test_ids_that_are_none_of_ours_are_skipped() -> None:
    claims = snapshot(1, claims=[share_claim("nonsense", device(1))]).claims
    assert [str(one) for one, _ in claims.share()] == [device(1)]


def test_a_pod_that_has_replaced_another_of_its_name_between_two_lists_is_a_new_one() -> None:
    """Claims that the kubelet reported before are the other one's, which is forgotten."""
    agent = Agent(AgentState(), Mock(), Mock(), clock=lambda: 5.0)
    agent.attach(Mock(), Mock(), Mock(), Mock())
    old, new = share(uid="uid-old"), share(uid="uid-new")
    agent._pod_changed(None, old)
    agent._pod_changed(old, new)
    assert (agent._seen_at, agent._gone_at) == ({"uid-new": 5.0}, {old.key: 5.0})
    agent._pod_changed(new, share(uid="uid-new", admitted=False))
    assert (agent._seen_at, agent._gone_at) == ({"uid-new": 5.0}, {old.key: 5.0})


def test_what_containers_had_is_told_once_the_pods_are_listed(tmp_path: Path) -> None:
    """Before, it is not known which of them have ended: none is left out as if it had."""
    pod, slots, poller = share(containers=("main",)), new_slots(tmp_path), Mock()
    owner = Owner(pod.namespace, pod.name, pod.uid, "main")
    slots.assign(slots.create(RESOURCE, [device(0)], 1.0), owner)
    informer = Mock(synced=asyncio.Event(), items={pod.key: pod}.items)
    agent = Agent(AgentState(), Mock(), Mock())
    agent.attach(informer, poller, Mock(), slots)
    assert poller.claims_of_forgotten({pod.key}) is None
    informer.synced.set()
    assert list(poller.claims_of_forgotten({pod.key})) == [share_claim(device(0))]
    assert not list(poller.claims_of_forgotten(frozenset()))
