"""What a scheduler's message about a pod without a node says."""

import pytest

from mizar_core.planning.refusal_message import (
    gives_reasons,
    lacks,
    lacks_alone,
    lacks_claimed_devices,
    names_no_node,
)

GPU = "team-a.mizar.share/gpu.2"
CARDS = "nvidia.com/gpu"
LACKING = f"Insufficient {GPU}"
TAINTED = "node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"
AFTER = (
    " no new claims to deallocate, preemption: 0/2 nodes are available: "
    "2 Preemption is not helpful for scheduling."
)


@pytest.mark.parametrize(
    ("message", "alone"),
    [
        (f"0/2 nodes are available: 2 {LACKING}.{AFTER}", True),
        (f"0/2 nodes are available: 2 {LACKING}. preemption: 0/2 nodes", True),
        (f"0/2 nodes are available: 2 {LACKING}.", True),
        (f"0/3 nodes are available: 1 {TAINTED}, 2 {LACKING}.{AFTER}", True),
        (
            f"0/4 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
            f"1 node(s) were unschedulable, 2 {LACKING}.",
            True,
        ),
        (f"0/2 nodes are available: 1 Insufficient cpu, 2 {LACKING}.{AFTER}", False),
        (f"0/2 nodes are available: 1 Insufficient cpu, 1 {LACKING}.", False),
        (f"0/2 nodes are available: 1 {LACKING}, 1 {LACKING}0.", False),
        (f"0/2 nodes are available: 2 {TAINTED}.", False),
        ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", False),
        (f"the pod group is not ready: {LACKING}", False),
        ("the scheduler finds no node", False),
        ("", False),
    ],
)
def test_a_lack_of_devices_alone(message: str, alone: bool) -> None:
    assert lacks_alone(message, GPU) is alone


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (f"0/2 nodes are available: 2 Insufficient {CARDS}.{AFTER}", True),
        (f"0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient {CARDS}. more", True),
        (f"0/2 nodes are available: 1 Insufficient {CARDS}, 1 Insufficient cpu.", True),
        (f"1 Insufficient {CARDS}", True),
        (f"0/2 nodes are available: 2 Insufficient {CARDS}.shared.", False),
        (f"0/2 nodes are available: 2 Insufficient {CARDS}-memory, 1 Insufficient cpu.", False),
        (f"0/2 nodes are available: 2 Insufficient {CARDS}2.", False),
        ("0/2 nodes are available: 2 Insufficient nvidiaxcom/gpu.", False),
        ("", False),
        (None, False),
    ],
)
def test_the_resources_that_are_lacking(message: str | None, named: bool) -> None:
    assert lacks(message, CARDS) is named


@pytest.mark.parametrize(
    ("message", "gives"),
    [
        ("0/2 nodes are available: 2 Insufficient cpu.", True),
        ('0/2 nodes are available: persistentvolumeclaim "data" not found.', True),
        (f"0/2 nodes are available: 2 {TAINTED}.", True),
        # Volcano
        ("0/1 nodes are unavailable: 1 Insufficient cpu.", True),
        ("all nodes are unavailable: 3 node(s) resource fit failed.", False),
        ("pod group is not ready, 1 Pending, 2 minAvailable", False),
        # KAI
        (
            "no nodes with enough resources were found: 1 node(s) didn't match Pod's node "
            "affinity/selector.\n5 node(s) didn't have enough resources: GPUs.",
            False,
        ),
        # YuniKorn
        ("request is waiting for cluster resources become available", False),
        ("", False),
        (None, False),
    ],
)
def test_what_a_scheduler_of_other_words_lacks_is_not_known(
    message: str | None, gives: bool
) -> None:
    assert gives_reasons(message) is gives


@pytest.mark.parametrize(
    ("message", "names_none"),
    [
        ('0/2 nodes are available: persistentvolumeclaim "data" not found.', True),
        ("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.", True),
        ("0/2 nodes are available: 2 Insufficient cpu.", False),
        ("0/2 nodes are available: preemption: 0/2 nodes are available: 2 more", False),
        ("the pod group is not ready", False),
        # Coscheduling
        ("0/1 nodes are available: 1 optimistic rejection in PostFilter.", True),
        ("0/1 nodes are available: 1 rejection in Unreserve.", True),
        ("0/2 nodes are available: podGroup team-a/gang failed recently.", True),
        (
            f"0/2 nodes are available: 2 {LACKING}. PodGroup team-a/gang gets rejected due to Pod "
            "member-3 is unschedulable even after PostFilter",
            False,
        ),
        # Any plugin that lets pods wait for each other
        (
            "0/1 nodes are available: 1 rejected due to timeout after waiting 10s at plugin "
            "Coscheduling.",
            True,
        ),
        # kube-scheduler's own gangs
        (
            "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled",
            True,
        ),
        (None, False),
    ],
)
def test_a_pod_that_is_refused_because_of_itself(message: str | None, names_none: bool) -> None:
    assert names_no_node(message) is names_none


BY_DRA = " still not schedulable, preemption: 0/2 nodes are available: 2 Preemption is not helpful"


@pytest.mark.parametrize(
    ("message", "lacking"),
    [
        (f"0/2 nodes are available: 2 cannot allocate all claims.{BY_DRA}", True),
        (
            f"0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.{BY_DRA}",
            True,
        ),
        (f"0/2 nodes are available: 1 {TAINTED}, 1 cannot allocate all claims.", True),
        (f"0/2 nodes are available: 2 cannot schedule extended resource claim.{BY_DRA}", False),
        (f"0/2 nodes are available: 2 cannot fit resource.{BY_DRA}", False),
        (f"0/2 nodes are available: 2 Insufficient {CARDS}.{AFTER}", False),
        ("cannot allocate all claims", False),
        ("", False),
        (None, False),
    ],
)
def test_devices_of_dra_drivers_that_are_lacking(message: str | None, lacking: bool) -> None:
    assert lacks_claimed_devices(message) is lacking
    assert not lacks(message, CARDS) or not lacking
    assert names_no_node(message) is False
