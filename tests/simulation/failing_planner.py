"""A planner that fails for some of a tenant's objects, as one with a bug would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from random import Random

from mizar_core.planning import Plan, Snapshot, plan
from mizar_core.planning.snapshot import Key
from simulation.users import NAMESPACES

RARELY = 0.1
BUG = "a bug (simulated)"

Finds = Callable[[Snapshot, str], bool]

FINDS: dict[str, Finds] = {
    "share pods": lambda snapshot, tenant: any(
        one.namespace == tenant and one.name[-1] in "159" for one in snapshot.shares
    ),
    "shadow pods": lambda snapshot, tenant: any(
        one.namespace == tenant and one.healthy for one in snapshot.shadows
    ),
    "quota": lambda snapshot, tenant: any(
        one.metadata.namespace == tenant for one in snapshot.quotas
    ),
}


class FailingPlanner:
    """`tenant`: the namespace for whose objects it fails; None if it never does. `unsettled`: the
    shadow pods about which a plan disagreed with itself."""

    def __init__(self, random: Random) -> None:
        rolled, tenant, kind = random.random(), random.choice(NAMESPACES), random.choice([*FINDS])
        self.tenant = tenant if rolled < RARELY else None
        self._finds = FINDS[kind]
        self.unsettled: frozenset[Key] = frozenset()

    def plan(self, snapshot: Snapshot, now: datetime) -> Plan:
        """What `plan` returns; ArithmeticError if the snapshot has one of the objects."""
        if self.tenant is not None and self._finds(snapshot, self.tenant):
            raise ArithmeticError(BUG)
        planned = plan(snapshot, now)
        self.unsettled |= planned.unsettled
        return planned
