"""The operator's calls of the API server, argument by argument, and how it takes their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from mizar_core.models import GPUPoolStatus, GPUQuotaStatus
from mizar_core.names import (
    ANNOTATION_DRAIN,
    FIELD_MANAGER_OPERATOR,
    LABEL_SHARE_POD,
    CreationReason,
    EventReason,
    ReapReason,
)
from mizar_core.planning.actions import (
    Action,
    CreatePod,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.node_fit import NO_NEEDS
from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, Forbidden, KubeError, Unavailable
from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import BUDGET, GPU_POOL, GPU_QUOTA, NODE, POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator import reconcile
from mizar_operator.apply import Applier
from mizar_operator.apply_result import TERMINATING, Result
from mizar_operator.delete_guard import ConfirmedUnused, StillInUse, confirm_unused
from mizar_operator.manifests import PodSettings
from mizar_operator.shadow_deletion import ShadowDeleter
from mizar_operator.shadow_disruption_budgets import DisruptionBudgets
from mizar_operator.snapshot_index import SnapshotIndex
from stateful.harness import KINDS, Harness
from stateful.model import Model
from unit.operator.drained import GPU, Cluster

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


class Calls:
    """The calls of the API server from now on: verb, kind, name, and how."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, Kind, str, dict[str, Any]]] = []
        self._answers: dict[str, Object] = {}
        for verb in ("create", "apply", "delete"):
            monkeypatch.setattr(cluster.model.api, verb, self._noting(cluster, verb))

    def answer(self, verb: str, answer: Object) -> None:
        """From now on the API server answers such calls with this."""
        self._answers[verb] = answer

    def of(self, verb: str) -> list[tuple[Kind, str, dict[str, Any]]]:
        """The calls of one sort, in order."""
        return [(kind, name, how) for what, kind, name, how in self.made if what == verb]

    def _noting(self, cluster: Cluster, verb: str) -> Callable[..., Any]:
        real = getattr(cluster.model.api, verb)

        async def call(about: Any, **how: Any) -> Object:
            if isinstance(about, Ref):
                kind, name = about.kind, about.name
            else:
                kind = next(one for one in (*KINDS, BUDGET) if one.name == about["kind"])
                name = about["metadata"]["name"]
            self.made.append((verb, kind, name, how))
            return self._answers.get(verb) or cast(Object, await real(about, **how))

        return call


@pytest.fixture
def calls(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(cluster, monkeypatch)


def _client(cluster: Cluster) -> KubeClient:
    return cast(KubeClient, cluster.model.api)


def _deleter(cluster: Cluster) -> ShadowDeleter:
    return ShadowDeleter(
        _client(cluster),
        cluster.operator.caches,
        DisruptionBudgets(_client(cluster), cluster.operator.caches.holders),
    )


class TestRemoving:
    def test_the_very_objects_go_and_the_pod_in_its_grace(
        self, cluster: Cluster, calls: Calls
    ) -> None:
        """Without a grace period the API server would forget the pod, and that its cards are taken,
        before the kubelet has released them."""
        pod, shadow = cluster.pod["metadata"], cluster.shadow["metadata"]
        uids = pod["uid"], shadow["uid"]
        version, name = pod["resourceVersion"], shadow["name"]
        asyncio.run(_deleter(cluster).delete(cluster.known))
        assert calls.of("delete") == [
            (
                POD,
                name,
                {
                    "uid": uids[0],
                    "resource_version": version,
                    "grace_seconds": 1,
                    "propagation": "Background",
                },
            ),
            (
                SHADOW_POD,
                name,
                {
                    "uid": uids[1],
                    "resource_version": "",
                    "grace_seconds": None,
                    "propagation": "Background",
                },
            ),
        ]

    def test_what_is_going_is_known_before_the_watches_tell(self, cluster: Cluster) -> None:
        caches, known = cluster.operator.caches, cluster.known
        asyncio.run(_deleter(cluster).delete(known))
        holder = caches.holders.get(known.name, known.namespace)
        assert holder is not None and holder.view.deleting
        (shadow,) = (one for one in caches.shadows.values() if one.uid == known.uid)
        assert shadow.deleting

    @pytest.mark.parametrize("answer", [{"kind": "Status", "metadata": {}}, {"kind": "Status"}])
    def test_what_is_gone_at_once_is_not_taken_for_an_object(
        self, cluster: Cluster, calls: Calls, answer: Object
    ) -> None:
        caches, known = cluster.operator.caches, cluster.known
        calls.answer("delete", answer)
        asyncio.run(_deleter(cluster).delete(known))
        assert caches.holders.get(known.name, known.namespace) is not None
        assert [one.uid for one in caches.shadows.values() if one.uid == known.uid] == [known.uid]

    def test_what_is_going_already_is_not_deleted_again(
        self, cluster: Cluster, calls: Calls
    ) -> None:
        known = cluster.known
        for _ in range(2):
            asyncio.run(_deleter(cluster).delete(known))
        assert [kind for kind, _, _ in calls.of("delete")] == [POD, SHADOW_POD, POD]

    @pytest.mark.parametrize("step", ["delete", "remove_finalizer"])
    def test_what_the_api_server_does_not_have_is_forgotten(
        self, cluster: Cluster, step: str
    ) -> None:
        """A watch can lose a deletion; without this the operator would delete the object for
        ever."""
        caches, known = cluster.operator.caches, cluster.known
        cluster.model.api.remove(cluster.pod)
        cluster.model.api.remove(cluster.shadow)
        asyncio.run(getattr(_deleter(cluster), step)(known))
        assert known.uid not in [one.uid for one in caches.shadows.values()]
        assert len(caches.shadows.values()) == 1


class TestAskedLive:
    def _ask(self, cluster: Cluster) -> ConfirmedUnused:
        return asyncio.run(confirm_unused(_client(cluster), cluster.operator.caches, cluster.known))

    def test_on_a_node_that_is_gone_nobody_uses_anything(self, cluster: Cluster) -> None:
        node = cluster.model.api.find(NODE, "n1")
        assert node is not None
        cluster.pod["metadata"]["annotations"].clear()
        with pytest.raises(StillInUse):
            self._ask(cluster)
        cluster.model.api.remove(node)
        assert self._ask(cluster) == ConfirmedUnused(cluster.shadow, cluster.pod)

    def _bound_and_unreadable(self, cluster: Cluster, resource: str) -> None:
        cluster.model.add_share("team-a", "odd", resource, 1)
        odd = cluster.find_pod("odd")
        cluster.model._bind(odd, "n1")
        odd["metadata"]["labels"] = {LABEL_SHARE_POD: "true"}
        odd["status"].update(conditions=[{}], containerStatuses=[0])

    def test_a_pod_that_cannot_be_read_may_use_it(self, cluster: Cluster) -> None:
        self._bound_and_unreadable(cluster, GPU)
        with pytest.raises(StillInUse) as found:
            self._ask(cluster)
        assert found.value.why == "pod team-a/odd asks for its resource and cannot be read"
        assert found.value.uid == cluster.known.uid

    def test_unless_it_asks_for_something_else(self, cluster: Cluster) -> None:
        self._bound_and_unreadable(cluster, "team-b.mizar.share/gpu.4")
        assert self._ask(cluster).pod == cluster.pod


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[Regarding, str, str, bool]] = []

    def emit(self, about: Regarding, reason: str, note: str, *, warning: bool = False) -> None:
        self.told.append((about, reason, note, warning))


def _apply(cluster: Cluster, *actions: Action) -> tuple[Result, Events]:
    events = Events()
    operator = cluster.operator
    applier = Applier(
        _client(cluster), operator.caches, cast(EventRecorder, events), PodSettings("pause")
    )
    return asyncio.run(applier.apply(operator.snapshot(), actions)), events


def _shadow_status(cluster: Cluster, phase: str) -> WriteShadowStatus:
    """The ShadowPod's status as the operator has it, except for the phase."""
    said = cluster.operator.snapshot()
    (shadow,) = (one for one in said.shadows if one.key == cluster.known.key)
    assert shadow.scheduled is not None
    return WriteShadowStatus(shadow.key, cast(Any, phase), shadow.scheduled)


def test_statuses_are_written_as_ours_alone(cluster: Cluster, calls: Calls) -> None:
    _apply(
        cluster,
        _shadow_status(cluster, "Lost"),
        WriteQuotaStatus(("team-a", "quota"), GPUQuotaStatus()),
        WritePoolStatus("pool", GPUPoolStatus()),
    )
    how = {"field_manager": FIELD_MANAGER_OPERATOR, "subresource": "status"}
    assert calls.of("apply") == [
        (SHADOW_POD, cluster.known.name, how),
        (GPU_QUOTA, "quota", how),
        (GPU_POOL, "pool", how),
    ]


def test_a_pool_is_in_no_namespace(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Object] = []
    real = cluster.model.api.apply

    async def apply(obj: Object, **how: Any) -> Object:
        written.append(obj["metadata"])
        return await real(obj, **how)

    monkeypatch.setattr(cluster.model.api, "apply", apply)
    _apply(
        cluster,
        WriteQuotaStatus(("team-a", "quota"), GPUQuotaStatus()),
        WritePoolStatus("pool", GPUPoolStatus()),
    )
    quota, pool = ({name: meta[name] for name in meta if name != "uid"} for meta in written)
    assert (quota, pool) == ({"name": "quota", "namespace": "team-a"}, {"name": "pool"})


def test_what_was_written_is_known_before_the_watches_tell(cluster: Cluster) -> None:
    caches = cluster.operator.caches
    pool_status = GPUPoolStatus()
    before = [one.status for one in caches.pools.values()]
    assert before != [pool_status]
    quota_status = GPUQuotaStatus()
    _apply(
        cluster,
        _shadow_status(cluster, "Lost"),
        WriteQuotaStatus(("team-a", "quota"), quota_status),
        WritePoolStatus("pool", pool_status),
    )
    assert [one.status for one in caches.quotas.values()] == [quota_status]
    (shadow,) = (one for one in caches.shadows.values() if one.uid == cluster.known.uid)
    assert shadow.phase == "Lost"
    assert [one.status for one in caches.pools.values()] == [pool_status]


def test_a_shadow_pod_is_made_in_our_name(cluster: Cluster, calls: Calls) -> None:
    model = cluster.model
    model.add_node("n2")
    quota = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    quota["spec"]["profiles"][0]["max"] = 3
    model.api.touch(quota)
    model.add_share("team-a", "three", GPU, 2)
    model.add_share("team-a", "four", GPU, 2)
    cluster.operator.sync(KINDS)
    cluster.operator.reconcile()
    made = [(kind, how) for kind, _, how in calls.of("create") if kind != BUDGET]
    how = {"field_manager": FIELD_MANAGER_OPERATOR}
    assert made == [(SHADOW_POD, how), (POD, how)]
    (_, name, _) = calls.of("create")[0]
    # So that a plan made before the watches report them makes no others.
    caches = cluster.operator.caches
    assert name in [one.name for one in caches.shadows.values()]
    assert caches.holders.get(name, "team-a") is not None


@pytest.mark.parametrize("kept", [True, False])
def test_the_pod_of_an_earlier_try_is_taken_for_what_it_is(cluster: Cluster, kept: bool) -> None:
    caches, known = cluster.operator.caches, cluster.known
    if not kept:
        cluster.pod["metadata"]["ownerReferences"] = None
    result, _ = _apply(cluster, CreatePod(known.key, NO_NEEDS))
    assert result.errors == []
    assert result.names_taken == (set() if kept else {known.key})
    assert caches.holders.get(known.name, known.namespace) is not None


def test_a_webhook_that_fails_refuses(cluster: Cluster) -> None:
    """An administrator has to mend the webhook; until then every try would end the same way."""
    model, known = cluster.model, cluster.known
    model.api.remove(cluster.pod)

    def fail(write: Any) -> None:
        raise KubeError('Internal error occurred: failed calling webhook "x": no endpoints')

    model.api.before_write = fail
    result, _ = _apply(cluster, CreatePod(known.key, NO_NEEDS))
    assert result.errors == []
    ((offer, said),) = result.refused.items()
    assert offer == (("team-a", "quota"), 2)
    assert "failed calling webhook" in said


def _event(about: Key, type: str, kind: str = "Pod", uid: str = "uid-two") -> EmitEvent:
    return EmitEvent(
        cast(Any, kind), about, uid, cast(Any, type), EventReason.SHARE_EVICTED, "a sentence"
    )


@pytest.mark.parametrize(("type", "warning"), [("Warning", True), ("Normal", False)])
def test_an_event_is_about_the_very_object(cluster: Cluster, type: str, warning: bool) -> None:
    _, events = _apply(cluster, _event(("team-a", "two"), type))
    about = Regarding(POD, "two", "team-a", "uid-two")
    assert events.told == [(about, str(EventReason.SHARE_EVICTED), "a sentence", warning)]


def test_an_event_on_a_quota_names_its_uid(cluster: Cluster) -> None:
    quota = cluster.model.api.find(GPU_QUOTA, "quota", "team-a")
    assert quota is not None
    _, events = _apply(cluster, _event(("team-a", "quota"), "Normal", "GPUQuota", "a key"))
    ((about, *_),) = events.told
    assert about == Regarding(GPU_QUOTA, "quota", "team-a", quota["metadata"]["uid"])


FORBIDDEN = Forbidden("not now")
CHANGED = Conflict("changed")
CHAOS = RuntimeError("by chance")


class TestFailures:
    """A failure voids later actions of the plan in the same namespace, and nothing else; that of a
    creation voids fewer."""

    def _after(self, cluster: Cluster, error: Exception) -> tuple[Result, list[Any]]:
        """The actions that are done after a drain has failed in team-a; actions of each sort follow
        it, in team-a and team-b."""
        model = cluster.model
        model.add_quota("team-b", [{"devices": 2, "min": 0, "max": 2}])
        cluster.operator.sync(KINDS)

        def fail(write: Any) -> None:
            if write[0] == "patch" and write[1].kind == POD:
                raise error

        model.api.before_write = fail
        teams = ("team-a", "team-b")
        result, events = _apply(
            cluster,
            Drain(cluster.known.key, AT, ReapReason.IDLE),
            *(WriteQuotaStatus((team, "quota"), GPUQuotaStatus(conditions=[])) for team in teams),
            *(_event((team, "two"), "Normal") for team in teams),
            EvictShare(("team-a", "two"), cluster.find_pod("two")["metadata"]["uid"]),
            WritePoolStatus("pool", GPUPoolStatus()),
        )
        return result, events.told

    @pytest.mark.parametrize("error", [CHANGED, CHAOS], ids=["told", "unforeseen"])
    def test_the_tenants_own_actions_wait(
        self, cluster: Cluster, calls: Calls, error: Exception
    ) -> None:
        result, told = self._after(cluster, error)
        assert result.errors == [error]
        assert [about.namespace for about, *_ in told] == ["team-b"]
        assert [kind for kind, _, _ in calls.of("apply")] == [GPU_QUOTA, GPU_POOL]
        assert "deletionTimestamp" not in cluster.find_pod("two")["metadata"]

    def test_whom_to_wait_for_is_not_told_twice(self, cluster: Cluster) -> None:
        result, _ = self._after(cluster, CHANGED)
        assert result.announced == [_event(("team-b", "two"), "Normal")]

    def test_a_change_that_is_refused_voids_what_is_about_it_alone(
        self, cluster: Cluster, calls: Calls
    ) -> None:
        result, told = self._after(cluster, FORBIDDEN)
        assert result.errors == [FORBIDDEN], "it is tried again"
        (refused, *others) = told
        assert (refused[0].kind, refused[0].name) == (SHADOW_POD, cluster.known.name)
        assert refused[2] == f"the API server refuses to change the shadow pod: {FORBIDDEN}"
        assert [about.namespace for about, *_ in others] == ["team-a", "team-b"]
        assert [kind for kind, _, _ in calls.of("apply")] == [GPU_QUOTA, GPU_QUOTA, GPU_POOL]

    def test_in_a_namespace_that_is_going_nothing_is_wrong(
        self, cluster: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        going = Forbidden("no new content, because it is being terminated")
        result, told = self._after(cluster, going)
        assert result.errors == []
        assert not [one for one in caplog.records if one.levelname == "WARNING"]
        assert [about.namespace for about, *_ in told] == ["team-b"]

    def test_a_conflict_is_an_error_and_no_refusal(self, cluster: Cluster) -> None:
        result, _ = self._after(cluster, CHANGED)
        (error,) = result.errors
        assert isinstance(error, KubeError)
        assert result.refused == {}

    @pytest.mark.parametrize("refused", [True, False])
    def test_a_shadow_pod_that_is_not_created_keeps_no_other(
        self, cluster: Cluster, calls: Calls, refused: bool
    ) -> None:
        """Only further creations wait, and what is about that one. Where the API server refuses it,
        the next plan says so at once."""
        model, known, beside = cluster.model, cluster.known, cluster.beside["metadata"]
        model.api.remove(cluster.pod)

        def fail(write: Any) -> None:
            if write[0] == "create" and write[1].kind == POD:
                raise FORBIDDEN if refused else Conflict("by chance")

        model.api.before_write = fail
        result, events = _apply(
            cluster,
            CreatePod(known.key, NO_NEEDS),
            CreatePod(("team-a", beside["name"]), NO_NEEDS),
            Drain(("team-a", beside["name"]), AT, ReapReason.IDLE),
            EvictShare(("team-a", "two"), cluster.find_pod("two")["metadata"]["uid"]),
            _event(known.key, "Normal", "ShadowPod"),
            _event(("team-a", "two"), "Normal"),
            _shadow_status(cluster, "Pending"),
            WriteQuotaStatus(("team-a", "quota"), GPUQuotaStatus(conditions=[])),
            WritePoolStatus("pool", GPUPoolStatus()),
        )
        assert len(result.errors) == (0 if refused else 1)
        assert len([one for one in result.failed if isinstance(one, CreatePod)]) == 1
        drained = cluster.find_pod(beside["name"])["metadata"]["annotations"]
        assert ANNOTATION_DRAIN in drained
        assert "deletionTimestamp" in cluster.find_pod("two")["metadata"]
        assert [about.name for about, *_ in events.told] == ([] if refused else ["two"])
        written = [GPU_POOL] if refused else [GPU_QUOTA, GPU_POOL]
        assert [kind for kind, _, _ in calls.of("apply")] == written


@pytest.mark.parametrize("error", [Unavailable("no answer"), CHANGED, FORBIDDEN])
def test_a_shadow_pod_may_exist_after_all_if_its_creation_was_not_answered(
    cluster: Cluster, error: KubeError
) -> None:
    """Its pod alone is created again by its name."""
    quota, new = ("team-a", "quota"), ("team-a", "shadow-2-new")
    create = CreateShadow(new, "pool", quota[1], "uid", GPU, 2, 1, 7, NO_NEEDS, CreationReason.WARM)
    for action, found in ((create, {(quota, 2, 7)}), (CreatePod(cluster.known.key, NO_NEEDS), ())):
        result = Result()
        result.note_error(SnapshotIndex(cluster.operator.snapshot()), action, error)
        assert result.unanswered == (set(found) if isinstance(error, Unavailable) else set())


def test_refusals_in_a_namespace_that_is_going_are_not_counted() -> None:
    gone, other = (("team-a", "quota"), 2), (("team-b", "quota"), 2)
    result = Result(refused={gone: f"no new content {TERMINATING}", other: "not now"})
    assert result.refused_quotas == [other]


def test_a_shadow_pod_that_turns_out_to_be_in_use_is_kept_and_that_is_no_error(
    cluster: Cluster,
) -> None:
    cluster.pod["metadata"]["annotations"].clear()
    delete = DeleteShadow(cluster.known.key, ReapReason.IDLE)
    result, _ = _apply(cluster, delete)
    assert (result.done, result.failed, result.errors) == ([], [delete], [])
    assert result.used == {cluster.known.uid}


def test_a_round_is_measured(cluster: Cluster) -> None:
    metrics = cluster.operator.metrics
    read = metrics.registry.get_sample_value

    def rounds(step: str) -> float:
        return read("mizar_reconcile_duration_seconds_count", {"step": step}) or 0

    before = [rounds(step) for step in ("gather", "plan", "apply")]
    cluster.operator.reconcile()
    assert [rounds(step) for step in ("gather", "plan", "apply")] == [one + 1 for one in before]


def test_a_round_that_fails_is_counted() -> None:
    model = Model()
    model.add_node("n1")
    model.add_pool()
    model.add_quota("team-a", [{"devices": 2, "min": 1, "max": 2}])
    operator = Harness(model)

    def fail(write: Any) -> None:
        raise Conflict("changed")

    model.api.before_write = fail
    assert operator.reconcile() is not None
    read = operator.metrics.registry.get_sample_value
    assert read("mizar_reconcile_failures_total") == 1


def test_a_round_that_gets_no_further_than_its_plan_is_counted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = Harness(Model())

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(reconcile, "plan_isolated", fail)
    with pytest.raises(ValueError, match="a bug"):
        operator.reconcile()
    assert operator.metrics.registry.get_sample_value("mizar_reconcile_failures_total") == 1
