"""Shadow pods in use are marked, and a budget prevents the eviction of those that are."""

import asyncio
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from mizar_core.names import BUDGET_NAME
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import SetInUse
from mizar_core.planning.snapshot import PodView, ShadowView
from mizar_kube.client import KubeClient, WatchEvent
from mizar_kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Unavailable,
)
from mizar_kube.kinds import BUDGET, POD, SHADOW_POD, Object, Ref, ref_of
from mizar_operator import manifests
from mizar_operator.disruption_budgets import (
    LOOKED_AT_EVERY_S,
    DisruptionBudgets,
    follow,
    watch,
)
from mizar_operator.shadow_deletion import ShadowDeleter
from property.plan.snapshots import NOW, at, node, pool, quota, ready
from unit.operator.drained import Cluster

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
    """Has at most one budget; raises what a test says, and remembers each call."""

    def __init__(self, *answers: KubeError | None, budget: Object | None = None) -> None:
        self.calls: list[str] = []
        self.budget = budget
        self._answers = list(answers)

    async def get(self, ref: Ref, **_: Any) -> Object:
        self._answer("get", ref)
        return self._found()

    async def create(self, obj: Object, **_: Any) -> Object:
        self._answer("create", ref_of(obj))
        if self.budget is not None:
            raise AlreadyExists("there")
        self.budget = made(obj)
        return obj

    async def delete(self, ref: Ref, *, uid: str, **_: Any) -> Object:
        self._answer("delete", ref)
        if self._found()["metadata"]["uid"] != uid:
            raise Conflict("uid")
        self.budget = None
        return {}

    def take(self) -> list[str]:
        """The calls since the last question."""
        taken, self.calls = self.calls, []
        return taken

    def _found(self) -> Object:
        if self.budget is None:
            raise NotFound("gone")
        return self.budget

    def _answer(self, call: str, ref: Ref) -> None:
        assert (ref.kind, ref.name, ref.namespace) == (BUDGET, BUDGET_NAME, "team-a")
        self.calls.append(call)
        if error := self._answers.pop(0) if self._answers else None:
            raise error


def made(obj: Object, uid: str = "ours", **meta: Any) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "uid": uid, **meta}}


class Budgets(DisruptionBudgets):
    """With a clock that the test moves."""

    def __init__(self, api: Api) -> None:
        self.time = 1000.0
        super().__init__(api, lambda: self.time)  # type: ignore[arg-type]

    async def look_after(self, seconds: float, *shadows: ShadowView) -> None:
        self.time += seconds
        await self.keep(Snapshot(shadows=shadows or (_marked(ready(**USED)),)))


OURS = made(manifests.budget("team-a"))
REFUSED = Forbidden("exceeded quota: objects")


async def test_a_budget_is_made_once() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    assert api.calls == ["create"]


async def test_a_budget_that_is_there_is_not_made() -> None:
    api = Api(budget=OURS)
    budgets = Budgets(api)
    await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    assert api.calls == ["create"]


@pytest.mark.parametrize(
    "answer",
    [
        REFUSED,
        Invalid("a policy"),
        BadRequest("admission webhook denied the request"),
        Unavailable("failed calling webhook"),
    ],
)
async def test_a_budget_that_is_refused_is_tried_again(answer: KubeError) -> None:
    """It is tried again when the next shadow pod comes into use, and now and then while one is."""
    api = Api(answer, answer, answer)
    budgets = Budgets(api)
    await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    await budgets.look_after(LOOKED_AT_EVERY_S - 1)
    assert api.take() == ["create", "create"]
    await budgets.look_after(1)
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert api.take() == ["get", "get", "create"]
    await budgets.ensure("team-a")
    assert api.take() == []


async def test_a_budget_that_could_not_be_made_is_tried_again() -> None:
    api = Api(Unavailable("away"))
    budgets = Budgets(api)
    with pytest.raises(Unavailable):
        await budgets.ensure("team-a")
    await budgets.ensure("team-a")
    assert api.calls == ["create", "create"]


async def test_a_budget_that_somebody_deleted_comes_again() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.ensure("team-a")
    await budgets.look_after(LOOKED_AT_EVERY_S)
    await budgets.look_after(1)
    assert api.take() == ["create", "get"]
    api.budget = None
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert api.take() == ["get", "create"]
    assert api.budget is not None


async def test_a_budget_is_looked_for_as_soon_as_its_deletion_is_told() -> None:
    api, keys = Api(), list[str]()
    budgets, caches = Budgets(api), Mock(keys_of_namespace=lambda one: {f"key of {one}"})
    watched = watch(cast(KubeClient, api))
    follow(watched, budgets, caches, keys.append)
    watched.synced.set()
    await budgets.ensure("team-a")
    told = made(manifests.budget("team-a"), resourceVersion="1")
    watched._take(WatchEvent("ADDED", told))
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert (api.take(), keys) == (["create", "get"], [])
    api.budget = None
    watched._take(WatchEvent("DELETED", made(told, resourceVersion="2")))
    await budgets.look_after(0)
    assert (api.take(), keys) == (["get", "create"], ["key of team-a"])


async def test_the_next_operator_looks_at_once() -> None:
    api = Api(budget=OURS)
    budgets = Budgets(api)
    await budgets.look_after(0)
    await budgets.ensure("team-a")
    assert api.calls == ["get"]


async def test_nobody_looks_where_none_is_marked() -> None:
    api = Api()
    deleting = _marked(ready(**USED), deleting=True)
    await Budgets(api).look_after(0, ready(**USED), deleting)
    assert api.calls == []


async def test_a_budget_that_cannot_be_asked_for_holds_up_nobody() -> None:
    api = Api(Unavailable("away"))
    budgets = Budgets(api)
    await budgets.look_after(0)
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert api.calls == ["get", "get", "create"]


async def test_a_budget_that_was_dropped_is_made_anew() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.ensure("team-a")
    await budgets.drop("team-a")
    await budgets.drop("team-a")
    await budgets.ensure("team-a")
    assert api.calls == ["create", "get", "delete", "get", "create"]


async def test_a_budget_that_goes_meanwhile_is_dropped() -> None:
    api = Api(None, NotFound("gone"), budget=OURS)
    await Budgets(api).drop("team-a")
    assert api.calls == ["get", "delete"]


async def test_somebody_elses_budget_is_not_dropped() -> None:
    api = Api(budget=made(OURS, labels={"app.kubernetes.io/managed-by": "somebody"}))
    await Budgets(api).drop("team-a")
    assert api.calls == ["get"]


async def test_a_budget_that_took_the_name_meanwhile_is_not_dropped() -> None:
    api = Api(budget=OURS)

    async def get(ref: Ref) -> Object:
        api.budget = made(OURS, uid="another")
        return OURS

    api.get = get  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await Budgets(api).drop("team-a")
    assert api.budget == made(OURS, uid="another")


def test_a_budget_goes_with_the_last_of_several_shadow_pods_that_go_at_once() -> None:
    """The pod of the other one is still ending, so that the budget could not protect it."""
    cluster = Cluster()
    api, operator = cluster.model.api, cluster.operator
    api.remove(cluster.pod)
    api.start_delete(cluster.beside)
    ending = cluster.find_pod(cluster.beside["metadata"]["name"])
    api.put(
        ending | {"metadata": ending["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    operator.sync([SHADOW_POD, POD])
    assert list(api.all(BUDGET))
    client = cast(KubeClient, api)
    deleter = ShadowDeleter(client, operator.caches, DisruptionBudgets(client))
    asyncio.run(deleter.remove_finalizer(cluster.known))
    assert not list(api.all(BUDGET))
