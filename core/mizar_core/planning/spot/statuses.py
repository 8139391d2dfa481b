"""The statuses of quotas and pools about lending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime

from mizar_core.condition import Condition, find_condition, set_condition
from mizar_core.models import GPUPool, GPUQuota, SpotStatus
from mizar_core.names import ConditionType
from mizar_core.planning.pool_nodes import in_pool
from mizar_core.planning.snapshot import NodeView, quota_key
from mizar_core.planning.spot.actions import Borrowing, WriteLent, WriteSpotStatus
from mizar_core.planning.spot.snapshot import SpotSnapshot

NOTHING = Borrowing()


def write_quotas(
    snapshot: SpotSnapshot, borrowing: Mapping[str, Borrowing], now: datetime
) -> Iterator[WriteSpotStatus]:
    """The actions that write what each namespace borrows into its quotas, where the number of cards
    changes."""
    for quota in sorted(snapshot.quotas, key=quota_key):
        status = _status(quota, borrowing.get(quota.metadata.namespace or "", NOTHING), now)
        if status != quota.status.spot:
            yield WriteSpotStatus(quota_key(quota), status)


def _status(quota: GPUQuota, has: Borrowing, now: datetime) -> SpotStatus | None:
    known = quota.status.spot
    if not (has.in_use or has.waiting) and (quota.spec.spot is None or known is None):
        return None
    if quota.spec.spot is None and known is None:
        return None
    if known is not None and (known.in_use, known.waiting) == (has.in_use, has.waiting):
        return known
    return SpotStatus(
        in_use=has.in_use,
        waiting=has.waiting,
        recent_card_seconds=round(has.recent),
        counted_at=now,
    )


def write_lent(snapshot: SpotSnapshot, now: datetime) -> Iterator[WriteLent]:
    """The actions that write how many cards of each pool are lent, and whether it lends any, where
    that changes."""
    lent = _lent(snapshot)
    for pool in sorted(snapshot.pools, key=lambda one: one.metadata.name):
        before = find_condition(pool.status.conditions, ConditionType.LENDING)
        condition = _lending(pool, now, enabled=snapshot.enabled)
        count = lent[pool.metadata.name]
        if (count, condition) != (pool.status.cards.lent, before):
            yield WriteLent(pool.metadata.name, count, condition)


def _lent(snapshot: SpotSnapshot) -> Counter[str]:
    """How many cards spot pods have, by pool. Which card of its node a pod has is not known here:
    it counts for the first pool with this node that lends, as whole cards do in the rules for node
    agents."""
    nodes = {one.name: one for one in snapshot.nodes}
    pools = [pool for pool in snapshot.pools if pool.spec.spot.enabled]
    pools.sort(key=lambda one: one.metadata.name)
    found: Counter[str] = Counter()
    for spot in snapshot.spots:
        node = nodes.get(spot.node or "")
        if node is not None and (pool := _pool_of(node, pools)) is not None:
            found[pool.metadata.name] += spot.cards
    return found


def _pool_of(node: NodeView, pools: list[GPUPool]) -> GPUPool | None:
    return next((pool for pool in pools if in_pool(node, pool)), None)


def _lending(pool: GPUPool, now: datetime, *, enabled: bool) -> Condition | None:
    if not pool.spec.spot.enabled:
        return None
    reason, message = "Lending", "cards are lent while all their owners agree and are idle"
    if not enabled:
        reason = "NotInstalled"
        message = "nothing is lent: Mizar's chart was installed with spot.enabled: false"
    type, known = ConditionType.LENDING, pool.status.conditions
    return find_condition(set_condition(known, type, enabled, reason, message, now), type)
