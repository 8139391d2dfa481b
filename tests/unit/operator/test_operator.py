"""The operator on an API server in memory, one situation at a time; tests/stateful does all at
once."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from mizar_core.names import ANNOTATION_DRAIN
from mizar_kube.errors import Conflict, Forbidden, Invalid, Unavailable
from mizar_kube.kinds import BUDGET, GPU_QUOTA, NODE, POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator import action_log, gather
from mizar_operator.caches import NO_POOL, follow
from mizar_operator.reconcile_state import NODE_GONE_AFTER_S
from mizar_operator.shadow_disruption_budgets import LOOKED_AT_EVERY_S
from stateful.harness import KEY, KINDS, Harness
from stateful.memory_api import Write
from stateful.model import Model
from support.kube import condition
from support.logs import logged
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


@pytest.fixture
def model() -> Model:
    return small_model()


@pytest.fixture
def operator(model: Model) -> Harness:
    """An operator whose caches are current."""
    return Harness(model)


def _shadows(model: Model) -> list[Object]:
    return list(model.api.all(SHADOW_POD))


def _pod(model: Model, shadow: Object) -> Object | None:
    return model.api.find(POD, shadow["metadata"]["name"], shadow["metadata"]["namespace"])


def _pool_ready(model: Model) -> Object:
    (pool,) = model.pools()
    (ready,) = pool["status"]["conditions"]
    return dict(ready)


def test_a_pool_says_that_its_runtime_class_is_not_there(model: Model, operator: Harness) -> None:
    (pool,) = model.pools()
    pool["spec"]["runtimeClassName"] = "nvidia"
    model.api.touch(pool)
    operator.round()
    ready = _pool_ready(model)
    assert (ready["status"], ready["reason"]) == ("False", "RuntimeClassNotFound")
    assert ready["message"].startswith("there is no RuntimeClass nvidia, so Kubernetes refuses")
    model.api.put(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    )
    operator.round(seconds=31)
    assert _pool_ready(model)["reason"] == "RuntimeClassNotFound"
    operator.round()
    assert _pool_ready(model)["reason"] == "CardsFound"


def test_it_looks_again_by_itself(model: Model, operator: Harness) -> None:
    (pool,) = model.pools()
    pool["spec"]["runtimeClassName"] = "nvidia"
    operator.round(seconds=30)
    assert len(operator.queue) == 0
    model.tick(0.2)
    assert asyncio.run(operator.queue.get()) == KEY


def test_an_operator_that_may_not_read_runtime_classes_plans_all_the_same(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(ref: Ref, **_: object) -> Object:
        raise Forbidden(f"no right to read {ref}")

    (pool,) = model.pools()
    pool["spec"]["runtimeClassName"] = "nvidia"
    model.add_share("team-a", "p", GPU, 1)
    monkeypatch.setattr(model.api, "get", forbidden)
    operator.round()
    assert _pool_ready(model)["reason"] == "CardsFound"
    assert len(_shadows(model)) == 1


def test_why_a_pod_waits_is_told_again_before_its_event_expires(
    model: Model, operator: Harness
) -> None:
    """API servers keep events for an hour; a pod may wait for days."""
    model.add_share("team-b", "p", "team-b.mizar.share/gpu.2", 1)
    for _ in range(5):
        operator.round(seconds=600)
    told = [reason for about, reason, _ in operator.events.told if about == "Pod/p"]
    assert told == ["NoQuota", "NoQuota"]


def test_a_waiting_pod_is_told_the_schedulers_new_message_within_five_minutes(
    model: Model, operator: Harness
) -> None:
    """Nothing else happens meanwhile: the operator looks again by itself. It does not post words
    that change each second as often as that."""

    def scheduler_says(words: str) -> None:
        """The scheduler says this of the pod of the only shadow pod, which has no node."""
        pod = _pod(model, *_shadows(model))
        assert pod is not None
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [unschedulable | {"message": words}]
        model.api.touch(pod)
        operator.sync(KINDS)
        operator.queue.add(KEY)

    def told() -> list[str]:
        found = (one for one in operator.events.told if one[:2] == ("Pod/p", "NoNodeFits"))
        return [note.partition("finds no node: ")[2] for _, _, note in found]

    model.add_share("team-a", "p", GPU, 1)
    operator.sync(KINDS)
    operator.reconcile()
    scheduler_says("0/1 nodes are available: 1 Insufficient cpu.")
    operator.work()
    assert told() == ["0/1 nodes are available: 1 Insufficient cpu."]
    for second in range(100):
        model.tick(1)
        scheduler_says(f"0/{second} nodes are available: {second} Insufficient memory.")
        operator.work()
    assert len(told()) == 1
    for _ in range(210):
        model.tick(1)
        operator.work()
    assert told()[1:] == ["0/99 nodes are available: 99 Insufficient memory."]
    for _ in range(340):
        model.tick(5)
        operator.work()
    assert len(told()) == 2, "they still hold, and were told less than half an hour ago"


def _refuse(verb: str, error: Exception) -> Callable[[Write], None]:
    """Let the first write of that kind fail."""
    left = [error]

    def fail(write: Write) -> None:
        if write[0] == verb and left:
            raise left.pop()

    return fail


def _ready_shadow(model: Model, operator: Harness) -> Object:
    model.add_share("team-a", "one", GPU, 1)
    for _ in range(4):
        operator.round()
    (shadow,) = _shadows(model)
    assert shadow["status"]["phase"] == "Ready"
    return shadow


def test_cold_start(model: Model, operator: Harness) -> None:
    _ready_shadow(model, operator)
    model.schedule()
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    assert one["spec"]["nodeName"] == "n1"
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    assert quota["status"]["inUse"] == 1


def test_idle_drained_gone(model: Model, operator: Harness) -> None:
    shadow = _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    operator.round(61)
    for _ in range(8):
        operator.round()
    assert _shadows(model) == []
    assert _pod(model, shadow) is None
    assert model.nodes["n1"].cards == {}


def test_stale_caches_make_no_second_shadow_pod(model: Model, operator: Harness) -> None:
    model.add_share("team-a", "one", GPU, 1)
    operator.sync(KINDS)
    operator.reconcile()
    operator.reconcile()
    assert len(_shadows(model)) == 1


def test_a_crash_after_the_first_half_is_made_good(model: Model, operator: Harness) -> None:
    model.add_share("team-a", "one", GPU, 1)
    operator.sync(KINDS)
    writes = []

    def only_the_shadow_pod(write: Write) -> None:
        writes.append(write)
        if len(writes) > 1:
            raise Conflict("the operator dies here")

    model.api.before_write = only_the_shadow_pod
    operator.reconcile()
    (shadow,) = _shadows(model)
    assert _pod(model, shadow) is None
    model.api.before_write = lambda write: None
    operator.restart()
    operator.reconcile()
    assert len(_shadows(model)) == 1
    assert _pod(model, shadow) is not None


def test_one_tenants_failure_does_not_hold_up_another(model: Model, operator: Harness) -> None:
    model.add_quota("team-b", [{"devices": 2, "min": 0, "max": 2}])
    model.add_share("team-a", "one", GPU, 1)
    model.add_share("team-b", "two", "team-b.mizar.share/gpu.2", 1)
    operator.sync(KINDS)
    model.api.before_write = _refuse("create", Conflict("not now"))
    assert isinstance(operator.reconcile(), Conflict)
    (shadow,) = _shadows(model)
    assert shadow["metadata"]["namespace"] == "team-b"
    assert _pod(model, shadow) is not None
    quota = model.api.find(GPU_QUOTA, "quota", "team-b")
    assert quota is not None
    assert quota["status"]["pipelining"] == 2


TERMINATED = "no new content in namespace team-a because it is being terminated"


def _forbid(model: Model, kind: Kind, why: Callable[[int], str]) -> list[float]:
    """From now on the API server refuses to create objects of the kind. Returns the list of the
    times at which it did. `why`: the message, by the number of refusals, this one included."""
    asked = list[float]()

    def refuse(write: Write) -> None:
        if write[0] == "create" and write[1].kind == kind:
            asked.append(model.time)
            raise Forbidden(why(len(asked)))

    model.api.before_write = refuse
    return asked


def _satisfied(model: Model) -> Object:
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    return next(one for one in quota["status"]["conditions"] if one["type"] == "Satisfied")


@pytest.mark.parametrize("kind", [SHADOW_POD, POD])
def test_what_the_api_server_refuses_is_told_and_tried_again(
    model: Model, operator: Harness, kind: Kind
) -> None:
    """A ResourceQuota on cards, for example; once it is gone, the operator goes on by itself."""
    model.add_share("team-a", "one", GPU, 1)
    asked = _forbid(
        model, kind, lambda _: "exceeded quota: cards, limited: requests.nvidia.com/gpu=0"
    )
    operator.sync(KINDS)
    operator.queue.add("mizar.share")
    for _ in range(100):
        assert not operator.work(), "nothing that the queue should try again at once"
        model.tick(1)
    assert 5 <= len(asked) <= 10, "it backs off"
    assert (_satisfied(model)["status"], _satisfied(model)["reason"]) == ("False", "ShadowRefused")
    assert "exceeded quota: cards" in _satisfied(model)["message"]
    told = {(about, reason) for about, reason, _ in operator.events.told}
    assert ("Pod/one", "ShadowRefused") in told
    model.api.before_write = lambda write: None
    model.tick(31)
    operator.work()
    assert len(list(model.api.all(POD))) == 2, "it comes back by itself"
    for _ in range(5):
        operator.round()
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    assert one["spec"]["nodeName"] == "n1"
    operator.round()
    assert _satisfied(model)["status"] == "True"


def test_a_pool_has_work_as_long_as_one_of_its_shadow_pods_offers_the_resource(
    model: Model, operator: Harness
) -> None:
    for name in ("p", "q"):
        model.add_share("team-a", name, GPU, 2)
    for _ in range(5):
        operator.round()
    keys = [operator.caches.keys_of_demand("gone", GPU)]
    for shadow in _shadows(model):
        model.api.remove(_pod(model, shadow))
        operator.sync([POD])
        keys.append(operator.caches.keys_of_demand("gone", GPU))
    assert keys[0] == keys[1] != keys[2] == {NO_POOL}


def test_a_namespace_that_is_being_deleted_is_asked_less_and_less_often(
    model: Model, operator: Harness
) -> None:
    """Its GPUQuota may stay for long, such as with a finalizer of another controller."""
    model.add_share("team-a", "one", GPU, 1)
    asked = _forbid(model, SHADOW_POD, lambda _: TERMINATED)
    for _ in range(100):
        operator.round()
    assert 5 <= len(asked) <= 10
    (counter,) = operator.metrics.refused.collect()
    counts = [one.value for one in counter.samples if one.name.endswith("_total")]
    assert counts == [0], "no alert is due"


def test_a_write_refused_in_other_words_each_time_is_tried_less_and_less_often(
    model: Model, operator: Harness
) -> None:
    """By a ResourceQuota, for example, which says how much is used just then."""
    model.add_share("team-a", "one", GPU, 1)
    asked = _forbid(model, SHADOW_POD, lambda times: f"exceeded quota: used {times}")
    for _ in range(100):
        operator.round()
    assert 5 <= len(asked) <= 10
    (counter,) = operator.metrics.refused.collect()
    counts = [one.value for one in counter.samples if one.name.endswith("_total")]
    assert counts == [len(asked)]


def test_a_namespace_that_is_created_anew_does_not_wait_for_what_the_old_one_was_refused(
    model: Model, operator: Harness
) -> None:
    model.add_share("team-a", "one", GPU, 1)

    _forbid(model, SHADOW_POD, lambda _: TERMINATED)
    for _ in range(100):
        operator.round()
    for kind, name in ((POD, "one"), (GPU_QUOTA, "quota")):
        left = model.api.find(kind, name, "team-a")
        assert left is not None
        model.api.remove(left)
    operator.round()
    model.api.before_write = lambda write: None
    model.add_quota("team-a", [{"devices": 2, "max": 1}])
    model.add_share("team-a", "two", GPU, 1)
    operator.round()
    assert _shadows(model)


def test_what_admission_adds_to_a_shadow_pod_is_known(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the operator starts anew: it then costs one shadow pod, and not one in each round."""
    create = model.api.create

    async def adding(obj: Object, **fields: Any) -> Object:
        if obj["kind"] == "Pod":
            obj = {**obj, "spec": {**obj["spec"], "nodeSelector": {"team": "elsewhere"}}}
        return await create(obj, **fields)

    monkeypatch.setattr(model.api, "create", adding)
    model.add_share("team-a", "one", GPU, 1)
    names = []
    for _ in range(6):
        operator.round()
        names.append([one["metadata"]["name"] for one in _shadows(model)])
    assert len(names[0]) == 1
    assert names == names[:1] * 6
    operator.restart()
    for _ in range(6):
        operator.round()
    (one,) = _shadows(model)
    (quota,) = (model.api.find(GPU_QUOTA, "quota", "team-a"),)
    assert quota is not None
    assert quota["status"]["nextSequence"] <= 2
    for seen in operator.caches.holders.values():
        assert operator.caches.with_asked(seen.view).asked is not None
    assert one["status"]["phase"] == "Pending"


def test_a_change_that_is_refused_silences_no_other_pod(model: Model, operator: Harness) -> None:
    """By a policy that came when the shadow pod was there: it may be refused for ever."""
    _ready_shadow(model, operator)

    def refuse(write: Write) -> None:
        if write[0] == "patch" and write[1].kind == POD:
            raise Invalid("every pod has a label team")

    model.api.before_write = refuse
    for name in ("two", "three", "four", "five"):
        model.add_share("team-a", name, GPU, 1)
    for _ in range(4):
        operator.round()
    told = {(about, reason) for about, reason, _ in operator.events.told}
    assert ("Pod/five", "QuotaExceeded") in told
    refused = [note for _, reason, note in operator.events.told if reason == "ShadowRefused"]
    assert "refuses to change the shadow pod: every pod has a label team" in refused[0]
    assert _satisfied(model)["reason"] == "QuotaExceeded"


def _drained_shadow(model: Model, operator: Harness) -> Object:
    """A drained shadow pod that is about to be deleted; the caches are current."""
    shadow = _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    operator.round(61)
    carved = model.nodes["n1"].carved["team-a", shadow["metadata"]["name"]]
    while carved.stage != "Drained":
        operator.sync(KINDS)
        operator.reconcile()
        model.agent("n1")
    operator.sync(KINDS)
    return shadow


def test_the_live_answer_counts_not_the_cache(model: Model, operator: Harness) -> None:
    """Invariant 3: a share pod was bound after the caches were filled."""
    shadow = _drained_shadow(model, operator)
    model.add_share("team-a", "late", GPU, 1)
    late = model.api.find(POD, "late", "team-a")
    assert late is not None
    model._bind(late, "n1")
    operator.reconcile()
    assert _pod(model, shadow) is not None
    assert _shadows(model)
    assert operator.snapshot().shadows[0].contested


def test_a_pools_figures_do_not_count_on_what_stays(model: Model, operator: Harness) -> None:
    """The operator would otherwise write them back again and again."""
    shadow = _drained_shadow(model, operator)
    pod = _pod(model, shadow)
    assert pod is not None
    model.api.remove(pod)
    operator.sync(KINDS)
    model.add_share("team-a", "late", GPU, 1)
    late = model.api.find(POD, "late", "team-a")
    assert late is not None
    late["spec"]["nodeName"] = "n1"
    told: list[str] = []
    model.api.before_write = lambda write: told.append(write[1].kind.name)
    operator.reconcile()
    assert _shadows(model) == [shadow]
    assert "GPUPool" not in told


def test_a_pod_that_is_offered_again_meanwhile_is_not_deleted(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion may take effect long after it was sent, by a process that has ended by then."""
    shadow = _drained_shadow(model, operator)
    delete = model.api.delete

    async def late(ref: Ref, **preconditions: Any) -> Object:
        pod = _pod(model, shadow)
        assert pod is not None
        del pod["metadata"]["annotations"][ANNOTATION_DRAIN]
        model.api.touch(pod)
        return await delete(ref, **preconditions)

    monkeypatch.setattr(model.api, "delete", late)
    assert isinstance(operator.reconcile(), Conflict)
    pod = _pod(model, shadow)
    assert pod is not None
    assert "deletionTimestamp" not in pod["metadata"]


def test_a_pod_that_is_bound_meanwhile_is_not_deleted(model: Model, operator: Harness) -> None:
    model.add_share("team-a", "one", GPU, 1)
    operator.sync(KINDS)
    operator.reconcile()
    (shadow,) = _shadows(model)
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    model.api.start_delete(quota)
    operator.sync([GPU_QUOTA])
    model.schedule()
    operator.reconcile()
    pod = _pod(model, shadow)
    assert pod is not None
    assert "deletionTimestamp" not in pod["metadata"]


def test_a_missing_pod_is_looked_for_before_it_is_lost(model: Model, operator: Harness) -> None:
    _ready_shadow(model, operator)
    fresh = Harness(model)
    fresh.caches.holders._store.keep_only([])
    assert fresh.snapshot().shadows[0].pod is not None
    fresh.caches.nodes._store.keep_only([])
    assert [node.name for node in fresh.snapshot().nodes] == ["n1"]


def test_nobody_is_evicted_for_a_pod_that_was_missing_a_moment_ago(
    model: Model, operator: Harness
) -> None:
    shadow = _ready_shadow(model, operator)
    name = shadow["metadata"]["name"]
    operator.caches.holders._store.drop(("team-a", name))
    operator.gatherer.state(KEY).gone[str(Ref(POD, name, "team-a"))] = float("inf")
    operator.reconcile()
    share = model.api.find(POD, "one", "team-a")
    assert share is not None
    assert "deletionTimestamp" not in share["metadata"]


def test_a_pod_that_is_gone_is_lost_and_replaced(model: Model, operator: Harness) -> None:
    shadow = _ready_shadow(model, operator)
    pod = _pod(model, shadow)
    assert pod is not None
    model.api.remove(pod)
    for _ in range(6):
        operator.round()
    reasons = [reason for _, reason, _ in operator.events.told]
    assert {"ShadowLost", "ShareEvicted"} <= set(reasons)
    assert model.api.find(POD, "one", "team-a") is None
    model.add_share("team-a", "two", GPU, 1)
    for _ in range(6):
        operator.round()
    (replacement,) = _shadows(model)
    assert replacement["metadata"]["name"] != shadow["metadata"]["name"]


def test_a_controllers_pods_on_several_cards_are_replaced_ever_more_rarely(
    model: Model, operator: Harness
) -> None:
    """Each new pod gets devices of several cards again, since no card has as many free."""
    evicted = []
    for second in range(600):
        pod = model.api.find(POD, "web", "team-a")
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            evicted.append(second)
            model.api.remove(pod)
            pod = None
        if pod is None:
            model.add_share("team-a", "web", GPU, 2, nodeName="n1")
            pod = model.api.find(POD, "web", "team-a")
            assert pod is not None
            pod["metadata"]["ownerReferences"] = [
                {"kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}
            ]
            pod["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": REFUSED}}]
            model.api.touch(pod)
        operator.sync(KINDS)
        operator.queue.add(KEY)
        assert operator.work() == []
        model.tick(1)
    assert evicted[0] == 1
    pauses = [after - before for before, after in itertools.pairwise(evicted)]
    assert [round(one / 60) for one in pauses] == [1, 2, 4]


REFUSED = {
    "reason": "CreateContainerConfigError",
    "message": "rpc error: code = PermissionDenied desc = SeveralCards: it demands one card",
}
"""As the kubelet reports it."""


def test_a_node_that_is_gone_takes_its_shadow_pods_along(model: Model, operator: Harness) -> None:
    _ready_shadow(model, operator)
    model.add_node("n2")
    model.lose_node("n1")
    for _ in range(65):
        operator.round()
        model.control()
    assert not _shadows(model)
    model.add_share("team-a", "two", GPU, 1)
    operator.sync(KINDS)
    operator.reconcile()
    (shadow,) = _shadows(model)
    model.schedule()
    pod = _pod(model, shadow)
    assert pod is not None
    assert pod["spec"]["nodeName"] == "n2"
    assert model.api.find(NODE, "n1") is None


def test_a_node_that_is_registered_again_keeps_its_pods(model: Model, operator: Harness) -> None:
    """Its Node object is deleted for a while, for example to change a label; its pods run on."""
    shadow = _ready_shadow(model, operator)
    for restarts in (False, True):
        node = model.unregister("n1")
        assert node is not None
        if restarts:
            operator.restart()
        for _ in range(20):
            operator.round()
            model.control()
        model.register(node)
        for _ in range(70):
            operator.round()
            model.control()
        assert [one["metadata"]["uid"] for one in _shadows(model)] == [shadow["metadata"]["uid"]]
        assert model.api.find(POD, "one", "team-a") is not None
    assert not operator.events.warnings


def test_a_node_that_is_gone_for_good_is_given_up(model: Model, operator: Harness) -> None:
    """By a plan that nothing but the time asks for."""
    _ready_shadow(model, operator)
    model.lose_node("n1")
    operator.sync(KINDS)
    operator.queue.add(KEY)
    operator.work()
    assert operator.events.warnings == set()
    model.tick(NODE_GONE_AFTER_S + 1)
    operator.work()
    assert "ShadowLost" in operator.events.warnings


def test_deleting_a_shadow_pod_drains_it_first(model: Model, operator: Harness) -> None:
    shadow = _ready_shadow(model, operator)
    model.api.start_delete(shadow)
    model.schedule()
    model.kubelet("n1")
    model.agent("n1")
    operator.sync(KINDS)
    operator.reconcile()
    pod = _pod(model, shadow)
    assert pod is not None
    assert ANNOTATION_DRAIN not in pod["metadata"]["annotations"]
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    for _ in range(8):
        operator.round()
    assert _shadows(model) == []


@pytest.mark.parametrize("cards", [1, 2])
def test_an_idle_shadow_pod_gives_way_to_a_pod_that_asks_for_whole_cards(
    model: Model, operator: Harness, cards: int
) -> None:
    """The shadow pod gives way long before its idle timeout; of the node's two cards one is
    free."""
    _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    operator.round()
    if cards == 1:
        model.add_whole("team-z", "first", 1)
    model.add_whole("team-z", "whole", cards)
    for _ in range(8):
        operator.round()
    whole = model.api.find(POD, "whole", "team-z")
    assert whole is not None
    assert whole["spec"].get("nodeName") == "n1"
    assert _shadows(model) == []


KAI = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs."


def _kai_refuses(model: Model, name: str) -> None:
    """A pod that requests a card, and that KAI finds no node for."""
    model.add_whole("team-z", name, 1)
    pod = model.api.find(POD, name, "team-z")
    assert pod is not None
    pod["spec"]["schedulerName"] = "kai-scheduler"
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"]["conditions"] = [unschedulable | {"message": KAI}]
    model.api.touch(pod)


@pytest.mark.parametrize(
    ("free", "judged", "gives_way"),
    [(False, 64, True), (True, 64, False), (False, 0, False)],
    ids=["no card is free", "a card is free", "too many nodes fit"],
)
def test_an_idle_shadow_pod_gives_way_to_a_pod_whose_scheduler_does_not_say_what_it_lacks(
    model: Model,
    operator: Harness,
    monkeypatch: pytest.MonkeyPatch,
    free: bool,
    judged: int,
    gives_way: bool,
) -> None:
    monkeypatch.setattr(gather, "JUDGED_NODES_MOST", judged)
    _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    if not free:
        model.add_whole("team-z", "first", 1)
    model.api.start_delete(one)
    operator.round()
    _kai_refuses(model, "whole")
    for _ in range(8):
        operator.round()
    assert bool(_shadows(model)) is not gives_way


def test_a_node_whose_pods_cannot_be_read_holds_up_no_plan(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the pod for which it is looked at waits."""

    async def fails(*_: object, **__: object) -> list[object]:
        raise Unavailable("overloaded", status=503)

    monkeypatch.setattr(gather, "views_on", fails)
    _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    operator.round()
    _kai_refuses(model, "whole")
    operator.catch_up()
    assert operator.snapshot().taken == {}
    for name in ("next", "after"):  # the second one needs a new shadow pod
        model.add_share("team-a", name, "team-a.mizar.share/gpu.2", 2)
    for _ in range(8):
        operator.round()
    assert len(_shadows(model)) == 2


def test_nobody_looks_for_free_cards_while_no_shadow_pod_is_idle(
    model: Model, operator: Harness
) -> None:
    _ready_shadow(model, operator)
    for _ in range(2):
        operator.round()
    _kai_refuses(model, "whole")
    operator.catch_up()
    assert [one.reason_unknown for one in operator.snapshot().pending] == [True]
    assert operator.snapshot().taken == {}


def test_a_pod_that_waits_for_whole_cards_makes_work_for_the_pools_of_such_cards(
    model: Model, operator: Harness
) -> None:
    operator.sync(KINDS)
    follow(operator.caches, operator.queue.add)
    operator.work()
    assert len(operator.queue) == 0
    model.add_whole("team-z", "whole", 3)
    model.schedule()
    operator.sync([POD])
    assert len(operator.queue) == 1


@pytest.mark.parametrize(
    ("devices", "makes_work"),
    [("4", False), ("2", False), ("1", True)],
    ids=["more", "as many", "fewer"],
)
def test_devices_that_a_node_offers_no_more_make_work(
    devices: str, makes_work: bool, model: Model, operator: Harness
) -> None:
    """That it offers more is known from a ShadowPod already."""
    node = model.api.find(NODE, "n1")
    assert node is not None
    node["status"]["allocatable"][GPU] = "2"
    model.api.touch(node)
    operator.sync(KINDS)
    follow(operator.caches, operator.queue.add)
    operator.work()
    node["status"]["allocatable"][GPU] = devices
    model.api.touch(node)
    operator.sync([NODE])
    assert (len(operator.queue) > 0) is makes_work


def test_no_budget_stays_behind_when_two_lose_their_cards_in_use(
    model: Model, operator: Harness
) -> None:
    for name in ("one", "two"):
        model.add_share("team-a", name, GPU, 2)
    for _ in range(6):
        operator.round()
    assert len(list(model.api.all(BUDGET))) == 1
    for shadow in _shadows(model):
        pod = _pod(model, shadow)
        assert pod is not None
        model.api.start_delete(shadow)
        model.lost.add(("team-a", shadow["metadata"]["name"]))
        model.api.remove(pod)
    for name in ("one", "two"):
        share = model.api.find(POD, name, "team-a")
        assert share is not None
        model.api.remove(share)
    operator.sync(KINDS)
    operator.reconcile()
    assert _shadows(model) == []
    assert list(model.api.all(BUDGET)) == []


def test_a_budget_that_somebody_deleted_comes_again(model: Model, operator: Harness) -> None:
    _ready_shadow(model, operator)
    for _ in range(3):
        operator.round()
    (budget,) = model.api.all(BUDGET)
    model.api.remove(budget)
    operator.round(LOOKED_AT_EVERY_S)
    assert list(model.api.all(BUDGET)) == []
    operator.round()
    assert len(list(model.api.all(BUDGET))) == 1


def test_share_pods_of_a_pool_that_is_gone_make_work(model: Model, operator: Harness) -> None:
    """Its shadow pods are still there, and in use."""
    (pool,) = model.pools()
    model.api.remove(pool)
    follow(operator.caches, operator.queue.add)
    operator.sync(KINDS)
    operator.work()
    assert len(operator.queue) == 0
    model.add_share("team-a", "p", GPU, 1)
    operator.sync([POD])
    assert asyncio.run(operator.queue.get()) == NO_POOL


def test_a_pod_with_a_pool_for_one_of_its_resources_makes_work_for_both(
    model: Model, operator: Harness
) -> None:
    """It is told that the other resource belongs to no pool."""
    follow(operator.caches, operator.queue.add)
    operator.sync(KINDS)
    operator.work()
    model.add_share_of("team-a", "p", {GPU: 1, "team-a.gone.example/gpu.2": 1})
    operator.sync([POD])
    assert _queued(operator) == {"mizar.share", NO_POOL}


def _takes_prefix(model: Model, prefix: str) -> None:
    """A pool of that name with another prefix: the pool is deleted and made again, since a prefix
    cannot be changed."""
    (pool,) = model.pools()
    pool["spec"]["resourcePrefix"] = prefix
    model.api.touch(pool)


@pytest.mark.parametrize("key", [NO_POOL, "other.example"], ids=["deleted", "made again"])
def test_a_share_pod_on_a_lost_shadow_pod_of_a_former_pool_is_evicted(
    key: str, model: Model, operator: Harness
) -> None:
    model.add_share("team-a", "p", GPU, 1)
    for _ in range(5):
        operator.round()
    (shadow,) = _shadows(model)
    pod = _pod(model, shadow)
    assert pod is not None
    if key == NO_POOL:
        model.api.remove(model.pools()[0])
    else:
        _takes_prefix(model, key)
    model.lost.add(("team-a", shadow["metadata"]["name"]))
    model.api.remove(pod)
    operator.sync(KINDS)
    operator.reconcile(key)
    share = model.api.find(POD, "p", "team-a")
    assert share is not None
    assert "deletionTimestamp" in share["metadata"]
    assert _shadows(model) == [shadow]
    for _ in range(3):
        model.kubelet("n1")
        model.agent("n1")
        operator.sync(KINDS)
        operator.reconcile(key)
    assert _shadows(model) == []


def _keys_after_deletion(model: Model, operator: Harness) -> set[str]:
    """The keys that are in the queue once the share pod p is being deleted."""
    share = model.api.find(POD, "p", "team-a")
    assert share is not None
    model.api.start_delete(share)
    operator.sync([POD])
    return _queued(operator)


def _queued(operator: Harness) -> set[str]:
    return {asyncio.run(operator.queue.get()) for _ in range(len(operator.queue))}


def test_a_change_of_who_uses_a_former_pools_shadow_pod_makes_work(
    model: Model, operator: Harness
) -> None:
    model.add_share("team-a", "p", GPU, 1)
    for _ in range(5):
        operator.round()
    _takes_prefix(model, "other.example")
    operator.sync(KINDS)
    operator.work()
    follow(operator.caches, operator.queue.add)
    operator.work()
    assert "other.example" in _keys_after_deletion(model, operator)


def test_also_beside_a_pool_that_has_its_prefix(model: Model, operator: Harness) -> None:
    """The status of the quota whose pool is gone counts the devices in use."""
    model.add_share("team-a", "p", GPU, 1)
    for _ in range(5):
        operator.round()
    (former,) = model.pools()
    model.add_pool("second")
    model.api.remove(former)
    operator.sync(KINDS)
    follow(operator.caches, operator.queue.add)
    operator.work()
    assert _keys_after_deletion(model, operator) == {"mizar.share", NO_POOL}


def test_what_a_shadow_pod_that_is_gone_offered_is_forgotten(
    model: Model, operator: Harness
) -> None:
    model.add_share("team-a", "p", GPU, 1)
    for _ in range(5):
        operator.round()
    _takes_prefix(model, "other.example")
    operator.sync(KINDS)
    offered = "mizar.share", "team-a.mizar.share/gpu.2"
    assert operator.caches.keys_of_demand(*offered) == {NO_POOL, "other.example"}
    pod = _pod(model, _shadows(model)[0])
    assert pod is not None
    model.api.remove(pod)
    operator.sync([POD])
    assert operator.caches.keys_of_demand(*offered) == {NO_POOL}


def test_a_share_pod_that_waits_for_a_former_pool_is_told_so_once(
    model: Model, operator: Harness
) -> None:
    """The event does not say that the pod's resource was not rewritten: it was."""
    model.add_share("team-a", "user", GPU, 1)
    for _ in range(5):
        operator.round()
    model.add_share("team-a", "late", GPU, 4)
    operator.round()
    _takes_prefix(model, "other.example")
    operator.sync(KINDS)
    operator.events.told.clear()
    for key in (NO_POOL, "other.example"):
        operator.reconcile(key)
    told = [(about, reason) for about, reason, _ in operator.events.told if "Pod/" in about]
    assert told == [("Pod/late", "NoPool")]


def test_a_quota_of_no_pool_says_so(model: Model, operator: Harness) -> None:
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    quota["spec"]["pool"] = "other"
    model.api.touch(quota)
    operator.sync(KINDS)
    operator.reconcile("")
    reasons = {one["type"]: one["reason"] for one in quota["status"]["conditions"]}
    assert reasons["Satisfied"] == "PoolNotFound"


def test_a_quota_for_borrowers_alone_has_no_shadow_pods(model: Model, operator: Harness) -> None:
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    quota["spec"] = {"pool": quota["spec"]["pool"], "spot": {"max": 1}}
    model.api.touch(quota)
    operator.sync(KINDS)
    operator.reconcile(KEY)
    assert _shadows(model) == []
    told = condition(quota, "Satisfied")
    assert (told["status"], told["message"]) == (
        "True",
        "the quota has no profiles: its namespace only borrows cards",
    )


def test_it_comes_back_when_time_has_come(model: Model, operator: Harness) -> None:
    _ready_shadow(model, operator)
    one = model.api.find(POD, "one", "team-a")
    assert one is not None
    model.api.start_delete(one)
    for _ in range(3):
        operator.round()
    assert len(operator.queue) == 0
    model.tick(61)
    assert len(operator.queue) == 1


def test_a_share_pod_can_be_followed_in_the_log(
    model: Model, operator: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    operator.caches.shares.on_change(action_log.log_placed)
    shadow = _ready_shadow(model, operator)["metadata"]["name"]
    operator.round()
    told = [one for one in logged(caplog) if "one" in str(one)]
    created = next(one for one in told if one["event"] == "shadow pod created")
    assert (created["namespace"], created["shadow"], created["pods"]) == ("team-a", shadow, ["one"])
    assert (created["pool"], created["quota"], created["resource"]) == ("pool", "quota", GPU)
    waiting = next(one for one in told if one["event"] == "event")
    assert (waiting["pod"], waiting["reason"]) == ("one", "WaitingForShadow")
    placed = next(one for one in told if one["event"] == "share pod placed")
    assert (placed["namespace"], placed["pod"], placed["node"]) == ("team-a", "one", "n1")


def test_every_line_of_a_round_names_pool_and_round(
    model: Model, operator: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    _ready_shadow(model, operator)
    planned = [one for one in logged(caplog) if one["event"] == "planned"]
    rounds = [one["round"] for one in planned]
    assert rounds == sorted(set(rounds)) and len(rounds) > 1
    for line in logged(caplog):
        if "shadow" in line:
            assert line["pool"] == "pool"
            assert line["round"] in rounds


def test_what_the_api_server_refuses_is_logged_with_its_object(
    model: Model, operator: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    model.add_share("team-a", "one", GPU, 1)
    model.api.before_write = _refuse("create", Conflict("not now", status=409))
    operator.sync(KINDS)
    operator.reconcile()
    (line,) = [one for one in logged(caplog) if one["event"] == "an action failed"]
    assert (line["namespace"], line["action"]) == ("team-a", "CreateShadow")
    assert str(line["error"]) == "not now"
    assert line["shadow"].startswith("shadow-2-")


def test_a_creation_that_nobody_answered_is_repeated_under_its_own_name(
    model: Model, operator: Harness
) -> None:
    """The first creation may take effect later than one under another name, and would be one too
    many."""
    asked: list[Object] = []

    def lost(write: Write) -> None:
        verb, ref, obj = write
        if (verb, ref.kind, obj["spec"].get("devices")) == ("create", SHADOW_POD, 2) and not asked:
            asked.append(copy.deepcopy(obj))
            raise Unavailable("no answer")

    model.api.before_write = lost
    model.add_quota("team-a", [{"devices": size, "min": 1, "max": 1} for size in (2, 4)])
    operator.sync(KINDS)
    assert isinstance(operator.reconcile(), Unavailable)
    assert [one["spec"]["devices"] for one in _shadows(model)] == [4]
    model.api.put(asked[0])
    operator.reconcile()
    operator.sync(KINDS)
    operator.reconcile()
    assert sorted(one["spec"]["devices"] for one in _shadows(model)) == [2, 4]


def test_statuses_wait_while_there_is_news_but_not_for_ever(
    model: Model, operator: Harness
) -> None:
    """In a burst of share pods the next plan would write them again; shadow pods come first."""
    operator.reconcile()
    model.tick(1)

    def status() -> Object:
        quota = model.api.find(GPU_QUOTA, "quota", "team-a")
        assert quota is not None
        return dict(quota["status"])

    before = status()
    operator.queue.add(KEY)
    asyncio.run(operator.queue.get())
    model.add_share("team-a", "one", GPU, 1)
    operator.sync(KINDS)
    operator.queue.add(KEY)
    operator.reconcile()
    assert len(_shadows(model)) == 1
    assert status() == before
    model.tick(1)
    operator.reconcile()
    assert status() == before
    model.tick(2)
    operator.reconcile()
    late = status()
    assert late["waiting"] == 1
    model.add_share("team-a", "two", GPU, 2)
    operator.sync(KINDS)
    operator.reconcile()
    assert status() == late, "the time begins anew"
    operator.queue.done(KEY)
    operator.work()
    assert status()["waiting"] == 3
