"""Whether the scheduler refuses a share pod its nodes only because devices were lacking."""

import pytest

from mizar_core.names import ANNOTATION_DRAIN
from mizar_kube.kinds import POD, SHADOW_POD, Object
from mizar_operator.device_refusal import lacks_devices_alone
from stateful.harness import Harness
from stateful.model import Model

GPU = "team-a.mizar.share/gpu.2"
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
def test_what_the_message_names(message: str, alone: bool) -> None:
    assert lacks_devices_alone(message, GPU) is alone


@pytest.fixture
def model() -> Model:
    """Two nodes with cards, and a quota for one shadow pod."""
    made = Model()
    made.add_node("n1")
    made.add_node("n2")
    made.add_pool(idleTimeoutSeconds=60)
    made.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}])
    return made


def _refused(model: Model, name: str, reason: str) -> Object:
    """A share pod of a scheduler that is not the default one, and that has said this of it."""
    model.add_share("team-a", name, GPU, 1, schedulerName="gang")
    pod = model.api.find(POD, name, "team-a")
    assert pod is not None
    condition = model._not_scheduled(
        "Unschedulable", {}, f"0/2 nodes are available: 2 {reason}.{AFTER}"
    )
    pod["status"]["conditions"] = [condition]
    model.api.touch(pod)
    return pod


def _drains(model: Model, operator: Harness, rounds: int) -> list[str]:
    """The names of the shadow pods that are drained within so many rounds."""
    found = set[str]()
    for _ in range(rounds):
        operator.round()
        pods = ((one, one["metadata"].get("annotations") or {}) for one in model.api.all(POD))
        found |= {one["metadata"]["name"] for one, notes in pods if ANNOTATION_DRAIN in notes}
    return sorted(found)


def test_devices_that_a_scheduler_keeps_for_a_gang_stay(model: Model) -> None:
    """A scheduler that has chosen a node for the pod, and waits for the rest of its gang, does not
    withdraw what it said when the devices were not there yet. The pod is bound to that node later,
    where its kubelet refuses it if the devices are gone."""
    _refused(model, "member", LACKING)
    operator = Harness(model)
    assert _drains(model, operator, 120) == []
    (shadow,) = model.api.all(SHADOW_POD)
    (pod,) = (one for one in model.api.all(POD) if one["metadata"]["name"] == "member")
    model._bind(pod, shadow["status"]["node"])
    operator.round()
    operator.round()
    assert pod["status"]["phase"] == "Running"


def test_a_node_that_is_refused_for_another_reason_is_left(model: Model) -> None:
    _refused(model, "member", f"{LACKING}, 1 Insufficient cpu")
    assert len(_drains(model, Harness(model), 120)) == 1
