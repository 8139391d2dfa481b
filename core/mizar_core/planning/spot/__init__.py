"""The plan for spot pods: `plan_spot(snapshot, now)` returns the actions that the operator has to
take."""

from mizar_core.planning.spot.actions import SpotAction, SpotPlan
from mizar_core.planning.spot.plan import plan_spot
from mizar_core.planning.spot.snapshot import SpotSnapshot, SpotView

__all__ = ["SpotAction", "SpotPlan", "SpotSnapshot", "SpotView", "plan_spot"]
