"""A shadow pod that its kubelet refuses, for example by its topology manager
(TopologyAffinityError), which the scheduler does not know."""

from __future__ import annotations

from mizar_core.names import LABEL_SHADOW_POD
from mizar_core.planning.actions import CreateShadow, DeleteShadow
from mizar_core.planning.snapshot import PodView
from mizar_kube.kinds import POD
from property.plan.snapshots import at, shadow, waiting
from stateful.harness import KINDS, Harness
from support.planned import actions, small
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"
AN_HOUR_LATER = "2026-01-31T13:00:00Z"
REFUSAL = {
    "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation",
}


def _refused(seconds: float) -> PodView:
    return PodView(uid="u", phase="Failed", node="n1", bound_at=at(seconds))


def test_another_is_not_created_at_once() -> None:
    snapshot = small(shadows=(shadow(pod=_refused(1)),), shares=(waiting("p"),))
    assert actions(CreateShadow, snapshot) == []


def test_another_is_created_after_a_while() -> None:
    snapshot = small(shadows=(shadow(pod=_refused(60)),), shares=(waiting("p"),))
    assert len(actions(DeleteShadow, snapshot)) == len(actions(CreateShadow, snapshot)) == 1


def test_a_kubelet_that_refuses_all_of_them_is_not_asked_ten_times_a_second() -> None:
    model = small_model()
    operator = Harness(model)
    model.add_share("team-a", "p", GPU, 1)
    seen = set[str]()
    for _ in range(150):  # fifteen seconds
        operator.sync(KINDS)
        operator.reconcile()
        model.schedule()
        for pod in model.api.all(POD):
            ours = LABEL_SHADOW_POD in pod["metadata"].get("labels", {})
            if ours and pod["spec"].get("nodeName"):
                seen.add(pod["metadata"]["uid"])
                # As of a kubelet: conditions are gone, also the one that says when it was bound.
                # The node's clock is an hour fast.
                pod["status"] = {"phase": "Failed", "startTime": AN_HOUR_LATER} | REFUSAL
                model.api.touch(pod)
        for pod in list(model.api.all(POD)):
            if "deletionTimestamp" in pod["metadata"]:
                model.api.remove(pod)
        model.tick(0.1)
    assert 2 <= len(seen) <= 3
    notes = [note for _, reason, note in operator.events.told if reason == "ShadowRefused"]
    assert notes and all(part in notes[0] for part in REFUSAL.values())
