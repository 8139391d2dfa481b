"""A small snapshot to start from, and what the plan made from it says."""

from typing import Any, TypeVar

from mizar_core.condition import Condition, find_condition
from mizar_core.models import GPUQuotaStatus
from mizar_core.planning import Snapshot, plan
from property.plan.snapshots import NOW, node, pool, quota

A = TypeVar("A")


def small(**parts: Any) -> Snapshot:
    """A pool, a quota of team-a for four shadow pods of profile 2, a node of four cards."""
    given = {
        "pools": (pool(),),
        "quotas": (quota("team-a", profiles=[{"devices": 2, "max": 4}]),),
        "nodes": (node("n1"),),
    }
    return Snapshot(**{**given, **parts})


def actions(kind: type[A], snapshot: Snapshot) -> list[A]:
    """The planned actions of one type."""
    return [one for one in plan(snapshot, NOW).actions if isinstance(one, kind)]


def status(snapshot: Snapshot, namespace: str = "team-a") -> GPUQuotaStatus:
    """The status of the namespace's first quota."""
    found = sorted(plan(snapshot, NOW).quotas.items())
    return next(one for key, one in found if key[0] == namespace)


def satisfied(snapshot: Snapshot) -> Condition:
    """The condition Satisfied of team-a's quota."""
    found = find_condition(status(snapshot).conditions, "Satisfied")
    assert found is not None
    return found
