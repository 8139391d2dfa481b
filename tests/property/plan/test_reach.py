"""The generated clusters reach every decision of the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mizar_core.names import EventReason
from mizar_core.planning import plan
from mizar_core.planning.actions import Action, CancelDrain, Drain, EmitEvent
from property.plan import test_plan
from property.plan.clusters import changed, cluster
from property.plan.snapshots import NOW
from support.effort import times

CLUSTERS = 200
QUICK_CLUSTERS = 80
"""With `make check`; of the decisions of OFTEN, the rarest occurs in one of them."""
OFTEN = {
    "CancelDrain",
    "CreatePod",
    "CreateQuota",
    "CreateShadow",
    "DeleteShadow",
    "Drain: AgentSilent",
    "Drain: Idle",
    "Drain: OverQuota",
    "Drain: Preempted",
    "Drain: Replaced",
    "Drain: Unwanted",
    "EvictShare",
    "LetPreempt",
    "Recarve",
    "RemoveFinalizer",
    "SetInUse",
    *(
        f"EmitEvent: {reason}"
        for reason in (
            EventReason.NO_CARD_FREE,
            EventReason.QUOTA_EXCEEDED,
            EventReason.SHADOW_LOST,
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
    for seed in range(times(CLUSTERS, QUICK_CLUSTERS)):
        snapshot = changed(seed)
        actions = plan(snapshot, NOW).actions
        seen.update({name for one in actions for name in _names(one)})
        if snapshot == cluster(seed):
            _nobody_needs_what_is_drained(seed, actions)
        for holds in PROPERTIES:
            holds.hypothesis.inner_test(snapshot)  # type: ignore[attr-defined]
    assert not OFTEN - seen.keys(), seen


def _nobody_needs_what_is_drained(seed: int, actions: Sequence[Action]) -> None:
    """Where quotas are overdrawn or cards fail, a plan may drain and keep the same shadow pod: the
    drain of a larger one makes room for it."""
    drained = {one.shadow for one in actions if isinstance(one, Drain)}
    revived = {one.shadow for one in actions if isinstance(one, CancelDrain)}
    assert not drained & revived, f"cluster {seed}: somebody needs what is drained: {actions}"


def _names(action: Action) -> Iterator[str]:
    kind = type(action).__name__
    match action:
        case Drain():
            yield f"{kind}: {action.reason}"
        case EmitEvent():
            yield f"{kind}: {action.reason}"
        case _:
            yield kind
