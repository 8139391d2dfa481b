"""Which namespaces get a pool's default quota, and which event pods in the others get."""

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.models import GPUPool
from mizar_core.names import EventReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateQuota, CreateShadow, EmitEvent
from mizar_core.planning.snapshot import THE_QUOTA_ITSELF, Refused, ShareView
from property.plan.snapshots import NOW, at, node, pool, quota, waiting
from support.planned import actions
from support.projection import apply_plan

SELECTOR = {"matchLabels": {"gpu": "true"}}
TWO = [{"devices": 2, "max": 2}]


def granting(name: str = "pool", selector: Any = None, **spec: Any) -> GPUPool:
    default = {"profiles": TWO, "namespaceSelector": selector or {}}
    return pool(name, **{"defaultQuota": default, **spec})


def cluster(**parts: Any) -> Snapshot:
    """A share pod waits in team-a, which has no quota."""
    given = {
        "pools": (granting(),),
        "shares": (waiting("p"),),
        "nodes": (node("n1"),),
        "namespaces": {"team-a": {"gpu": "true"}},
    }
    return Snapshot(**{**given, **parts})


def granted(snapshot: Snapshot) -> list[tuple[tuple[str, str], str]]:
    return [(one.quota, one.pool) for one in actions(CreateQuota, snapshot)]


def told(snapshot: Snapshot) -> list[tuple[EventReason, str]]:
    return [(one.reason, one.message) for one in actions(EmitEvent, snapshot)]


def of_team(name: str, devices: int = 2) -> ShareView:
    return waiting(f"{name}-p", 1, f"{name}.mizar.share/gpu.{devices}", name)


def test_a_namespace_gets_the_default_of_the_pool_and_its_pods_are_not_told_that_it_has_none() -> (
    None
):
    snapshot = cluster(shares=(waiting("p"), waiting("q")))
    assert granted(snapshot) == [(("team-a", "pool"), "pool")]
    assert told(snapshot) == []


def test_from_then_on_it_is_a_quota_like_any_other() -> None:
    snapshot = cluster()
    after = apply_plan(snapshot, plan(snapshot, NOW))
    assert granted(after) == []
    (made,) = actions(CreateShadow, after)
    assert (made.pool, made.quota) == ("pool", "pool")
    at_last = apply_plan(after, plan(after, NOW))
    assert not plan(at_last, NOW).actions


@pytest.mark.parametrize(
    "parts",
    [
        {"pools": (pool(),)},
        {"shares": ()},
        {"shares": (waiting("p", node="n1"),)},
        {"quotas": (quota("team-a", "own", profiles=[{"devices": 4, "max": 1}]),)},
        {"shares": (of_team("team-a", 4),)},
        {"shares": (waiting("p", 1, "team-b.mizar.share/gpu.2"),)},
        {"namespaces": {}},
        {"namespaces": {"team-a": {"gpu": "false"}}, "pools": (granting(selector=SELECTOR),)},
        {"pools": (granting(profiles=[{"devices": 4, "cards": 2}]),)},
    ],
    ids=[
        "no default",
        "nobody waits",
        "nobody waits any more",
        "a quota of its own, of another profile",
        "a profile that the default has not",
        "another's device",
        "its labels are not known",
        "it is not selected",
        "a profile that the pool has not",
    ],
)
def test_a_namespace_gets_no_default_quota_that_it_does_not_need_or_may_not_have(
    parts: dict[str, Any],
) -> None:
    assert granted(cluster(**parts)) == []


def test_a_quota_that_is_being_deleted_is_there_until_it_is_gone() -> None:
    own = quota("team-a")
    meta = own.metadata.changed(deletion_timestamp=at(0))
    assert granted(cluster(quotas=(own.model_copy(update={"metadata": meta}),))) == []


def test_the_selector_decides_and_the_first_pool_by_name_gives() -> None:
    pools = (granting("b"), granting("a", selector=SELECTOR), granting("c"))
    teams = ("team-a", "team-b")
    snapshot = cluster(
        pools=pools,
        shares=tuple(of_team(name) for name in teams),
        namespaces={"team-a": {"gpu": "true"}, "team-b": {}},
    )
    assert granted(snapshot) == [(("team-a", "a"), "a"), (("team-b", "b"), "b")]


def test_a_shared_pool_grants_as_well() -> None:
    share = waiting("p", 1, "mizar.share/gpu.2", "team-b")
    snapshot = cluster(
        pools=(granting(tenancy="Shared"),), shares=(share,), namespaces={"team-b": {}}
    )
    assert granted(snapshot) == [(("team-b", "pool"), "pool")]


def test_a_pod_of_a_namespace_that_is_not_selected_is_told_so() -> None:
    snapshot = cluster(namespaces={"team-a": {}}, pools=(granting(selector=SELECTOR),))
    ((reason, message),) = told(snapshot)
    assert reason is EventReason.NO_QUOTA
    assert message.endswith(
        "; the default quota of pool pool does not apply to it, by its namespaceSelector"
    )


def test_what_the_api_server_refuses_is_told_and_not_asked_for_again() -> None:
    refused = Refused(("team-a", "pool"), THE_QUOTA_ITSELF, "exceeded quota: objects")
    snapshot = replace(cluster(), refused=(refused,))
    assert granted(snapshot) == []
    ((reason, message),) = told(snapshot)
    assert reason is EventReason.NO_QUOTA
    assert message.endswith(
        "; the API server refuses the default quota of pool pool: exceeded quota: objects"
    )
