"""Cards of shadow pods of pools with another resource prefix, when a pod waits for several."""

from __future__ import annotations

from mizar_core.names import LABEL_POOL, LABEL_SHADOW_POD, PHYSICAL_RESOURCE
from mizar_core.planning import plan
from mizar_core.planning.actions import Drain
from mizar_kube.kinds import NODE, POD
from stateful.harness import KINDS, Harness
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


def test_they_count_as_held() -> None:
    model = small_model()
    node = model.api.find(NODE, "n1")
    assert node is not None
    for figure in ("capacity", "allocatable"):
        node["status"][figure][PHYSICAL_RESOURCE] = "4"
    operator = Harness(model)
    # Two shadow pods of this prefix, idle; the other prefix' shadow pods hold the two other cards.
    model.add_share("team-a", "p", GPU, 2)
    model.add_share("team-a", "q", GPU, 2)
    for _ in range(6):
        operator.round()
    for name in ("p", "q"):
        pod = model.api.find(POD, name, "team-a")
        assert pod is not None
        model.api.start_delete(pod)
    for name in ("one", "two"):
        model.add_whole("team-b", name, 1)
        pod = model.api.find(POD, name, "team-b")
        assert pod is not None
        pod["metadata"]["labels"] = {LABEL_SHADOW_POD: "true", LABEL_POOL: "other"}
    model.schedule()
    for name in ("one", "two"):
        pod = model.api.find(POD, name, "team-b")
        assert pod is not None
        pod["status"]["phase"] = "Running"
    model.add_whole("team-c", "wide", 2)
    for _ in range(4):
        operator.catch_up()
        model.tick(1)
    operator.sync(KINDS)
    snapshot = operator.snapshot()
    drains = [one for one in plan(snapshot, model.time).actions if isinstance(one, Drain)]
    assert len(drains) == 2, "one card would not do"
