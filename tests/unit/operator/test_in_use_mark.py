"""Shadow pods in use are marked, and a budget holds evictions off those that are."""

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.names import BUDGET_NAME
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import SetInUse
from mizar_core.planning.snapshot import PodView, ShadowView
from mizar_kube.errors import AlreadyExists, Forbidden, KubeError, NotFound, Unavailable
from mizar_kube.kinds import Object, Ref
from mizar_operator import manifests
from mizar_operator.disruption_budgets import DisruptionBudgets
from property.plan.snapshots import NOW, at, node, pool, quota, ready

USED = {"holders": (("team-a", "a"),), "in_use": True, "idle_since": None}


def _marks(*shadows: ShadowView) -> list[SetInUse]:
    snapshot = Snapshot(
        pools=(pool(),), quotas=(quota("team-a"),), nodes=(node("n1"),), shadows=shadows
    )
    return [one for one in plan(snapshot, NOW).actions if isinstance(one, SetInUse)]


def _marked(shadow: ShadowView, **fields: Any) -> ShadowView:
    assert shadow.pod is not None
    return replace(shadow, pod=replace(shadow.pod, **{"in_use": True, **fields}))


def test_who_comes_into_use_is_marked() -> None:
    assert _marks(ready(**USED)) == [SetInUse(("team-a", "shadow-2-aaaaa"), True)]
    assert _marks(_marked(ready(**USED))) == []


def test_who_goes_out_of_use_is_not_any_more() -> None:
    assert _marks(_marked(ready())) == [SetInUse(("team-a", "shadow-2-aaaaa"), False)]
    assert _marks(ready()) == []


def test_who_ends_needs_no_marks() -> None:
    assert _marks(ready(**USED, pod=PodView(phase="Failed", node="n1"))) == []
    going = PodView(phase="Running", node="n1", bound_at=at(60), deleting=True)
    assert _marks(ready(**USED, pod=going)) == []


def test_marks_go_as_they_came() -> None:
    on, off = manifests.in_use(on=True), manifests.in_use(on=False)
    assert on["labels"] == {"mizar.share/in-use": "true"}
    assert on["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    assert {field: dict.fromkeys(pairs) for field, pairs in on.items()} == off


class Api:
    """Answers each call with what a test says, and remembers it."""

    def __init__(self, *answers: KubeError | None) -> None:
        self.calls: list[str] = []
        self._answers = list(answers)

    async def create(self, obj: Object, **_: Any) -> Object:
        self._answer(f"create {obj['metadata']['namespace']}/{obj['metadata']['name']}")
        return obj

    async def delete(self, ref: Ref, **_: Any) -> Object:
        self._answer(f"delete {ref.namespace}/{ref.name}")
        return {}

    def _answer(self, call: str) -> None:
        self.calls.append(call)
        if error := self._answers.pop(0) if self._answers else None:
            raise error


CREATE, DELETE = f"create team-a/{BUDGET_NAME}", f"delete team-a/{BUDGET_NAME}"


@pytest.mark.parametrize("answer", [None, AlreadyExists("there"), Forbidden("ResourceQuota")])
async def test_a_budget_is_made_once(answer: KubeError | None) -> None:
    api = Api(answer)
    budgets = DisruptionBudgets(api)  # type: ignore[arg-type]
    await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    assert api.calls == [CREATE]


async def test_a_budget_that_could_not_be_made_is_tried_again() -> None:
    api = Api(Unavailable("away"))
    budgets = DisruptionBudgets(api)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    assert api.calls == [CREATE, CREATE]


@pytest.mark.parametrize("answer", [None, NotFound("gone")])
async def test_a_budget_that_was_dropped_is_made_anew(answer: KubeError | None) -> None:
    api = Api(None, answer)
    budgets = DisruptionBudgets(api)  # type: ignore[arg-type]
    await budgets.ensure("team-a")
    await budgets.drop("team-a")
    await budgets.ensure("team-a")
    assert api.calls == [CREATE, DELETE, CREATE]
