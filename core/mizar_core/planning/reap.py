"""Reaping: drains surplus shadow pods and those that have been idle for too long, the longest idle
first; keeps those whose devices a share pod needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from mizar_core.models import idle_timeout_of
from mizar_core.names import ReapReason
from mizar_core.planning.actions import DeleteShadow, Drain
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import on_node
from mizar_core.planning.first_fit import Bins
from mizar_core.planning.lifecycle import is_misplaced, retire
from mizar_core.planning.refused_nodes import was_idle_while_refused
from mizar_core.planning.scheduler_simulation import Availability
from mizar_core.planning.shadow_stage import UNPLACED, ShadowStage
from mizar_core.planning.snapshot import Key, ShadowView, ShareView, quota_key
from mizar_core.planning.surplus import is_too_many, overdrawn


def retire_surplus(draft: Draft) -> None:
    """Drain the idle shadow pods that their quota does not allow any more; those in use stay."""
    for quota in overdrawn(draft.active_quotas.values(), draft.usage.live):
        for shadow in by_idleness(draft, draft.of_quota(quota_key(quota))):
            if draft.is_live(shadow) and is_too_many(shadow, quota, draft.usage.live):
                retire(draft, shadow, ReapReason.OVER_QUOTA)


class SpareDevices:
    """Devices that no share pod waits for, per resource and node, less those of shadow pods that
    are drained."""

    def __init__(self, draft: Draft, outcomes: Mapping[str, DemandOutcome]) -> None:
        self._draft = draft
        self._left = {
            (resource, node): min(left, outcome.placement.left_soon[node])
            for resource, outcome in outcomes.items()
            for node, left in outcome.placement.left_now.items()
        }
        self._refused = _latest_refusals(outcomes)

    def has(self, shadow: ShadowView, beside: Iterable[ShadowView] = ()) -> bool:
        """Whether the shadow pod's devices are spare, if the shadow pods `beside` it go as well. On
        a node that takes no pods they always are."""
        node = self._draft.nodes.get(shadow.on_node or "")
        if node is None or not node.available:
            return True
        if self._drain_would_be_cancelled(shadow):
            return False
        others = sum(one.healthy for one in beside if _where(one) == _where(shadow))
        return self._left.get(_where(shadow), 0) - others >= self._counted(shadow)

    def _counted(self, shadow: ShadowView) -> int:
        """Its healthy devices. Where share pods wait, those too that are not offered for the moment
        although their cards work: its drain would be cancelled for one of them."""
        waited_for = bool(self._draft.waiting(shadow.resource))
        return shadow.usable if waited_for else shadow.healthy

    def _drain_would_be_cancelled(self, shadow: ShadowView) -> bool:
        """Whether the shadow pod's drain would be cancelled for a share pod whose refusal by the
        scheduler is not confirmed, since it has not been idle for long enough."""
        refused = self._refused.get(_where(shadow))
        return refused is not None and not was_idle_while_refused(shadow, refused, self._draft.now)

    def take(self, shadow: ShadowView) -> None:
        """Stop counting the shadow pod's devices as spare, since it is drained."""
        self.add(_where(shadow), -shadow.healthy)

    def add(self, where: tuple[str, str], devices: int) -> None:
        """Count so many more devices of a (resource, node) as spare."""
        if where in self._left:
            self._left[where] += devices


def _latest_refusals(outcomes: Mapping[str, DemandOutcome]) -> dict[tuple[str, str], datetime]:
    """Per resource and node, when the scheduler last began to refuse the node to a share pod that
    waits."""
    latest: dict[tuple[str, str], datetime] = {}
    for resource, outcome in outcomes.items():
        # Replicas are refused the same nodes, and there may be very many of both.
        alike = dict[frozenset[str], datetime]()
        for share in outcome.waiting:
            if (since := share.unschedulable_since) is not None:
                nodes = share.needs.excluded_nodes
                alike[nodes] = max(since, alike.get(nodes, since))
        for nodes, since in alike.items():
            for node in nodes:
                latest[resource, node] = max(since, latest.get((resource, node), since))
    return latest


def _where(shadow: ShadowView) -> tuple[str, str]:
    return shadow.resource, shadow.on_node or ""


def reap(draft: Draft, resource: str, outcome: DemandOutcome, spare: SpareDevices) -> None:
    """Drain the shadow pods of a resource that have been idle for too long, and delete those that
    still wait for cards and that no share pod needs."""
    left = _left_by_moves(draft, resource, outcome)
    for node, count in left.items():
        spare.add((resource, node), -count)
    for shadow in by_idleness(draft, _candidates(draft, resource)):
        if not (is_above_min(draft, shadow) or is_misplaced(draft, shadow)):
            continue
        if draft.stages[shadow.key] in UNPLACED:
            _drop_unneeded(draft, shadow, outcome)
        elif spare.has(shadow):
            spare.take(shadow)
            draft.do(Drain(shadow.key, draft.now, ReapReason.IDLE))
    for node, count in left.items():
        spare.add((resource, node), count)


def _candidates(draft: Draft, resource: str) -> Iterator[ShadowView]:
    """The shadow pods of a resource that have been idle for too long, or have no node."""
    for shadow in draft.of_resource(resource):
        # Most are held, and need not even be looked up.
        if shadow.on_node is not None and not is_overdue(draft, shadow):
            continue
        stage = draft.stages[shadow.key]
        if (stage is ShadowStage.READY or stage in UNPLACED) and draft.is_live(shadow):
            yield shadow


def _left_by_moves(draft: Draft, resource: str, outcome: DemandOutcome) -> Counter[str]:
    """The free devices, per node, that are kept for share pods with several resources. The
    scheduler refuses such a pod a node that has devices of only one of them. While this resource is
    moved to another node, its devices on the old one must stay, in case no card is free there: then
    the other resource is moved to this node in its turn (see `may_move`). Each share pod keeps only
    as many as it needs, on one node: it may have been refused very many, and may wait for ever."""
    found, left = Counter[str](), outcome.placement.left_now
    refused = (one for one in outcome.waiting if one.beside and one.needs.excluded_nodes)
    moved = [one for one in refused if _is_on_its_way(outcome, one)]
    bins, names = Bins(), list(left) if moved else []
    for name in names:
        bins.add(left[name], on_node(draft.nodes[name]), draft.groups(name, resource))
    for share in moved:
        anywhere = replace(share.needs, excluded_nodes=frozenset())
        if (number := bins.put(share.count, anywhere, share.groups)) is not None:
            found[names[number]] += share.count
    return found


def _is_on_its_way(outcome: DemandOutcome, share: ShareView) -> bool:
    where = outcome.placement.assignments[share.uid].availability
    return where in (Availability.COMING, Availability.BLOCKED)


def idle_until(draft: Draft, shadow: ShadowView) -> datetime | None:
    """When an idle shadow pod will have been idle for its timeout; None while it is held."""
    if shadow.held or shadow.idle_since is None:
        return None
    quota, pool = draft.active_quotas.get(shadow.quota_key), draft.pools.get(shadow.pool)
    if quota is None or pool is None:
        return None
    return shadow.idle_since + timedelta(seconds=idle_timeout_of(pool.spec, quota.spec))


def is_idle(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod could serve share pods and is not in use."""
    idle = (
        draft.stages[shadow.key] is ShadowStage.READY and not shadow.held and not shadow.contested
    )
    return idle and shadow.idle_since is not None and draft.is_live(shadow)


def is_overdue(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod has been idle for its timeout."""
    until = idle_until(draft, shadow)
    return until is not None and until <= draft.now


def is_above_min(draft: Draft, shadow: ShadowView, beside: Iterable[ShadowView] = ()) -> bool:
    """Whether the quota's `min` is kept without the shadow pod and those `beside` it."""
    entitlement, shape = draft.entitlements.of(shadow.quota_key, shadow.devices), _shape(shadow)
    least = entitlement.limits.min if entitlement else 0
    others = sum(_shape(one) == shape for one in beside)
    return draft.usage.live.of_profile(*shape) - others > least


def _shape(shadow: ShadowView) -> tuple[Key, int]:
    return shadow.quota_key, shadow.devices


def _drop_unneeded(draft: Draft, shadow: ShadowView, outcome: DemandOutcome) -> None:
    needed = shadow.key in outcome.placement.relied_on or shadow.contested
    # A pod that a later plan considers may rely on it.
    needed = needed or any(one.namespace == shadow.namespace for one in outcome.postponed)
    if draft.blocked_by(shadow) is not None and not needed:
        draft.do(DeleteShadow(shadow.key, ReapReason.UNNEEDED))


def by_idleness(draft: Draft, shadows: Iterable[ShadowView]) -> list[ShadowView]:
    """The shadow pods in the order in which they are retired: those without a node first (the
    youngest first, since it waits behind the others), then the longest idle."""

    def key(shadow: ShadowView) -> tuple[bool, int, datetime, Key]:
        unplaced = draft.stages[shadow.key] in UNPLACED
        since = shadow.idle_since or draft.now
        return not unplaced, -shadow.sequence if unplaced else 0, since, shadow.key

    return sorted(shadows, key=key)
