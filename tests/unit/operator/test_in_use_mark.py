"""Shadow pods in use are marked, and a budget prevents the eviction of those that are."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from mizar_core.names import BUDGET_NAME
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import SetInUse
from mizar_core.planning.snapshot import NodeView, PodView, ShadowView, ShareView
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
from mizar_kube.informer import Informer
from mizar_kube.kinds import BUDGET, POD, SHADOW_POD, Object, Ref, ref_of
from mizar_operator import manifests
from mizar_operator.pod_views import HolderPod
from mizar_operator.shadow_deletion import ShadowDeleter
from mizar_operator.shadow_disruption_budgets import (
    LATE_MARK_S,
    LOOKED_AT_EVERY_S,
    LOWERED_EVERY_S,
    TRIED_AGAIN_S,
    Budget,
    DisruptionBudgets,
    follow,
    watch,
)
from property.plan.snapshots import NOW, at, node, pool, quota, ready, waiting
from unit.operator.drained import Cluster

USED = {"holders": (("team-a", "a"),), "in_use": True, "idle_since": None}


def _marks(
    *shadows: ShadowView,
    nodes: tuple[NodeView, ...] = (node("n1"),),
    shares: tuple[ShareView, ...] = (),
) -> list[SetInUse]:
    snapshot = Snapshot(
        pools=(pool(),), quotas=(quota("team-a"),), nodes=nodes, shadows=shadows, shares=shares
    )
    return [one for one in plan(snapshot, NOW).actions if isinstance(one, SetInUse)]


def _marked(shadow: ShadowView, **fields: Any) -> ShadowView:
    assert shadow.pod is not None
    return replace(shadow, pod=replace(shadow.pod, **{"in_use": True, **fields}))


def test_a_shadow_pod_that_comes_into_use_is_marked() -> None:
    assert _marks(ready(**USED)) == [SetInUse(("team-a", "shadow-2-aaaaa"), True)]
    assert _marks(_marked(ready(**USED))) == []


def test_a_shadow_pod_that_goes_out_of_use_loses_its_mark() -> None:
    assert _marks(_marked(ready())) == [SetInUse(("team-a", "shadow-2-aaaaa"), False)]
    assert _marks(ready()) == []


def test_a_shadow_pod_whose_pod_failed_or_is_being_deleted_gets_no_mark() -> None:
    assert _marks(ready(**USED, pod=PodView(phase="Failed", node="n1"))) == []
    going = PodView(phase="Running", node="n1", bound_at=at(60), deleting=True)
    assert _marks(ready(**USED, pod=going)) == []


@pytest.mark.parametrize(
    ("of_daemon_set", "cordoned", "kept"),
    [(True, True, False), (True, False, True), (False, True, True)],
)
def test_a_drain_does_not_wait_for_pods_that_it_leaves_alone(
    of_daemon_set: bool, cordoned: bool, kept: bool
) -> None:
    """`kubectl drain` evicts shadow pods, but no pods of DaemonSets."""
    user = waiting("a", node="n1", of_daemon_set=of_daemon_set)
    host = node("n1", available=not cordoned)
    found = _marks(_marked(ready(**USED)), nodes=(host,), shares=(user,))
    assert found == ([] if kept else [SetInUse(("team-a", "shadow-2-aaaaa"), False)])


def test_a_drain_waits_for_the_other_users_beside_pods_that_it_leaves_alone() -> None:
    users = waiting("a", node="n1", of_daemon_set=True), waiting("b", node="n1")
    shadow = _marked(ready(**{**USED, "holders": (("team-a", "a"), ("team-a", "b"))}))
    cordoned = (node("n1", available=False),)
    assert _marks(shadow, nodes=cordoned, shares=users) == []
    being_given = _marked(ready(**{**USED, "holders": ()}))
    assert _marks(being_given, nodes=cordoned, shares=users) == [], "nobody knows to whom"


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
        self.version = 10
        self.budget = budget
        if budget is not None:
            self._put(budget)
        self._answers = list(answers)

    async def get(self, ref: Ref, **_: Any) -> Object:
        self._answer("get", ref)
        return self._found()

    async def create(self, obj: Object, **_: Any) -> Object:
        await asyncio.sleep(0)
        self._answer("create", ref_of(obj))
        if self.budget is not None:
            raise AlreadyExists("there")
        return self._put(made(obj))

    async def patch_merge(self, ref: Ref, patch: Object) -> Object:
        self._answer("patch", ref)
        found = self._found()
        version = patch["metadata"]["resourceVersion"]
        if version != found["metadata"]["resourceVersion"]:
            raise Conflict("it was changed")
        return self._put({**found, "spec": {**found["spec"], **patch["spec"]}})

    def _put(self, budget: Object) -> Object:
        self.version += 1
        self.budget = made(budget, resourceVersion=str(self.version))
        return self.budget

    def set(self, demanded: int) -> Budget:
        """Another client writes the budget; what the watch will report of it."""
        self._put(made(manifests.budget("team-a", demanded)))
        return Budget("team-a", demanded, str(self.version))

    @property
    def demanded(self) -> int:
        """How many pods the budget demands."""
        return int(self._found()["spec"]["minAvailable"])

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


class Holders:
    """The copy of the shadow pods' pods."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], HolderPod] = {}
        self._told: list[Callable[[HolderPod | None, HolderPod | None], None]] = []

    def on_change(self, listener: Callable[[HolderPod | None, HolderPod | None], None]) -> None:
        self._told.append(listener)

    def put(self, name: str, namespace: str = "team-a", **fields: Any) -> None:
        view = PodView(**{"phase": "Running", "node": "n1", "in_use": True, **fields})
        key = namespace, name
        self._set(key, HolderPod(key, "pool", "uid", "resource", view))

    def drop(self, name: str) -> None:
        self._set(("team-a", name), None)

    def _set(self, key: tuple[str, str], now: HolderPod | None) -> None:
        before = self._kept.pop(key, None)
        if now is not None:
            self._kept[key] = now
        for one in self._told:
            one(before, now)


class Budgets(DisruptionBudgets):
    """With a clock that the test moves, and shadow pods that it marks."""

    def __init__(self, api: Api) -> None:
        self.time = 1000.0
        self.holders = Holders()
        super().__init__(
            cast(KubeClient, api), cast(Informer[HolderPod], self.holders), lambda: self.time
        )

    async def mark(self, name: str = "shadow-2-aaaaa", namespace: str = "team-a") -> None:
        async with self.marking((namespace, name)):
            self.holders.put(name, namespace)

    async def look_after(self, seconds: float, *shadows: ShadowView) -> None:
        self.time += seconds
        await self.keep(Snapshot(shadows=shadows or (_marked(ready(**USED)),)))


OURS = made(manifests.budget("team-a", 1))
THEIRS = made(OURS, labels={"app.kubernetes.io/managed-by": "somebody"})
REFUSED = Forbidden("exceeded quota: objects")


async def test_a_budget_demands_what_is_marked() -> None:
    """It is met, so that no monitoring reports it."""
    api = Api()
    budgets = Budgets(api)
    await budgets.mark("one")
    await budgets.mark("one")
    assert (api.take(), api.demanded) == (["create"], 1)
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["patch"], 2)


async def test_it_is_raised_before_a_pod_is_marked() -> None:
    api = Api()
    budgets = Budgets(api)
    budgets.holders.put("one")
    async with budgets.marking(("team-a", "two")):
        assert api.demanded == 2
    budgets.holders.put("other", "team-b")
    budgets.holders.put("going", deleting=True)
    budgets.holders.put("idle", in_use=False)
    await budgets.mark("three")
    assert api.demanded == 2, "the second one was not marked after all"


async def test_a_mark_whose_answer_is_lost_counts_for_a_while() -> None:
    """It may take effect all the same."""
    api = Api()
    budgets = Budgets(api)
    await budgets.mark("one")
    with pytest.raises(Unavailable):
        async with budgets.marking(("team-a", "two")):
            raise Unavailable("timeout")
    await budgets.look_after(0)
    await budgets.look_after(LATE_MARK_S - 1)
    assert api.demanded == 2
    await budgets.look_after(LOWERED_EVERY_S)
    assert api.demanded == 1


async def test_two_plans_may_mark_the_same_pod_at_the_same_time() -> None:
    api = Api()
    budgets = Budgets(api)
    await asyncio.gather(budgets.mark("one"), budgets.mark("one"))
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "patch"], 2)


async def test_many_marks_at_once_are_few_writes() -> None:
    api = Api()
    budgets = Budgets(api)
    await asyncio.gather(*(budgets.mark(f"shadow-{number}") for number in range(500)))
    assert 500 <= api.demanded <= 563
    assert len(api.take()) < 60


async def test_it_is_lowered_a_while_after_marks_are_gone() -> None:
    api = Api()
    budgets = Budgets(api)
    for name in ("one", "two", "three"):
        await budgets.mark(name)
    await budgets.look_after(0)
    api.take()
    budgets.holders.drop("one")
    budgets.holders.put("two", in_use=False)
    await budgets.look_after(LOWERED_EVERY_S - 1)
    assert (api.take(), api.demanded) == ([], 3)
    await budgets.look_after(1)
    assert (api.take(), api.demanded) == (["get", "patch"], 1)
    budgets.holders.drop("three")
    async with budgets.marking(("team-a", "four")):
        await budgets.look_after(LOWERED_EVERY_S)
        assert (api.take(), api.demanded) == ([], 1), "it is about to be marked"
    await budgets.look_after(LOWERED_EVERY_S)
    assert (api.take(), api.demanded) == (["get", "patch"], 0)
    await budgets.mark("five")
    assert (api.take(), api.demanded) == (["patch"], 1)


async def test_a_budget_that_cannot_be_lowered_is_tried_again() -> None:
    """Also where nothing is in use any more, and whether or not the write took effect."""
    api = Api(None, None, Unavailable("away"))
    budgets = Budgets(api)
    await budgets.mark()
    budgets.holders.drop("shadow-2-aaaaa")
    idle = ready()
    await budgets.look_after(0, idle)
    await budgets.look_after(LOWERED_EVERY_S, idle)
    assert (api.take(), api.demanded) == (["create", "get", "patch"], 1)
    await budgets.look_after(LOWERED_EVERY_S, idle)
    assert (api.take(), api.demanded) == (["get", "get", "patch"], 0)


async def test_a_budget_that_was_changed_meanwhile_is_not_lowered() -> None:
    api = Api()
    budgets = Budgets(api)
    for name in ("one", "two"):
        await budgets.mark(name)
    budgets.holders.drop("one")
    await budgets.look_after(0)
    get = api.get

    async def changed(ref: Ref, **_: Any) -> Object:
        found = await get(ref)
        api.set(5)
        return found

    api.get = changed  # type: ignore[method-assign]
    await budgets.look_after(LOWERED_EVERY_S)
    assert api.demanded == 5
    api.get = get  # type: ignore[method-assign]
    await budgets.look_after(LOWERED_EVERY_S)
    assert api.demanded == 1


async def test_very_many_budgets_are_lowered_one_part_after_the_other() -> None:
    """The plan's actions wait for it."""
    api = Api()
    budgets = Budgets(api)
    for number in range(100):
        assert not budgets.found(Budget(f"team-{number}", 3, "1"))
    lowered: list[str] = []

    async def lower(namespace: str) -> None:
        lowered.append(namespace)
        budgets.found(Budget(namespace, 0, "2"))

    budgets._lower = lower  # type: ignore[method-assign]
    idle = ready()
    for seconds, done in ((0, 0), (LOWERED_EVERY_S, 64), (1, 100), (1, 100)):
        await budgets.look_after(seconds, idle)
        assert len(lowered) == done


async def test_the_next_operator_raises_a_budget_that_it_finds() -> None:
    api = Api(budget=OURS)
    budgets = Budgets(api)
    budgets.holders.put("one")
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "get", "patch"], 2)


@pytest.mark.parametrize("demanded", [3, 2**31 - 1])
async def test_the_next_operator_lowers_it_only_when_it_knows_all_marks(demanded: int) -> None:
    api = Api(budget=made(manifests.budget("team-a", demanded)))
    budgets = Budgets(api)
    budgets.time += 3600.0
    await budgets.mark("two")
    await budgets.mark("three")
    await budgets.look_after(0)
    assert (api.take()[:2], api.demanded) == (["create", "get"], demanded)
    budgets.holders.put("one")
    await budgets.look_after(LOWERED_EVERY_S)
    assert api.demanded == 3


async def test_marks_that_are_seen_late_are_counted_at_once() -> None:
    api = Api(budget=OURS)
    budgets = Budgets(api)
    await budgets.mark("one")
    for name in ("two", "three"):
        budgets.holders.put(name)
    await budgets.look_after(0)
    assert api.demanded == 3


async def test_the_next_operator_looks_at_once() -> None:
    api = Api(budget=OURS)
    budgets = Budgets(api)
    budgets.holders.put("one")
    await budgets.look_after(0)
    await budgets.mark("one")
    assert api.calls == ["get"]


async def test_a_budget_that_demands_too_little_is_raised_when_it_is_seen() -> None:
    """As somebody who administers nodes may have written it."""
    api = Api(budget=made(manifests.budget("team-a", 0)))
    budgets = Budgets(api)
    budgets.holders.put("one")
    await budgets.look_after(0)
    assert (api.take(), api.demanded) == (["get", "patch"], 1)


async def test_what_the_watch_says_counts_if_it_is_newer() -> None:
    api = Api()
    budgets = Budgets(api)
    told = api.set(3)
    assert not budgets.found(told)
    for name in ("one", "two", "three"):
        await budgets.mark(name)
    assert api.take() == []
    await budgets.mark("four")
    assert (api.take(), api.demanded) == (["patch"], 4)
    assert not budgets.found(told), "it is older than the answer"
    await budgets.mark("four")
    assert api.take() == []
    assert budgets.found(api.set(0))
    await budgets.mark("four")
    assert (api.take(), api.demanded) == (["patch"], 4)


async def test_a_budget_of_somebody_else_is_left_alone() -> None:
    api = Api(budget=THEIRS)
    budgets = Budgets(api)
    await budgets.mark("one")
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "get"], 1)
    await budgets.look_after(0)
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert (api.take(), api.demanded) == (["get"], 1)


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
    """It is tried again when the next shadow pod comes into use, and now and then."""
    api = Api(answer, answer, None, answer)
    budgets = Budgets(api)
    await budgets.mark()
    await budgets.mark()
    await budgets.look_after(TRIED_AGAIN_S - 1)
    assert api.take() == ["create", "create"]
    await budgets.look_after(1)
    await budgets.look_after(TRIED_AGAIN_S)
    assert api.take() == ["get", "create", "get", "create"]
    await budgets.mark()
    assert (api.take(), api.demanded) == ([], 1)


async def test_a_raise_that_is_refused_is_tried_again() -> None:
    api = Api(None, REFUSED)
    budgets = Budgets(api)
    await budgets.mark("one")
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "patch"], 1)
    await budgets.look_after(TRIED_AGAIN_S)
    assert (api.take(), api.demanded) == (["get", "patch"], 2)


async def test_a_budget_that_could_not_be_made_is_tried_again() -> None:
    api = Api(Unavailable("away"))
    budgets = Budgets(api)
    marked = False
    with pytest.raises(Unavailable):
        async with budgets.marking(("team-a", "one")):
            marked = True
    assert not marked, "the pod is marked only under a budget"
    await budgets.mark()
    assert api.calls == ["create", "create"]


async def test_a_budget_that_somebody_deleted_comes_again() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.mark()
    await budgets.look_after(LOOKED_AT_EVERY_S)
    await budgets.look_after(1)
    assert api.take() == ["create", "get"]
    api.budget = None
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert api.take() == ["get", "create"]
    assert api.demanded == 1


async def test_a_budget_that_was_deleted_unseen_is_made_when_it_is_raised() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.mark("one")
    api.budget = None
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "patch", "create"], 2)


async def test_a_budget_is_put_right_as_soon_as_the_watch_tells() -> None:
    api, keys = Api(), list[str]()
    budgets, caches = Budgets(api), Mock(keys_of_namespace=lambda one: {f"key of {one}"})
    watched = watch(cast(KubeClient, api))
    follow(watched, budgets, caches, keys.append)
    watched.synced.set()
    await budgets.mark()
    watched._take(WatchEvent("ADDED", cast(Object, api.budget)))
    await budgets.look_after(LOOKED_AT_EVERY_S)
    assert (api.take(), keys) == (["create", "get"], [])
    gone, api.budget = cast(Object, api.budget), None
    watched._take(WatchEvent("DELETED", made(gone, resourceVersion="20")))
    await budgets.look_after(0)
    assert (api.take(), keys) == (["get", "create"], ["key of team-a"])
    api.version = 30
    api.set(0)
    watched._take(WatchEvent("MODIFIED", cast(Object, api.budget)))
    assert keys == ["key of team-a"] * 2
    await budgets.look_after(0)
    assert (api.take(), api.demanded) == (["patch"], 1)


async def test_nobody_looks_where_none_is_marked() -> None:
    api = Api()
    deleting = _marked(ready(**USED), deleting=True)
    await Budgets(api).look_after(0, ready(**USED), deleting)
    assert api.calls == []


async def test_a_budget_that_cannot_be_asked_for_holds_up_nobody() -> None:
    api = Api(Unavailable("away"))
    budgets = Budgets(api)
    budgets.holders.put("one")
    await budgets.look_after(0)
    await budgets.look_after(TRIED_AGAIN_S - 1)
    await budgets.look_after(1)
    assert api.calls == ["get", "get", "create"]


async def test_a_budget_that_may_not_be_read_is_written_all_the_same() -> None:
    api = Api(Forbidden("get"))
    budgets = Budgets(api)
    budgets.holders.put("one")
    await budgets.look_after(0)
    assert (api.take(), api.demanded) == (["get", "create"], 1)


async def test_marks_that_wait_for_a_write_that_fails_do_not_repeat_it() -> None:
    """Each try may take as long as the API server's webhooks, and plans wait for all of them."""
    for answer in (Unavailable("away"), REFUSED):
        api = Api(*[answer] * 50)
        budgets = Budgets(api)
        marks = (budgets.mark(f"shadow-{number}") for number in range(20))
        outcomes = await asyncio.gather(*marks, return_exceptions=True)
        assert set(outcomes) == ({answer} if isinstance(answer, Unavailable) else {None})
        assert api.take() == ["create"]


async def test_a_budget_that_was_changed_meanwhile_is_read_before_it_is_raised() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.mark("one")
    api.set(0)
    await budgets.mark("two")
    assert (api.take(), api.demanded) == (["create", "patch", "create", "get", "patch"], 2)
    api.set(9)
    await budgets.mark("three")
    assert (api.take(), api.demanded) == (["patch", "create", "get"], 9)


async def test_a_mark_that_the_api_server_refuses_does_not_count() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.mark("one")
    with pytest.raises(Forbidden):
        async with budgets.marking(("team-a", "two")):
            raise REFUSED
    await budgets.look_after(0)
    await budgets.look_after(LOWERED_EVERY_S)
    assert api.demanded == 1


async def test_no_budget_is_made_for_nothing() -> None:
    api = Api()
    await Budgets(api).look_after(0)
    assert api.calls == ["get"], "a mark that the copy does not show any more"


async def test_a_budget_that_was_dropped_is_made_anew() -> None:
    api = Api()
    budgets = Budgets(api)
    await budgets.mark()
    await budgets.drop("team-a")
    await budgets.drop("team-a")
    await budgets.mark()
    assert api.calls == ["create", "get", "delete", "get", "create"]


async def test_a_budget_that_goes_meanwhile_is_dropped() -> None:
    api = Api(None, NotFound("gone"), budget=OURS)
    await Budgets(api).drop("team-a")
    assert api.calls == ["get", "delete"]


async def test_somebody_elses_budget_is_not_dropped() -> None:
    api = Api(budget=THEIRS)
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
    deleter = ShadowDeleter(
        client, operator.caches, DisruptionBudgets(client, operator.caches.holders)
    )
    asyncio.run(deleter.remove_finalizer(cluster.known))
    assert not list(api.all(BUDGET))
