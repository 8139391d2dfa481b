"""The planner: `plan(snapshot, now)` returns the actions that the operator has to take."""

from mizar_core.planning.actions import Plan
from mizar_core.planning.plan import plan
from mizar_core.planning.snapshot import Snapshot

__all__ = ["Plan", "Snapshot", "plan"]
