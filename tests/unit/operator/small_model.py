"""The cluster that many tests begin with."""

from __future__ import annotations

from stateful.model import Model


def small_model() -> Model:
    """A node with two cards, a pool, a quota for two shadow pods of profile 2."""
    made = Model()
    made.add_node("n1")
    made.add_pool(idleTimeoutSeconds=60)
    made.add_quota("team-a", [{"devices": 2, "min": 0, "max": 2}])
    return made
