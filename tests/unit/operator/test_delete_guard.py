"""Invariant 3: the guard asks the API server, live, for everything that may use a shadow pod, and
counts only objects that belong to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from mizar_core.names import ANNOTATION_CARVE, ANNOTATION_DRAIN, ANNOTATION_RESOURCE, EventReason
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotServed, error_from_status
from mizar_kube.kinds import NODE, POD, SHADOW_POD, Kind, Object, Ref
from mizar_operator.delete_guard import ConfirmedUnused, StillInUse, confirm_unused
from stateful.harness import KINDS
from unit.operator.drained import GPU, Cluster

Change = Callable[[Cluster], None]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def _ask(cluster: Cluster, change: Change) -> ConfirmedUnused:
    """The guard's answer when something has changed that the caches do not know yet."""
    known = cluster.known
    change(cluster)
    client = cast(KubeClient, cluster.model.api)
    return asyncio.run(confirm_unused(client, cluster.operator.caches, known))


def _condition(shadow: Object, type: str, status: str, reason: str) -> None:
    (found,) = (one for one in shadow["status"]["conditions"] if one["type"] == type)
    found.update(status=status, reason=reason)


def _holds(shadow: Object) -> None:
    holder = {"namespace": "team-a", "name": "late", "container": "main"}
    shadow["status"]["devices"][0]["holder"] = holder


def _not_drained(cluster: Cluster) -> None:
    _condition(cluster.shadow, "Draining", "False", "NotAsked")
    cluster.pod["metadata"]["annotations"].pop(ANNOTATION_DRAIN, None)


def _bound(cluster: Cluster) -> None:
    cluster.model.add_share("team-a", "late", GPU, 1)
    cluster.model._bind(cluster.find_pod("late"), "n1")


def test_what_nobody_uses_is_found_with_both_its_objects(cluster: Cluster) -> None:
    certain = _ask(cluster, lambda _: None)
    assert certain == ConfirmedUnused(cluster.shadow, cluster.pod)


@pytest.mark.parametrize("kind", [NODE, POD, SHADOW_POD])
def test_a_page_of_a_proxy_does_not_say_that_an_object_is_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """A shadow pod on a node that is gone may be deleted at once, for example."""
    real = cluster.model.api.get

    async def get(ref: Ref, **how: Any) -> Object:
        if ref.kind == kind:
            raise error_from_status(404, {}, f"GET {ref}")
        return await real(ref, **how)

    monkeypatch.setattr(cluster.model.api, "get", get)
    with pytest.raises(NotServed):
        _ask(cluster, lambda _: None)


def test_others_are_read_only_where_somebody_may_have_their_devices(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that is emptied of n shadow pods would be asked for n times as many."""
    read, real = [], cluster.model.api.get

    async def get(ref: Ref, **how: Any) -> Object:
        read.append(ref.name)
        return await real(ref, **how)

    monkeypatch.setattr(cluster.model.api, "get", get)
    beside = cluster.beside["metadata"]["name"]
    _ask(cluster, lambda _: None)
    assert read.count(beside) == 1
    # The ShadowPod and its pod, once each.
    assert read.count(cluster.shadow["metadata"]["name"]) == 2
    read.clear()
    _ask(cluster, lambda one: one.model.api.remove(one.find_pod("two")))
    assert read and beside not in read


def test_a_pod_that_is_bound_while_other_shadow_pods_are_read_counts_as_a_user(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, beside = cluster.model.api.get, cluster.beside["metadata"]["name"]

    async def get(ref: Ref, **how: Any) -> Object:
        if ref.name == beside:
            _bound(cluster)
        return await real(ref, **how)

    monkeypatch.setattr(cluster.model.api, "get", get)
    with pytest.raises(StillInUse, match="team-a/late uses it"):
        _ask(cluster, lambda _: None)


MEANWHILE: dict[str, tuple[Change, str]] = {
    "it was offered again": (
        lambda one: one.pod["metadata"]["annotations"].pop(ANNOTATION_DRAIN),
        "it has not been drained",
    ),
    "the node agent is at another drain": (
        lambda one: _condition(one.shadow, "Draining", "Unknown", "InProgress"),
        "it has not been drained",
    ),
    "somebody holds a device": (lambda one: _holds(one.shadow), "team-a/late uses it"),
    "it is said to be in use": (
        lambda one: _condition(one.shadow, "PodInUsing", "True", "Allocating"),
        "a share pod uses it",
    ),
    "somebody was bound": (_bound, "team-a/late uses it"),
    "one of two devices is elsewhere": (
        lambda one: one.beside["status"]["devices"][0].pop("holder"),
        "team-a/two uses it",
    ),
    "what had the devices is gone": (
        lambda one: one.model.api.remove(one.beside),
        "team-a/two uses it",
    ),
}


@pytest.mark.parametrize(("change", "why"), MEANWHILE.values(), ids=MEANWHILE)
def test_what_the_caches_do_not_know_counts(cluster: Cluster, change: Change, why: str) -> None:
    """This holds even if, by all that is known, the shadow pod is drained."""
    with pytest.raises(StillInUse) as found:
        _ask(cluster, change)
    assert found.value.why.startswith(why)


def _ended(cluster: Cluster) -> None:
    cluster.pod["status"]["phase"] = "Failed"


OUT_OF_USE: dict[str, Change] = {
    "its pod is gone": lambda one: one.model.api.remove(one.pod),
    "its pod has ended": _ended,
    "its pod is being deleted": lambda one: one.model.api.start_delete(one.pod),
    "it lost a card": lambda one: _condition(
        one.shadow, "Ready", "False", str(EventReason.CARD_LOST)
    ),
}


@pytest.mark.parametrize("change", OUT_OF_USE.values(), ids=OUT_OF_USE)
def test_what_has_no_cards_any_more_need_not_be_drained(cluster: Cluster, change: Change) -> None:
    """Nor could it be drained."""

    def both(one: Cluster) -> None:
        _not_drained(one)
        change(one)

    assert _ask(cluster, both).shadow == cluster.shadow


@pytest.mark.parametrize("change", OUT_OF_USE.values(), ids=OUT_OF_USE)
def test_a_pod_that_uses_a_shadow_pod_without_cards_still_counts_as_a_user(
    cluster: Cluster, change: Change
) -> None:
    """No other shadow pod may get its device IDs while a container has them."""

    def all_three(one: Cluster) -> None:
        _not_drained(one)
        _bound(one)
        _holds(one.shadow)
        change(one)

    with pytest.raises(StillInUse, match="team-a/late uses it"):
        _ask(cluster, all_three)


def _never_reported(cluster: Cluster) -> None:
    """As it is where no node agent runs."""
    cluster.shadow["status"] = {"phase": "Draining"}


def test_what_no_node_agent_answers_for_was_never_offered(cluster: Cluster) -> None:
    assert _ask(cluster, _never_reported).shadow == cluster.shadow


def _asked_anew(cluster: Cluster) -> None:
    cluster.pod["metadata"]["annotations"][ANNOTATION_DRAIN] = "2026-01-31T13:00:00Z"


def _reported(cluster: Cluster) -> None:
    cluster.shadow["status"]["node"] = "n1"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_asked_anew, "it has not been drained"),
        (_reported, "it has not been drained"),
        (_bound, "team-a/late uses it"),
    ],
)
def test_no_node_agent_may_answer_for_it_meanwhile(
    cluster: Cluster, change: Change, why: str
) -> None:
    """It might offer the devices before it sees a drain that was just asked for."""

    def both(one: Cluster) -> None:
        _never_reported(one)
        change(one)

    with pytest.raises(StillInUse, match=why):
        _ask(cluster, both)


def test_another_pod_of_the_name_is_not_its_pod(cluster: Cluster) -> None:
    def replaced(one: Cluster) -> None:
        one.pod["metadata"]["ownerReferences"][0]["uid"] = "another"

    assert _ask(cluster, replaced) == ConfirmedUnused(cluster.shadow, None)


def test_a_pod_that_is_no_shadow_pods_is_not_its_pod(cluster: Cluster) -> None:
    def replaced(one: Cluster) -> None:
        one.pod["metadata"]["labels"].clear()

    assert _ask(cluster, replaced) == ConfirmedUnused(cluster.shadow, None)


def test_another_shadow_pod_of_the_name_is_not_the_one(cluster: Cluster) -> None:
    def replaced(one: Cluster) -> None:
        one.shadow["metadata"]["uid"] = "another"

    assert _ask(cluster, replaced) == ConfirmedUnused(None, cluster.pod)


def _offers(cluster: Cluster, resource: str) -> None:
    """The shadow pod beside this one offers another resource."""
    cluster.beside["metadata"]["annotations"][ANNOTATION_RESOURCE] = resource
    notes = cluster.find_pod(cluster.beside["metadata"]["name"])["metadata"]["annotations"]
    carve = json.loads(notes[ANNOTATION_CARVE])
    notes[ANNOTATION_CARVE] = json.dumps({**carve, "resource": resource})


def _bound_with_devices_of_another_pool(cluster: Cluster) -> None:
    """The pod asks for a device of two pools, and the node agent has reported only the one of the
    other pool, whose shadow pod is beside this one and of a profile with as many devices."""
    model, other = cluster.model, "team-a.cards.example/gpu.2"
    _offers(cluster, other)
    holder = {"namespace": "team-a", "name": "late", "container": "other"}
    cluster.beside["status"]["devices"][0]["holder"] = holder
    model.add_share("team-a", "late", GPU, 1)
    late, two = cluster.find_pod("late"), cluster.find_pod("two")
    limits = {other: "1"}
    resources = {"limits": limits, "requests": limits}
    late["spec"]["containers"].append({"name": "other", "resources": resources})
    two["spec"]["containers"][0]["resources"] = {"limits": {other: "2"}, "requests": {other: "2"}}
    model._bind(late, "n1")
    cluster.operator.sync(KINDS)


def test_devices_of_another_pool_are_not_those_that_a_pod_is_about_to_get(cluster: Cluster) -> None:
    with pytest.raises(StillInUse, match="team-a/late uses it"):
        _ask(cluster, _bound_with_devices_of_another_pool)
