"""Preconditions of writes: the operator deletes or changes only the very object that it decided
about, in the version that it saw, whatever happens between the read and the write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    FINALIZER_DRAIN,
    LABEL_IN_USE,
    shadow_name,
)
from mizar_core.planning import plan
from mizar_core.planning.actions import WritePoolStatus, WriteQuotaStatus, WriteShadowStatus
from mizar_core.planning.snapshot import ShadowView
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator.apply import Applier
from mizar_operator.apply_result import Result
from mizar_operator.delete_guard import StillInUse
from mizar_operator.manifests import PodSettings
from mizar_operator.shadow_deletion import ShadowDeleter
from mizar_operator.shadow_disruption_budgets import DisruptionBudgets
from stateful.harness import KEY, KINDS, Harness
from stateful.memory_api import Write
from stateful.model import Model
from unit.operator.drained import GPU, Cluster
from unit.operator.small_model import small_model


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def _deleter(cluster: Cluster) -> ShadowDeleter:
    client = cast(KubeClient, cluster.model.api)
    return ShadowDeleter(
        client, cluster.operator.caches, DisruptionBudgets(client, cluster.operator.caches.holders)
    )


def _before(
    cluster: Cluster, verb: str, kind: Kind, change: Callable[[], None], monkeypatch: Any
) -> None:
    """Something happens right before the first such call arrives."""
    call, left = getattr(cluster.model.api, verb), [change]

    async def late(ref: Ref, *args: Any, **more: Any) -> Object:
        if ref.kind == kind and left:
            left.pop()()
        return cast(Object, await call(ref, *args, **more))

    monkeypatch.setattr(cluster.model.api, verb, late)


def _replace(cluster: Cluster, obj: Object) -> None:
    """Another object takes the name."""
    obj["metadata"]["uid"] = "another"
    cluster.model.api.touch(obj)


def _is_whole(obj: Object) -> bool:
    return "deletionTimestamp" not in obj["metadata"]


def test_a_shadow_pod_that_took_the_name_meanwhile_is_not_deleted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _before(cluster, "delete", SHADOW_POD, lambda: _replace(cluster, cluster.shadow), monkeypatch)
    with pytest.raises(Conflict, match="uid"):
        asyncio.run(_deleter(cluster).delete(cluster.known))
    assert _is_whole(cluster.shadow)


@pytest.mark.parametrize("change", ["another pod", "the same, changed"])
def test_a_pod_that_changed_meanwhile_is_not_deleted(
    cluster: Cluster, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = cluster.pod

    def changed() -> None:
        if change == "another pod":
            _replace(cluster, pod)
        cluster.model.api.touch(pod)

    _before(cluster, "delete", POD, changed, monkeypatch)
    with pytest.raises(Conflict):
        asyncio.run(_deleter(cluster).delete(cluster.known))
    assert _is_whole(pod)
    assert _is_whole(cluster.shadow), "somebody has to look after the cards"


def _without_pod(cluster: Cluster) -> ShadowView:
    """The drained shadow pod is being deleted, and its pod is gone."""
    cluster.model.api.remove(cluster.pod)
    cluster.model.api.start_delete(cluster.shadow)
    cluster.operator.sync(KINDS)
    return cluster.known


def test_a_finalizer_that_somebody_adds_meanwhile_stays(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = _without_pod(cluster)

    def added() -> None:
        cluster.shadow["metadata"]["finalizers"].append("example.com/theirs")
        cluster.model.api.touch(cluster.shadow)

    _before(cluster, "patch_merge", SHADOW_POD, added, monkeypatch)
    with pytest.raises(Conflict, match="resourceVersion"):
        asyncio.run(_deleter(cluster).remove_finalizer(known))
    assert cluster.shadow["metadata"]["finalizers"] == [FINALIZER_DRAIN, "example.com/theirs"]


def test_only_our_finalizer_is_taken_off(cluster: Cluster) -> None:
    cluster.shadow["metadata"]["finalizers"].append("example.com/theirs")
    known = _without_pod(cluster)
    asyncio.run(_deleter(cluster).remove_finalizer(known))
    assert cluster.shadow["metadata"]["finalizers"] == ["example.com/theirs"]


def test_the_finalizer_stays_while_there_is_a_pod(cluster: Cluster) -> None:
    """A plan may not know of the pod if it was made from a cache that had missed it."""
    cluster.model.api.start_delete(cluster.shadow)
    with pytest.raises(StillInUse, match="its pod is still there"):
        asyncio.run(_deleter(cluster).remove_finalizer(cluster.known))
    assert cluster.shadow["metadata"]["finalizers"] == [FINALIZER_DRAIN]


def test_the_finalizer_outlives_the_pod(cluster: Cluster) -> None:
    """The pod ends later, and keeps its cards until then."""
    asyncio.run(_deleter(cluster).delete(cluster.known))
    assert not _is_whole(cluster.pod)
    cluster.operator.sync(KINDS)
    cluster.operator.reconcile()
    assert cluster.shadow["metadata"]["finalizers"] == [FINALIZER_DRAIN]
    cluster.rounds(2)
    assert cluster.model.api.find(SHADOW_POD, cluster.shadow["metadata"]["name"], "team-a") is None


# Marks and annotations.


@pytest.fixture
def model() -> Model:
    return small_model()


def _shadow(model: Model) -> Object:
    (found,) = model.api.all(SHADOW_POD)
    return found


def _holder(model: Model) -> Object:
    found = model.api.find(POD, _shadow(model)["metadata"]["name"], "team-a")
    assert found is not None
    return found


def _serving(model: Model) -> Harness:
    """An operator whose shadow pod serves share pod `one`."""
    operator = Harness(model)
    model.add_share("team-a", "one", GPU, 1)
    for _ in range(5):
        operator.round()
    return operator


def _on_another_pod(model: Model, operator: Harness) -> Object:
    """The metadata of a pod that takes the name before the operator writes what it has planned."""
    operator.sync(KINDS)
    pod = _holder(model)
    pod["metadata"]["uid"] = "another"
    assert isinstance(operator.reconcile(), Conflict)
    return cast(Object, pod["metadata"])


def test_a_drain_is_asked_for_of_the_pod_that_was_idle(model: Model) -> None:
    operator = _serving(model)
    share = model.api.find(POD, "one", "team-a")
    assert share is not None
    model.api.remove(share)
    operator.round()
    model.tick(61)
    assert ANNOTATION_DRAIN not in _on_another_pod(model, operator)["annotations"]


def test_a_drain_is_called_off_of_the_pod_that_is_wanted(model: Model) -> None:
    operator = _serving(model)
    _holder(model)["metadata"]["annotations"][ANNOTATION_DRAIN] = model.api.now
    assert ANNOTATION_DRAIN in _on_another_pod(model, operator)["annotations"]


def test_other_limits_are_told_to_the_pod_as_it_was_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A carve that another client writes right before the operator's write is looked at before it
    is overwritten."""
    (pool,) = cluster.model.pools()
    pool["spec"]["memoryScaling"] = "1.5"
    cluster.model.api.touch(pool)
    cluster.operator.sync(KINDS)
    pods = [cluster.pod, cluster.find_pod(cluster.beside["metadata"]["name"])]

    def written() -> None:
        for pod in pods:
            pod["metadata"]["annotations"][ANNOTATION_CARVE] = "theirs"
            cluster.model.api.touch(pod)

    _before(cluster, "patch_merge", POD, written, monkeypatch)
    assert isinstance(cluster.operator.reconcile(), Conflict)
    told = [pod["metadata"]["annotations"][ANNOTATION_CARVE] for pod in pods]
    assert "theirs" in told


def test_the_pod_that_is_in_use_is_marked(model: Model) -> None:
    operator = _serving(model)
    assert _holder(model)["metadata"]["labels"].pop(LABEL_IN_USE) == "true"
    assert LABEL_IN_USE not in _on_another_pod(model, operator)["labels"]


def test_another_pod_with_the_name_of_the_one_to_be_evicted_is_not_evicted(model: Model) -> None:
    operator = _serving(model)
    model.api.remove(_holder(model))
    operator.sync(KINDS)
    share = model.api.find(POD, "one", "team-a")
    assert share is not None
    share["metadata"]["uid"] = "another"
    asked: list[Write] = []
    model.api.before_write = lambda write: asked.append(write)
    operator.reconcile()
    assert not [one for one in asked if one[0] == "evict"]
    assert _is_whole(share)


# Objects of others that have the operator's names.


@pytest.mark.parametrize("kind", [SHADOW_POD, POD])
def test_an_object_of_our_name_that_is_not_ours_is_left_alone(model: Model, kind: Kind) -> None:
    operator = Harness(model)
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    name = shadow_name(quota["metadata"]["uid"], 2, 0)
    owner = {"kind": "GPUQuota", "name": "quota", "uid": "another", "apiVersion": "v1"}
    meta = {"name": name, "namespace": "team-a", "ownerReferences": [owner]}
    spec: Object = {"pool": "pool", "quota": "quota", "devices": 2, "cards": 1}
    theirs = model.api.put(
        {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": spec}
    )
    version = theirs["metadata"]["resourceVersion"]
    model.add_share("team-a", "one", GPU, 1)
    operator.sync([POD] if kind == SHADOW_POD else [SHADOW_POD])
    operator.caches.shares.observe(cast(Object, model.api.find(POD, "one", "team-a")))
    assert operator.reconcile() is None
    assert theirs["metadata"]["resourceVersion"] == version
    assert operator.caches.shadows.get(name, "team-a") is None or kind == POD
    assert operator.caches.holders.get(name, "team-a") is None
    assert operator.work() == []
    ours = shadow_name(quota["metadata"]["uid"], 2, 1)
    assert model.api.find(SHADOW_POD, ours, "team-a") and model.api.find(POD, ours, "team-a")
    assert theirs["metadata"]["resourceVersion"] == version


def test_a_pod_that_names_our_shadow_pod_as_its_owner_is_not_ours(model: Model) -> None:
    """Anybody can write an owner; the label of shadow pods only the operator can."""
    operator = Harness(model)
    model.add_share("team-a", "one", GPU, 1)
    operator.sync(KINDS)

    def faster(write: Write) -> None:
        verb, ref, obj = write
        if verb == "create" and ref.kind == SHADOW_POD and not theirs:
            made = obj["metadata"] | {"uid": "uid-shadow"}
            obj["metadata"] = made
            owner = {"kind": "ShadowPod", "name": ref.name, "uid": "uid-shadow"}
            meta = {"name": ref.name, "namespace": "team-a", "ownerReferences": [owner]}
            spec: Object = {"containers": []}
            theirs.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
            model.api.put(theirs[0])

    theirs: list[Object] = []
    model.api.before_write = faster
    assert operator.reconcile() is None
    name = theirs[0]["metadata"]["name"]
    assert operator.caches.holders.get(name, "team-a") is None
    assert operator.work() == []
    (shadow,) = model.api.all(SHADOW_POD)
    assert shadow["metadata"]["name"] != name


def test_a_tenant_does_not_keep_its_cards_by_a_pod_of_a_shadow_pods_name(model: Model) -> None:
    """A shadow pod's name can be guessed. A user who takes it costs the quota one number, and no
    other change of the namespace waits for that."""
    operator = _serving(model)
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    number = quota["status"]["nextSequence"]
    meta = {"name": shadow_name(quota["metadata"]["uid"], 2, number), "namespace": "team-a"}
    pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}}
    model.api.put(pod)
    model.add_share("team-a", "bait", GPU, 2)
    for _ in range(5):
        operator.round()
    assert _bound(model, "bait")
    assert quota["status"]["nextSequence"] == number + 2
    for share in ("one", "bait"):
        model.api.start_delete(cast(Object, model.api.find(POD, share, "team-a")))
    model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    for _ in range(60):
        operator.round(2)
    assert list(model.api.all(SHADOW_POD)) == []
    assert quota["status"]["observedGeneration"] == quota["metadata"]["generation"]


def _bound(model: Model, name: str) -> bool:
    found = model.api.find(POD, name, "team-a")
    return found is not None and "nodeName" in found["spec"]


@pytest.mark.parametrize("cached", [True, False])
def test_another_pod_of_the_name_is_not_taken_for_a_shadow_pods(model: Model, cached: bool) -> None:
    """Neither a pod that a watch reported nor one that was looked up."""
    operator = _serving(model)
    _holder(model)["metadata"]["ownerReferences"][0]["uid"] = "another"
    operator.sync(KINDS)
    if not cached:
        operator.caches.holders._store.keep_only([])
    (seen,) = operator.snapshot(KEY).shadows
    assert seen.pod is None


STATUS_WRITES = {
    SHADOW_POD: WriteShadowStatus,
    GPU_QUOTA: WriteQuotaStatus,
    GPU_POOL: WritePoolStatus,
}


@pytest.mark.parametrize("kind", STATUS_WRITES)
def test_a_status_is_not_written_to_another_object_that_took_the_name(
    kind: Kind, cluster: Cluster
) -> None:
    """Nor is that an error: the next plan knows the other object."""
    obj = next(iter(cluster.model.api.all(kind)))
    result = _write_status(kind, obj, cluster, lambda: _replace(cluster, obj))
    assert not result.errors
    assert obj["status"] == {}


@pytest.mark.parametrize("kind", STATUS_WRITES)
def test_a_status_that_meets_a_conflict_is_tried_again(kind: Kind, cluster: Cluster) -> None:
    """It is the same object, which another client changed at that moment."""
    obj = next(iter(cluster.model.api.all(kind)))

    def conflict(_: Write) -> None:
        raise Conflict("it has been modified", status=409, reason="Conflict")

    def refuse() -> None:
        cluster.model.api.before_write = conflict

    result = _write_status(kind, obj, cluster, refuse)
    assert [type(one) for one in result.errors] == [Conflict]


def _write_status(
    kind: Kind, obj: Object, cluster: Cluster, meanwhile: Callable[[], None]
) -> Result:
    """Plan the object's status, which it lacks, and write it after `meanwhile`."""
    operator, obj["status"] = cluster.operator, {}
    operator.sync([kind])
    snapshot = operator.snapshot()
    planned = plan(snapshot, cluster.model.time).actions
    writes = [one for one in planned if isinstance(one, STATUS_WRITES[kind])]
    assert writes
    meanwhile()
    client, events = cast(KubeClient, cluster.model.api), cast(EventRecorder, operator.events)
    applier = Applier(client, operator.caches, events, PodSettings("pause"))
    return asyncio.run(applier.apply(snapshot, writes))
