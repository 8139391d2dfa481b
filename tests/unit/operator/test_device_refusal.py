"""A share pod that the scheduler refuses its nodes only because devices were lacking."""

import pytest

from mizar_core.names import ANNOTATION_DRAIN
from mizar_kube.kinds import NODE, POD, SHADOW_POD, Object
from stateful.harness import KINDS, Harness
from stateful.model import Model

GPU = "team-a.mizar.share/gpu.2"
LACKING = f"Insufficient {GPU}"
TAINTED = "node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"
AFTER = (
    " no new claims to deallocate, preemption: 0/2 nodes are available: "
    "2 Preemption is not helpful for scheduling."
)


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
    """The names of the shadow pods that are drained within that number of rounds."""
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


class LackingDevices(Model):
    """Its scheduler says of devices what kube-scheduler says."""

    def _refuse(self, pod: Object) -> None:
        super()._refuse(pod)
        for one in pod["status"].get("conditions") or ():
            if one.get("reason") == "Unschedulable" and GPU in str(pod["spec"]):
                one["message"] = f"0/2 nodes are available: 2 {LACKING}.{AFTER}"


@pytest.mark.parametrize("most", [1, 2])
def test_devices_that_a_node_does_not_offer_any_more_keep_nobody_waiting(most: int) -> None:
    """Its agent has ended and does not come back, while the ShadowPod still says Ready."""
    model = LackingDevices()
    model.add_node("n1")
    model.add_node("n2")
    model.add_pool(idleTimeoutSeconds=600)
    model.add_quota("team-a", [{"devices": 2, "min": 1, "max": most}])
    operator = Harness(model)
    for _ in range(20):
        operator.round()
    (shadow,) = model.api.all(SHADOW_POD)
    left, other = shadow["status"]["node"], {"n1": "n2", "n2": "n1"}[shadow["status"]["node"]]
    node = model.api.find(NODE, left)
    assert node is not None
    node["status"]["allocatable"][GPU] = "0"
    model.api.touch(node)
    model.add_share("team-a", "p", GPU, 1)
    pod = model.api.find(POD, "p", "team-a")
    assert pod is not None

    def is_settled() -> bool:
        if most == 2:
            return bool(pod["spec"].get("nodeName") == other)
        return "NodeAgentSilent" in {one[1] for one in operator.events.told}

    for _ in range(400):
        if is_settled():
            break
        model.schedule()
        for one in (left, other):
            model.kubelet(one)
        model.agent(other)
        model.control()
        operator.sync(KINDS)
        operator.reconcile()
        model.tick(1)
    assert is_settled()


def test_a_node_that_is_refused_for_another_reason_is_left(model: Model) -> None:
    _refused(model, "member", f"{LACKING}, 1 Insufficient cpu")
    assert len(_drains(model, Harness(model), 120)) == 1
