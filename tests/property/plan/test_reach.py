"""The generated clusters reach every decision of the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mizar_core.names import EventReason
from mizar_core.planning import plan
from mizar_core.planning.actions import Action, CancelDrain, Drain, EmitEvent
from property.plan import test_plan
from property.plan.clusters import cluster
from property.plan.snapshots import NOW
from support.effort import times

CLUSTERS = 200
OFTEN = {
    "CancelDrain",
    "CreatePod",
    "CreateShadow",
    "DeleteShadow",
    "Drain: AgentSilent",
    "Drain: Idle",
    "Drain: Preempted",
    "Drain: Replaced",
    "EvictShare",
    "LetPreempt",
    "Recarve",
    "RemoveFinalizer",
    "SetInUse",
    *(
        f"EmitEvent: {reason}"
        for reason in (
            EventReason.QUOTA_EXCEEDED,
            EventReason.WAITING_FOR_SHADOW,
            EventReason.NO_NODE_FITS,
            EventReason.SHADOW_REAPED,
        )
    ),
}
"""The decisions that must occur in the plans of the generated clusters."""


PROPERTIES = (
    test_plan.test_planning_again_plans_nothing,
    test_plan.test_takes_nothing_from_a_holder,
    test_plan.test_idleness_costs_nobody_the_minimum,
)
"""The decisions about situations that are rare in other snapshots."""


def test_plans_have_all_that_there_is_in_them_and_the_properties_hold() -> None:
    seen = Counter[str]()
    for seed in range(times(CLUSTERS)):
        snapshot = cluster(seed)
        actions = plan(snapshot, NOW).actions
        seen.update({name for one in actions for name in _names(one)})
        drained = {one.shadow for one in actions if isinstance(one, Drain)}
        revived = {one.shadow for one in actions if isinstance(one, CancelDrain)}
        assert not drained & revived, f"cluster {seed}: somebody needs what is drained: {actions}"
        for holds in PROPERTIES:
            holds.hypothesis.inner_test(snapshot)  # type: ignore[attr-defined]
    assert not OFTEN - seen.keys(), seen


def _names(action: Action) -> Iterator[str]:
    kind = type(action).__name__
    match action:
        case Drain():
            yield f"{kind}: {action.reason}"
        case EmitEvent():
            yield f"{kind}: {action.reason}"
        case _:
            yield kind
