"""The planner: `plan(snapshot, now)` returns the actions that the operator has to take."""

from mizar_core.planning.actions import Action, Plan
from mizar_core.planning.plan import plan
from mizar_core.planning.projection import apply_plan
from mizar_core.planning.snapshot import Snapshot

__all__ = ["Action", "Plan", "Snapshot", "apply_plan", "plan"]
