"""The operator gives a namespace without a quota the default one of a pool, on an API server in
memory."""

from __future__ import annotations

import pytest

from mizar_core.names import LABEL_DEFAULT_QUOTA
from mizar_core.planning.events import NO_QUOTA_AFTER
from mizar_kube.errors import Forbidden
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, SHADOW_POD, Object, Ref
from mizar_operator.namespace_labels import BELIEVED_S
from stateful.harness import KEY, KINDS, Harness
from stateful.memory_api import Write
from stateful.model import Model

GPU = "team-a.mizar.share/gpu.2"
DEFAULT = {
    "namespaceSelector": {"matchLabels": {"gpu": "true"}},
    "profiles": [{"devices": 2, "max": 2}],
    "maxCards": 1,
    "isolation": {"compute": "Hard"},
    "idleTimeoutSeconds": 7,
}


@pytest.fixture
def model() -> Model:
    """A node with two cards, a pool with a default quota, and a pod that has waited for a while in
    a namespace of its selector."""
    made = Model()
    made.add_node("n1")
    made.add_pool(defaultQuota=DEFAULT)
    namespace(made, "team-a", gpu="true")
    made.add_share("team-a", "one", GPU, 1)
    made.tick(NO_QUOTA_AFTER.seconds)
    return made


@pytest.fixture
def operator(model: Model) -> Harness:
    """An operator whose caches are current."""
    return Harness(model)


def namespace(model: Model, name: str, **labels: str) -> Object:
    meta = {"name": name, "labels": labels}
    return model.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def quotas(model: Model) -> list[Object]:
    return list(model.api.all(GPU_QUOTA))


def told(operator: Harness) -> list[tuple[str, str]]:
    return [(about, reason) for about, reason, _ in operator.events.told]


def test_a_pod_runs_in_a_namespace_without_a_quota(model: Model, operator: Harness) -> None:
    operator.caches.quotas.on_change(lambda old, new: operator.queue.add(KEY))
    operator.reconcile()
    (made,) = quotas(model)
    assert made["metadata"]["labels"][LABEL_DEFAULT_QUOTA] == "pool"
    assert (made["metadata"]["namespace"], made["metadata"]["name"]) == ("team-a", "pool")
    assert made["spec"] == {
        "pool": "pool",
        "profiles": [{"devices": 2, "min": 0, "max": 2}],
        "maxCards": 1,
        "isolation": {"compute": "Hard"},
        "idleTimeoutSeconds": 7,
    }
    operator.work()
    assert len(list(model.api.all(SHADOW_POD))) == 1, "the quota itself asked for another plan"
    for _ in range(5):
        operator.round()
    assert "Pod/one" not in {about for about, reason in told(operator) if reason == "NoQuota"}
    assert model.api.objects["pods", "team-a", "one"]["spec"]["nodeName"] == "n1"


def test_an_edited_one_is_left_alone_and_a_deleted_one_made_again(
    model: Model, operator: Harness
) -> None:
    operator.round()
    (made,) = quotas(model)
    made["spec"]["maxCards"] = 0
    (pool,) = model.pools()
    pool["spec"]["defaultQuota"] = {**DEFAULT, "maxCards": 2}
    for changed in (made, pool):
        model.api.touch(changed)
    operator.round()
    assert [one["spec"]["maxCards"] for one in quotas(model)] == [0]
    model.api.remove(made)
    operator.round()
    assert [one["spec"]["maxCards"] for one in quotas(model)] == [2]


def test_one_made_at_the_same_moment_by_another_operator_or_a_person_is_taken(
    model: Model, operator: Harness
) -> None:
    model.add_quota("team-a", [{"devices": 2, "max": 1}])
    (theirs,) = quotas(model)
    model.api.remove(theirs)
    theirs["metadata"]["name"] = "pool"
    model.api.put(theirs)
    assert operator.reconcile() is None
    assert operator.caches.quotas.get("pool", "team-a") is not None


@pytest.mark.parametrize("exists", [True, False])
def test_a_quota_of_another_pool_is_no_quota_of_this_one_if_its_pool_is_known(
    model: Model, operator: Harness, exists: bool
) -> None:
    """A pool that is gone may be made anew, with the same prefix: its quota, of nothing perhaps,
    holds again then."""
    if exists:
        _other_pool(model)
    model.add_quota("team-a", [{"devices": 2, "max": 0}], pool="other")
    operator.round()
    assert len(quotas(model)) == 1 + exists


def _other_pool(model: Model) -> None:
    (pool,) = model.api.all(GPU_POOL)
    meta, spec = {"name": "other"}, {**pool["spec"], "resourcePrefix": "other.share"}
    model.api.put({**pool, "metadata": meta, "spec": {**spec, "defaultQuota": None}})


def test_a_pod_is_told_that_a_quota_of_another_pool_has_the_default_quotas_name(
    model: Model, operator: Harness
) -> None:
    _other_pool(model)
    model.add_quota("team-a", [{"devices": 2, "max": 1}], pool="other")
    (theirs,) = quotas(model)
    model.api.remove(theirs)
    theirs["metadata"]["name"] = "pool"
    model.api.put(theirs)
    operator.round()
    operator.round()
    (message,) = [said for _, reason, said in operator.events.told if reason == "NoQuota"]
    assert "there is a GPUQuota pool already, of pool other" in message


def test_a_refusal_is_told_and_tried_again_ever_later(model: Model, operator: Harness) -> None:
    asked = []

    def refuse(write: Write) -> None:
        if write[1].kind == GPU_QUOTA and write[0] == "create":
            asked.append(write)
            raise Forbidden("exceeded quota: objects")

    model.api.before_write = refuse
    operator.queue.add(KEY)
    for _ in range(100):
        assert not operator.work()
        model.tick(1)
    assert 4 <= len(asked) <= 10, "it backs off"
    (message,) = {said for _, reason, said in operator.events.told if reason == "NoQuota"}
    assert message.endswith("refuses the default quota of pool pool: exceeded quota: objects")
    model.api.before_write = lambda write: None
    model.tick(31)
    operator.work()
    assert quotas(model)


def test_a_label_that_comes_later_is_seen(model: Model, operator: Harness) -> None:
    found = namespace(model, "team-b")
    model.add_share("team-b", "two", "team-b.mizar.share/gpu.2", 1)
    model.tick(NO_QUOTA_AFTER.seconds)
    operator.round()
    assert ("Pod/two", "NoQuota") in told(operator)
    found["metadata"]["labels"] = {"gpu": "true"}
    operator.round(seconds=BELIEVED_S)
    assert len(quotas(model)) == 1, "what was read a moment ago is believed"
    operator.round()
    assert {one["metadata"]["namespace"] for one in quotas(model)} == {"team-a", "team-b"}


@pytest.mark.parametrize("why", ["gone", "being deleted", "forbidden"])
def test_a_namespace_that_is_not_there_or_cannot_be_read_gets_none(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    async def forbidden(ref: Ref, **_: object) -> Object:
        raise Forbidden(f"no right to read {ref}")

    found = model.api.objects["namespaces", "", "team-a"]
    if why == "gone":
        model.api.remove(found)
    elif why == "being deleted":
        found["metadata"]["deletionTimestamp"] = model.api.now
    else:
        monkeypatch.setattr(model.api, "get", forbidden)
    assert operator.reconcile() is None
    assert not quotas(model)
    assert ("Pod/one", "NoQuota") in told(operator)


def test_namespaces_are_read_only_where_a_pool_has_a_default(
    model: Model, operator: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unexpected(ref: Ref, **_: object) -> Object:
        raise AssertionError(f"{ref} is read")

    (pool,) = model.pools()
    del pool["spec"]["defaultQuota"]
    model.api.touch(pool)
    operator.sync(KINDS)
    monkeypatch.setattr(model.api, "get", unexpected)
    assert operator.reconcile() is None


def test_one_with_a_quota_that_cannot_be_read_gets_none(model: Model, operator: Harness) -> None:
    model.add_quota("team-a", [{"devices": 2, "max": 1}])
    (broken,) = quotas(model)
    broken["spec"]["profiles"] = "none"
    model.api.touch(broken)
    operator.round()
    assert len(quotas(model)) == 1
