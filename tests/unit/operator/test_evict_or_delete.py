"""Eviction of share pods whose shadow pod has lost its cards, or that cannot start since their
devices are on several: once, with an event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from mizar_core.model_base import format_time
from mizar_core.names import FIELD_MANAGER_OPERATOR, EventReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import (
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    WritePoolStatus,
    WriteQuotaStatus,
)
from mizar_core.planning.snapshot import PodView, ShadowView
from mizar_kube.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    NotServed,
    Unavailable,
    error_from_status,
)
from mizar_kube.kinds import Object, Ref
from mizar_operator.evict_or_delete import BUDGET_RESPECTED_S, Evictor
from property.plan.snapshots import NOW, at, node, pool, quota, ready, waiting
from support.projection import apply_plan

HELD: dict[str, Any] = {"holders": (("team-a", "p"), ("team-a", "p")), "in_use": True}
SHARE = replace(waiting("p", 2), node="n1")


def _pod(**changes: Any) -> PodView:
    return replace(PodView(uid="uid-pod", phase="Running", node="n1", bound_at=at(60)), **changes)


LOST = {
    "its pod was deleted or evicted": {"pod": None},
    "its pod is being deleted": {"pod": _pod(deleting=True)},
    "its pod ended": {"pod": _pod(phase="Failed")},
    "another has its card": {"pod": _pod(), "lost": True},
    "its node is gone": {"pod": _pod()},
    "both were deleted": {"pod": _pod(deleting=True), "deleting": True},
    "deleted, then its pod by force": {"pod": None, "deleting": True},
}


def _snapshot(*shadows: ShadowView, **parts: Any) -> Snapshot:
    given = {
        "pools": (pool(),),
        "quotas": (quota("team-a"),),
        "nodes": (node("n1"),),
        "shadows": shadows,
        "shares": (SHARE,),
    }
    return Snapshot(**{**given, **parts})


def test_a_pod_evicted_for_a_lost_card_is_told_where_to_read_how_it_was_lost() -> None:
    made = plan(_snapshot(ready(**HELD, **LOST["another has its card"])), NOW)
    told = [one.message for one in made.actions if isinstance(one, EmitEvent)]
    assert (
        "evicted: shadow pod shadow-2-aaaaa lost its cards: they are gone from the node, or "
        "another pod has one: see condition Ready of the ShadowPod"
    ) in told


def _evicted(snapshot: Snapshot) -> list[tuple[str, str]]:
    actions = plan(snapshot, NOW).actions
    return [(one.share[1], one.uid) for one in actions if isinstance(one, EvictShare)]


def _lost(how: str, **parts: Any) -> Snapshot:
    nodes = () if how == "its node is gone" else (node("n1"),)
    return _snapshot(ready(**HELD, **LOST[how]), **{"nodes": nodes, **parts})


@pytest.mark.parametrize("how", LOST)
def test_a_share_pod_whose_shadow_pod_lost_its_cards_is_evicted_once(how: str) -> None:
    snapshot = _lost(how)
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    made = plan(snapshot, NOW)
    (told,) = (
        one
        for one in made.actions
        if isinstance(one, EmitEvent) and one.reason == EventReason.SHARE_EVICTED
    )
    assert (told.about, told.uid, told.type) == (("team-a", "p"), SHARE.uid, "Warning")
    # A PodDisruptionBudget may refuse the eviction: it is tried again, even if nothing else
    # happens.
    assert made.due is not None
    assert _evicted(apply_plan(snapshot, made)) == []


@pytest.mark.parametrize("how", LOST)
def test_nothing_goes_while_somebody_uses_it(how: str) -> None:
    going = replace(SHARE, deleting=True)
    actions = plan(_lost(how, shares=(going,)), NOW).actions
    if how != "its node is gone":
        assert not [one for one in actions if isinstance(one, DeleteShadow)]
    assert not [one for one in actions if isinstance(one, EvictShare)]


@pytest.mark.parametrize("place", [None, "n2"], ids=["waits", "runs elsewhere"])
@pytest.mark.parametrize("how", LOST)
def test_another_pod_of_a_users_name_is_let_be(how: str, place: str | None) -> None:
    """A StatefulSet makes its pod again under the same name, while the agent of the node that has
    failed still reports the one before."""
    again = replace(SHARE, uid="uid-again", node=place)
    other = ready("shadow-2-bbbbb", node="n2", sequence=3, **(HELD if place else {}))
    nodes = () if how == "its node is gone" else (node("n1", available=False),)
    lost = ready(**HELD, **LOST[how])
    snapshot = _snapshot(lost, other, shares=(again,), nodes=(*nodes, node("n2")))
    made = plan(snapshot, NOW)
    assert not [one for one in made.actions if isinstance(one, EvictShare)]
    reasons = [one.reason for one in made.actions if isinstance(one, EmitEvent)]
    assert EventReason.SHARE_EVICTED not in reasons
    (status,) = made.quotas.values()
    assert "CardLost" not in [one.reason for one in status.conditions]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"broken": True, "healthy": 0},  # told by the node agent; it still has the card
        {"pod": _pod(drain_asked=at(5)), "ready": False},
        {"ready": False},
        {"deleting": True},
    ],
)
def test_nobody_else_is_evicted(fields: dict[str, Any]) -> None:
    assert _evicted(_snapshot(ready(**HELD, **fields))) == []


def test_a_lost_card_that_nobody_uses_goes_without_a_word_to_anybody() -> None:
    lost = ready(pod=_pod(), lost=True, ready=False)
    snapshot = _snapshot(lost, shares=())
    assert _evicted(snapshot) == []
    assert [one for one in plan(snapshot, NOW).actions if isinstance(one, DeleteShadow)]


def test_quota_and_pool_say_so() -> None:
    actions = plan(_snapshot(ready(**HELD, pod=None)), NOW).actions
    (of_quota,) = (one.status for one in actions if isinstance(one, WriteQuotaStatus))
    (of_pool,) = (one.status for one in actions if isinstance(one, WritePoolStatus))
    (satisfied,) = (one for one in of_quota.conditions if one.type == "Satisfied")
    assert (satisfied.status, satisfied.reason) == ("False", "CardLost")
    assert "1 share pod to be evicted: shadow pod shadow-2-aaaaa" in satisfied.message
    assert of_pool.cards.lost == 1


GPU_4 = "team-a.mizar.share/gpu.4"
ON_GONE, OTHER = (
    replace(waiting(name, 2, GPU_4), node="n1", created=at(120)) for name in ("p", "other")
)
QUOTA_4 = quota("team-a", profiles=[{"devices": 4, "max": 1}])
ONE_GONE: dict[str, Any] = {
    "devices": 4,
    "healthy": 2,
    "broken": True,
    "holders": (("team-a", "other"), ("team-a", "p")),
    "in_use": True,
    "lost_cards": ("GPU-1",),
    "on_lost_cards": (("team-a", "p"),),
}
"""A shadow pod with two cards, of which p's is gone from the node, and the other pod's is not."""


def test_only_the_pods_on_a_gone_card_of_several_are_evicted() -> None:
    snapshot = _snapshot(ready(**ONE_GONE), quotas=(QUOTA_4,), shares=(ON_GONE, OTHER))
    made = plan(snapshot, NOW)
    assert _evicted(snapshot) == [("p", ON_GONE.uid)]
    assert made.due is not None
    (told,) = (
        one
        for one in made.actions
        if isinstance(one, EmitEvent) and one.reason == EventReason.SHARE_EVICTED
    )
    assert told.message == (
        "evicted: shadow pod shadow-2-aaaaa lost card GPU-1: not in its node any more"
    )
    assert _evicted(apply_plan(snapshot, made)) == []
    (of_quota,) = (one.status for one in made.actions if isinstance(one, WriteQuotaStatus))
    (of_pool,) = (one.status for one in made.actions if isinstance(one, WritePoolStatus))
    (satisfied,) = (one for one in of_quota.conditions if one.type == "Satisfied")
    assert (satisfied.status, satisfied.reason) == ("False", "CardLost")
    assert "1 share pod to be evicted: shadow pod shadow-2-aaaaa lost card GPU-1" in (
        satisfied.message
    )
    assert of_pool.cards.lost == 1


def test_the_next_pod_of_the_name_on_a_card_that_is_left_is_let_be() -> None:
    """A StatefulSet makes its pod again at once, the scheduler may choose the same node, and its
    agent has yet to report that the pod before is gone."""
    again = replace(ON_GONE, uid="uid-again", created=at(1))
    made = plan(_snapshot(ready(**ONE_GONE), quotas=(QUOTA_4,), shares=(again, OTHER)), NOW)
    assert not [one for one in made.actions if isinstance(one, EvictShare)]
    assert "CardLost" not in [one.reason for one in made.quotas["team-a", "quota"].conditions]


def test_a_shadow_pod_keeps_the_cards_that_are_left() -> None:
    """Nothing of it ends with the pods of the one that is gone, and it still counts as ready."""
    left = ready(**ONE_GONE | {"holders": (("team-a", "other"),), "on_lost_cards": ()})
    made = plan(_snapshot(left, quotas=(QUOTA_4,), shares=(OTHER,)), NOW)
    assert not [one for one in made.actions if isinstance(one, EvictShare | DeleteShadow | Drain)]
    assert "CardLost" not in [one.reason for one in made.quotas["team-a", "quota"].conditions]


def test_a_shadow_pod_whose_gone_users_are_still_reported_counts_as_kept_warm() -> None:
    warm = quota("team-a", profiles=[{"devices": 4, "min": 1, "max": 1}])
    made = plan(_snapshot(ready(**ONE_GONE), quotas=(warm,), shares=(OTHER,)), NOW)
    (status,) = made.quotas.values()
    assert "Creating" not in [one.reason for one in status.conditions]


FRAGMENTED = replace(SHARE, owner="uid-set", several_cards=True)
"""A pod of a controller that demands one card and has devices of two."""


def test_the_pods_that_demand_one_card_and_have_several_are_replaced() -> None:
    """All of a controller at once: none of them runs."""
    other = replace(FRAGMENTED, name="q", uid="uid-q")
    snapshot = _snapshot(ready(**HELD), shares=(FRAGMENTED, other))
    made = plan(snapshot, NOW)
    assert _evicted(snapshot) == [("p", SHARE.uid), ("q", "uid-q")]
    told = [one for one in made.actions if isinstance(one, EmitEvent) and one.kind == "Pod"]
    assert {(one.about[1], one.reason) for one in told} == {
        ("p", EventReason.SHARE_EVICTED),
        ("q", EventReason.SHARE_EVICTED),
    }
    assert "its devices are on several" in told[0].message
    assert [one.what for one in made.attempts] == ["one-card/uid-set"]
    assert _evicted(apply_plan(snapshot, made)) == []


def test_a_pod_of_two_resources_is_evicted_once() -> None:
    beside = replace(FRAGMENTED, resource="team-a.mizar.share/gpu.4")
    assert _evicted(_snapshot(ready(**HELD), shares=(FRAGMENTED, beside))) == [("p", SHARE.uid)]


def test_a_jobs_pods_are_evicted_one_at_a_time_and_only_while_none_of_them_runs() -> None:
    """A Job counts an evicted pod as failed, and ends those that run after a few of them."""
    first, second = (
        replace(FRAGMENTED, of_job=True),
        replace(FRAGMENTED, of_job=True, name="q", uid="uid-q"),
    )
    snapshot = _snapshot(ready(**HELD), shares=(second, first))
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    runs = replace(first, name="r", uid="uid-r", several_cards=False)
    with_one = replace(snapshot, shares=(second, first, runs))
    assert _evicted(with_one) == []
    assert not plan(with_one, NOW).attempts, "it is tried as soon as none runs"
    waits = replace(with_one, shares=(second, first, replace(runs, node=None)))
    assert _evicted(waits) == [("p", SHARE.uid)]


def test_it_is_not_evicted_again_soon() -> None:
    """Its node may never have a card with as many free devices."""
    tried = frozenset({"one-card/uid-set"})
    assert _evicted(_snapshot(ready(**HELD), shares=(FRAGMENTED,), attempted=tried)) == []


@pytest.mark.parametrize(
    "changes",
    [{"owner": SHARE.uid}, {"owner": ""}, {"deleting": True}, {"several_cards": False}],
    ids=["without a controller", "of an unknown one", "on its way out", "that starts"],
)
def test_a_pod_that_no_controller_replaces_or_that_ends_or_starts_is_not_evicted(
    changes: dict[str, Any],
) -> None:
    """Of a pod without a controller, the node agent's event says that it must be deleted."""
    share = replace(FRAGMENTED, **changes)
    assert _evicted(_snapshot(ready(**HELD), shares=(share,))) == []


GIVES_WAY = replace(
    SHARE,
    owner="uid-set",
    given_twice=True,
    gives_way=True,
    gives_way_to=(SHARE.namespace, "a"),
)
"""A pod of a controller whose device another pod has as well, and keeps."""
KEEPS_IT = replace(SHARE, name="a", uid="uid-a", owner="uid-set", given_twice=True)
"""That other pod, which does not start before the first one is gone."""


def test_a_pod_whose_device_another_pod_keeps_is_replaced() -> None:
    snapshot = _snapshot(ready(**HELD), shares=(KEEPS_IT, GIVES_WAY))
    made = plan(snapshot, NOW)
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    (told,) = (one for one in made.actions if isinstance(one, EmitEvent) and one.kind == "Pod")
    assert (told.reason, told.about) == (EventReason.SHARE_EVICTED, GIVES_WAY.key)
    assert "gave one of its devices to another container as well" in told.message
    assert [one.what for one in made.attempts] == ["sole-holder/uid-set"]
    assert _evicted(apply_plan(snapshot, made)) == []
    tried = replace(snapshot, attempted=frozenset({"sole-holder/uid-set"}))
    assert _evicted(tried) == []


@pytest.mark.parametrize("changes", [{"owner": SHARE.uid}, {"deleting": True}])
def test_a_pod_that_nothing_replaces_or_that_goes_already_is_not_evicted(
    changes: dict[str, Any],
) -> None:
    share = replace(GIVES_WAY, **changes)
    assert _evicted(_snapshot(ready(**HELD), shares=(KEEPS_IT, share))) == []


def test_a_pod_whose_device_another_pod_kept_until_it_ended_starts_and_is_not_replaced() -> None:
    """The kubelet has not tried again yet. A Job's pods would be replaced in that very moment,
    since none of it runs any more."""
    share = replace(GIVES_WAY, of_job=True)
    for others in ((), (replace(KEEPS_IT, deleting=True),)):
        assert _evicted(_snapshot(ready(**HELD), shares=(share, *others))) == []
    has_it_twice = replace(share, gives_way_to=None)
    assert _evicted(_snapshot(ready(**HELD), shares=(has_it_twice,))) == [("p", SHARE.uid)]


def test_a_job_of_which_two_pods_have_one_device_loses_one_pod_once_none_of_it_runs() -> None:
    """The pod that keeps the device does not run either, so nothing would ever change."""
    first, second = replace(KEEPS_IT, of_job=True), replace(GIVES_WAY, of_job=True)
    snapshot = _snapshot(ready(**HELD), shares=(first, second))
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    runs = replace(first, name="r", uid="uid-r", given_twice=False)
    assert _evicted(replace(snapshot, shares=(first, second, runs))) == []


def test_the_attempts_for_a_device_given_twice_and_for_several_cards_are_apart() -> None:
    """A controller that gets devices of several cards again and again waits ever longer. The next
    plan evicts nobody else."""
    other = replace(FRAGMENTED, name="b", uid="uid-b")
    snapshot = _snapshot(ready(**HELD), shares=(other, GIVES_WAY, KEEPS_IT))
    assert _evicted(snapshot) == [("p", SHARE.uid), ("b", "uid-b")]
    assert _evicted(apply_plan(snapshot, plan(snapshot, NOW))) == []
    for tried, evicted in (("one-card", [("p", SHARE.uid)]), ("sole-holder", [("b", "uid-b")])):
        attempted = frozenset({f"{tried}/uid-set"})
        assert _evicted(replace(snapshot, attempted=attempted)) == evicted


def test_a_job_with_both_loses_one_pod_at_a_time() -> None:
    """The one with a device that another pod keeps first; the next one when that has ended."""
    other = replace(FRAGMENTED, name="b", uid="uid-b")
    shares = tuple(replace(one, of_job=True) for one in (other, GIVES_WAY, KEEPS_IT))
    snapshot = _snapshot(ready(**HELD), shares=shares)
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    after = apply_plan(snapshot, plan(snapshot, NOW))
    assert _evicted(after) == []
    ended = tuple(one for one in after.shares if not one.deleting)
    assert _evicted(replace(after, shares=ended)) == [("b", "uid-b")]


def test_a_job_does_not_wait_for_a_pod_that_is_deleted_on_a_node_that_is_away() -> None:
    """Kubernetes keeps that pod until the node is back or deleted, which nobody may ever do."""
    going = replace(SHARE, name="b", uid="uid-b", owner="uid-set", node="n2", deleting=True)
    shares = tuple(replace(one, of_job=True) for one in (FRAGMENTED, going))
    for overdue, answers, evicted in (
        (at(1), False, [("p", SHARE.uid)]),
        (at(0), False, [("p", SHARE.uid)]),
        (at(-1), False, []),
        (at(1), True, []),
        (None, False, []),
    ):
        nodes = (node("n1"), node("n2", available=answers))
        late = (shares[0], replace(shares[1], overdue_at=overdue))
        snapshot = _snapshot(ready(**HELD), shares=late, nodes=nodes)
        assert _evicted(snapshot) == evicted
        if overdue == at(-1):
            assert plan(snapshot, NOW).due == overdue, "nothing else makes a plan then"


@pytest.mark.parametrize("of", [{"of_job": False}, {"owner": "uid-of-another", "of_job": True}])
def test_no_plan_is_due_for_a_pod_that_no_job_waits_for(of: dict[str, Any]) -> None:
    going = replace(SHARE, name="b", uid="uid-b", owner="uid-set", node="n2", deleting=True)
    shares = replace(FRAGMENTED, of_job=of["of_job"]), replace(going, overdue_at=at(-1), **of)
    nodes = (node("n1"), node("n2", available=False))
    assert plan(_snapshot(ready(**HELD), shares=shares, nodes=nodes), NOW).due != at(-1)
    gone = _snapshot(ready(**HELD), shares=(shares[0], replace(shares[1], overdue_at=at(1))))
    assert _evicted(replace(gone, nodes=(node("n1"),))) == [("p", SHARE.uid)], "its node is deleted"


def test_a_job_of_which_a_pod_loses_its_cards_loses_no_other_pod_by_the_same_plan() -> None:
    """The one that lost its cards must go. The next one goes when that has ended."""
    other = replace(FRAGMENTED, name="b", uid="uid-b")
    shares = tuple(replace(one, of_job=True) for one in (other, FRAGMENTED))
    snapshot = _lost("its pod ended", shares=shares)
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    assert _evicted(replace(snapshot, shares=shares[:1])) == [("b", "uid-b")]


def test_a_pod_on_several_cards_that_lost_them_is_told_only_of_the_loss() -> None:
    snapshot = _lost("its pod ended", shares=(FRAGMENTED,))
    assert _evicted(snapshot) == [("p", SHARE.uid)]
    told = [one.message for one in plan(snapshot, NOW).actions if isinstance(one, EmitEvent)]
    assert not [one for one in told if "several" in one]


class Api:
    """Evicts and deletes as the test says, and remembers the calls. `there`: UID of the pod that
    has the name now. `conditions`: those of its status."""

    def __init__(
        self,
        *answers: KubeError | None,
        there: str = "uid-p",
        conditions: Iterable[Object] = (),
        refusal: KubeError | None = None,
    ) -> None:
        self.answers = list(answers)
        self.there = there
        self.conditions = list(conditions)
        self.refusal = refusal
        self.asked: list[tuple[str, str, str]] = []
        self.graces: list[int | None] = []
        self.applied: list[Object] = []

    async def evict(self, ref: Ref, *, uid: str, grace_seconds: int | None) -> None:
        self.asked.append(("evict", ref.name, uid))
        self.graces.append(grace_seconds)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error

    async def delete(self, ref: Ref, *, uid: str, grace_seconds: int | None) -> None:
        self.asked.append(("delete", ref.name, uid))
        self.graces.append(grace_seconds)

    async def get(self, ref: Ref) -> Object:
        if not self.there:
            raise NotFound("gone")
        meta = {"name": ref.name, "uid": self.there}
        return {"metadata": meta, "status": {"conditions": self.conditions}}

    async def apply(self, obj: Object, *, field_manager: str, subresource: str) -> Object:
        self.asked.append(("apply", obj["metadata"]["name"], obj["metadata"]["uid"]))
        assert (field_manager, subresource) == (FIELD_MANAGER_OPERATOR, "status")
        if self.refusal is not None:
            raise self.refusal
        self.applied.append(obj)
        return obj


BUDGET = error_from_status(
    429,
    {
        "kind": "Status",
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "reason": "TooManyRequests",
        "details": {
            "causes": [
                {
                    "reason": "DisruptionBudget",
                    "message": "The disruption budget serve needs 2 healthy pods",
                }
            ]
        },
    },
    "POST pods team-a/p eviction",
)
"""As kube-apiserver 1.36 answers."""
BUDGETS = Unavailable(
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support.",
    status=500,
)
ASKED, MARKED, DELETED = (
    ("evict", "p", "uid-p"),
    ("apply", "p", "uid-p"),
    ("delete", "p", "uid-p"),
)


def _evict(api: Api, *times: float, **how: Any) -> None:
    """Try to evict at these seconds."""
    now = [0.0]
    evictor = Evictor(api, lambda: now[0], lambda: NOW)  # type: ignore[arg-type]
    for at_time in times:
        now[0] = at_time
        asyncio.run(evictor.evict(("team-a", "p"), "uid-p", **how))


def test_a_budget_is_respected_for_a_while() -> None:
    api = Api(BUDGET, BUDGET, None)
    _evict(api, 0.0, BUDGET_RESPECTED_S - 1, BUDGET_RESPECTED_S)
    assert api.asked == [ASKED] * 3


WEBHOOK = error_from_status(
    429,
    {"message": 'admission webhook "evictions.example.com" denied the request: it is being moved'},
    "POST pods team-a/p eviction",
)


POLICY = error_from_status(
    422,
    {"message": "ValidatingAdmissionPolicy 'no-evictions' denied request", "reason": "Invalid"},
    "POST pods team-a/p eviction",
)


@pytest.mark.parametrize(
    "budgets",
    [BUDGET, BUDGETS, WEBHOOK, POLICY],
    ids=["one", "several", "a webhook instead", "a policy instead"],
)
def test_a_budget_that_never_allows_it_does_not_keep_it_for_ever(budgets: KubeError) -> None:
    """Of a pod with several budgets the API server says so by an internal error."""
    api = Api(budgets, budgets)
    _evict(api, 0.0, BUDGET_RESPECTED_S)
    assert api.asked == [ASKED, ASKED, MARKED, DELETED]


def test_a_pod_is_deleted_where_the_operator_may_not_evict() -> None:
    """In kube-system, for example, where the chart permits the operator no evictions."""
    refused = Forbidden("Mizar's operator evicts no pods in namespace kube-system", status=403)
    api = Api(refused, refused)
    _evict(api, 0.0, BUDGET_RESPECTED_S)
    assert api.asked == [ASKED, ASKED, MARKED, DELETED]


def test_several_budgets_do_not_keep_a_pod_that_has_ended_already() -> None:
    api = Api(BUDGETS)
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, MARKED, DELETED]


def test_a_bounded_grace_holds_for_the_deletion_as_well() -> None:
    api = Api(BUDGET)
    _evict(api, 0.0, patience_s=0.0, grace_s=7)
    assert api.asked == [ASKED, MARKED, DELETED]
    assert api.graces == [7, 7]
    _evict(api, 0.0)
    assert api.graces[2:] == [None]


def test_a_job_learns_that_it_is_not_to_blame_for_the_deletion() -> None:
    """As from an eviction: its podFailurePolicy can ignore pods with this condition."""
    api = Api(BUDGET)
    _evict(api, 0.0, patience_s=0.0)
    (body,) = api.applied
    assert body["metadata"] == {"namespace": "team-a", "name": "p", "uid": "uid-p"}
    (condition,) = body["status"]["conditions"]
    assert "no eviction is allowed" in condition.pop("message")
    assert condition == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "lastTransitionTime": format_time(NOW),
    }


def test_the_reason_of_a_node_agent_stays() -> None:
    owner = {"type": "DisruptionTarget", "status": "True", "reason": "OwnerBack"}
    api = Api(BUDGET, conditions=[owner])
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, DELETED]
    api = Api(BUDGET, conditions=[{**owner, "status": "False"}])
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, MARKED, DELETED]


@pytest.mark.parametrize(
    "refusal",
    [
        Forbidden("no", status=403),
        Invalid("no", status=422),
        Unavailable("failed calling webhook", status=500),
        NotServed("no such path", status=404),
    ],
)
def test_a_pod_that_cannot_be_given_the_condition_is_deleted_all_the_same(
    refusal: KubeError,
) -> None:
    api = Api(BUDGET, refusal=refusal)
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, MARKED, DELETED]


def test_without_an_answer_about_the_condition_nothing_is_deleted_yet() -> None:
    api = Api(BUDGET, refusal=Unavailable("no answer"))
    with pytest.raises(Unavailable):
        _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, MARKED]


def test_another_pod_of_the_name_gets_no_condition() -> None:
    api = Api(BUDGET, there="uid-other", refusal=Conflict("uid"))
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED, MARKED]
    api = Api(BUDGET, there="")
    _evict(api, 0.0, patience_s=0.0)
    assert api.asked == [ASKED]


@pytest.mark.parametrize("gone", [NotFound("gone"), Conflict("uid")])
def test_evicting_a_pod_that_is_gone_already_is_no_error(gone: KubeError) -> None:
    api = Api(gone, there="")
    _evict(api, 0.0)
    assert api.asked == [ASKED]


def test_a_new_pod_of_the_same_name_is_neither_evicted_nor_deleted() -> None:
    api = Api(Conflict("uid"), there="uid-other")
    _evict(api, 0.0)
    assert api.asked == [ASKED]


def test_a_pod_that_changed_meanwhile_is_tried_again() -> None:
    """A Conflict does not say whether the UID differed or another client wrote at the same time."""
    with pytest.raises(Conflict):
        _evict(Api(Conflict("the object has been modified"), there="uid-p"), 0.0)


def test_a_proxy_that_answers_404_does_not_say_that_the_pod_is_gone() -> None:
    """What counts as gone is not evicted again."""
    with pytest.raises(NotServed):
        _evict(Api(error_from_status(404, {}, "POST eviction")), 0.0)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_api_server_that_is_away_or_overloaded_is_trouble(status: int) -> None:
    """It has not asked the pod's budget, so a deletion after a while would pass the budget by."""
    api = Api(*[Unavailable("no answer", status=status)] * 2)
    for at_time in (0.0, 2 * BUDGET_RESPECTED_S):
        with pytest.raises(Unavailable):
            _evict(api, at_time)
    assert api.asked == [ASKED] * 2
