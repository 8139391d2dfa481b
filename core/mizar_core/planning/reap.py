"""Shadow pods that are too many, or idle for too long: the oldest idle first, never what somebody
needs at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from mizar_core.models import idle_timeout_of
from mizar_core.planning.actions import DeleteShadow, Drain
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.lifecycle import retire
from mizar_core.planning.refused_nodes import was_idle_while_refused
from mizar_core.planning.scheduling import Placement
from mizar_core.planning.shadow_stage import UNPLACED, ShadowStage
from mizar_core.planning.snapshot import Key, ShadowView


def retire_surplus(draft: Draft) -> None:
    """Drain what no quota allows any more, as far as it is idle; what is in use stays."""
    for shadow in by_idleness(draft, draft.shadows.values()):
        if not draft.is_live(shadow):
            continue
        if _over_max(draft, shadow) or _over_cards(draft, shadow):
            retire(draft, shadow)


def _over_max(draft: Draft, shadow: ShadowView) -> bool:
    profiles = draft.active_quotas[shadow.quota_key].spec.profiles
    limit = next((one.max for one in profiles if one.devices == shadow.devices), 0)
    return draft.usage.live.shadows[shadow.quota_key, shadow.devices] > limit


def _over_cards(draft: Draft, shadow: ShadowView) -> bool:
    ceiling = draft.active_quotas[shadow.quota_key].spec.max_cards
    return ceiling is not None and draft.usage.live.cards[shadow.quota_key] > ceiling


class SpareDevices:
    """Devices that nobody waits for, per resource and node, less those of what is drained."""

    def __init__(self, draft: Draft, outcomes: Mapping[str, DemandOutcome]) -> None:
        self._draft = draft
        self._left = {
            (resource, node): min(left, outcome.placement.left_soon[node])
            for resource, outcome in outcomes.items()
            for node, left in outcome.placement.left_now.items()
        }
        self._refused = _latest_refusals(outcomes)

    def has(self, shadow: ShadowView, beside: Iterable[ShadowView] = ()) -> bool:
        """Whether nobody needs the shadow pod's devices, were those `beside` it gone as well. On a
        node that takes no pods nobody does."""
        node = self._draft.nodes.get(shadow.on_node or "")
        if node is None or not node.available:
            return True
        if self._drain_would_be_cancelled(shadow):
            return False
        others = sum(one.healthy for one in beside if _where(one) == _where(shadow))
        return self._left.get(_where(shadow), 0) - others >= shadow.healthy

    def _drain_would_be_cancelled(self, shadow: ShadowView) -> bool:
        """Whether its drain would be called off for somebody whom the scheduler refuses its node,
        since it is not idle for long enough to show that."""
        refused = self._refused.get(_where(shadow))
        return refused is not None and not was_idle_while_refused(shadow, refused, self._draft.now)

    def take(self, shadow: ShadowView) -> None:
        """The shadow pod is drained."""
        self.add(_where(shadow), -shadow.healthy)

    def add(self, where: tuple[str, str], devices: int) -> None:
        """So many more devices of a resource are not needed on a node."""
        if where in self._left:
            self._left[where] += devices


def _latest_refusals(outcomes: Mapping[str, DemandOutcome]) -> dict[tuple[str, str], datetime]:
    """Per resource and node, when the scheduler last began to refuse it to somebody who waits."""
    latest: dict[tuple[str, str], datetime] = {}
    for resource, outcome in outcomes.items():
        for share in outcome.waiting:
            if (since := share.unschedulable_since) is not None:
                for node in share.needs.excluded_nodes:
                    latest[resource, node] = max(since, latest.get((resource, node), since))
    return latest


def _where(shadow: ShadowView) -> tuple[str, str]:
    return shadow.resource, shadow.on_node or ""


def reap(draft: Draft, resource: str, outcome: DemandOutcome, spare: SpareDevices) -> None:
    """Drain what has been idle for too long, and drop what waits for cards that nobody needs."""
    for shadow in by_idleness(draft, draft.of_resource(resource)):
        stage = draft.stages[shadow.key]
        if not draft.is_live(shadow) or not is_above_min(draft, shadow):
            continue
        if stage in UNPLACED:
            _drop_unneeded(draft, shadow, outcome.placement)
        elif stage is ShadowStage.READY and is_overdue(draft, shadow) and spare.has(shadow):
            spare.take(shadow)
            draft.do(Drain(shadow.key, draft.now))


def idle_until(draft: Draft, shadow: ShadowView) -> datetime | None:
    """When an idle shadow pod will have been idle for too long; None while it is held."""
    quota, pool = draft.active_quotas.get(shadow.quota_key), draft.pools.get(shadow.pool)
    if shadow.held or shadow.idle_since is None or quota is None or pool is None:
        return None
    return shadow.idle_since + timedelta(seconds=idle_timeout_of(pool.spec, quota.spec))


def is_idle(draft: Draft, shadow: ShadowView) -> bool:
    """Whether it could serve, and nobody uses it."""
    idle = (
        draft.stages[shadow.key] is ShadowStage.READY and not shadow.held and not shadow.contested
    )
    return idle and shadow.idle_since is not None and draft.is_live(shadow)


def is_overdue(draft: Draft, shadow: ShadowView) -> bool:
    """Whether it has been idle for too long."""
    until = idle_until(draft, shadow)
    return until is not None and until <= draft.now


def is_above_min(draft: Draft, shadow: ShadowView, beside: Iterable[ShadowView] = ()) -> bool:
    """Whether its quota's minimum is kept without it and those `beside` it."""
    entitlement, shape = draft.entitlements.of(shadow.quota_key, shadow.devices), _shape(shadow)
    least = entitlement.limits.min if entitlement else 0
    others = sum(_shape(one) == shape for one in beside)
    return draft.usage.live.shadows[shape] - others > least


def _shape(shadow: ShadowView) -> tuple[Key, int]:
    return shadow.quota_key, shadow.devices


def _drop_unneeded(draft: Draft, shadow: ShadowView, placement: Placement) -> None:
    needed = shadow.key in placement.relied_on or shadow.contested
    if draft.blocked_by(shadow) is not None and not needed:
        draft.do(DeleteShadow(shadow.key))


def by_idleness(draft: Draft, shadows: Iterable[ShadowView]) -> list[ShadowView]:
    """Those without a node first (the youngest first: it waits behind the others), then the
    longest idle."""

    def key(shadow: ShadowView) -> tuple[bool, int, datetime, Key]:
        unplaced = draft.stages[shadow.key] in UNPLACED
        since = shadow.idle_since or draft.now
        return not unplaced, -shadow.sequence if unplaced else 0, since, shadow.key

    return sorted(shadows, key=key)
