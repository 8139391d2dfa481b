"""Demand: decides how many shadow pods to create, or drains to cancel, for the share pods that
wait, and keeps the `min` of each quota warm for future ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mizar_core.names import CreationReason, EventReason
from mizar_core.planning.actions import CancelDrain
from mizar_core.planning.creation_checks import (
    Creation,
    Denial,
    creation_elsewhere,
    creation_for,
    denial_for,
    has_node,
    scheduler_refuses,
    too_many_devices,
    unoffered_devices,
)
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import on_node
from mizar_core.planning.first_fit import Bins
from mizar_core.planning.lifecycle import is_misplaced
from mizar_core.planning.postponed import JUDGED_MAX, without_postponed
from mizar_core.planning.quotas import Entitlement
from mizar_core.planning.refused_nodes import RefusedNodes, refused_on_every_node
from mizar_core.planning.scheduler_simulation import (
    Assignment,
    Availability,
    Placement,
    hardest_first,
    is_admitted,
    schedule,
)
from mizar_core.planning.shadow_stage import ShadowStage, never_offered
from mizar_core.planning.snapshot import Key, ShadowView, ShareView

Choice = Creation | Denial | None

POSTPONED = Denial(
    EventReason.WAITING_FOR_SHADOW,
    f"the waiting pods of its namespace have more than {JUDGED_MAX} different node constraints, of "
    f"which {JUDGED_MAX} are considered at a time: this pod is considered later",
)


@dataclass
class DemandOutcome:
    """The share pods that wait for a resource, and where they find devices, once everything is
    planned that can be done for them. `denials`: why a pod gets no shadow pod, by its UID.
    `deferred`: whether some of them fit no present node, so that their shadow pods are created
    after all others. `postponed`: the pods that are left for a later plan."""

    waiting: list[ShareView]
    placement: Placement
    denials: dict[str, Denial] = field(default_factory=dict)
    deferred: bool = False
    postponed: list[ShareView] = field(default_factory=list)

    @property
    def awaits_move(self) -> bool:
        """Whether devices may have to be moved to another node in a turn that is still to come: see
        `may_move`."""
        found = (self.placement.assignments[one.uid] for one in self.waiting if one.beside)
        return any(one.availability is Availability.REFUSED for one in found)


def keep_warm(draft: Draft, entitlements: Iterable[Entitlement]) -> None:
    """Plan shadow pods until every entitlement has at least its `min`, as far as the quota's cards
    suffice."""
    for entitlement in entitlements:
        there = draft.usage.live.of_profile(*entitlement.shape)
        for _ in range(entitlement.limits.min - there):
            if not _cancel_one_drain(draft, entitlement) and not _create_one(draft, entitlement):
                break


def meet_all_demand(draft: Draft) -> dict[str, DemandOutcome]:
    """Meet the demand for all resources: first that of share pods that fit a present node, since
    shadow pods for the others, which wait for future nodes, could use up the quota."""
    outcomes = {resource: meet_demand(draft, resource) for resource in draft.resources()}
    deferred = [resource for resource, one in outcomes.items() if one.deferred]
    claimed = _claimed(draft, outcomes.values()) if deferred else ()
    for resource in deferred:
        outcomes[resource] = meet_demand(draft, resource, claimed)
    return outcomes


def _claimed(draft: Draft, outcomes: Iterable[DemandOutcome]) -> tuple[Entitlement, ...]:
    """The entitlements to shadow pods for which others, on their way out, make room: for share pods
    that fit a present node."""
    found = (
        denial.entitlement
        for outcome in outcomes
        for share in outcome.waiting
        if (denial := outcome.denials.get(share.uid)) is not None
        and denial.entitlement is not None
        and draft.usage.live.limit_reached(denial.entitlement) is None
        and has_node(draft, share)
    )
    return tuple({one.shape: one for one in found}.values())


def meet_demand(
    draft: Draft, resource: str, claimed: tuple[Entitlement, ...] | None = None
) -> DemandOutcome:
    """Cancel drains and create shadow pods until no further share pod can be helped. `claimed`: if
    given, shadow pods are created also for share pods that fit no present node, beside one of each
    of these entitlements.

    Share pods are scheduled again after each round, so that the next plan, which sees the same
    devices, arrives at the same placement and plans nothing.
    """
    waiting, postponed = pending_demand(draft, resource)
    unoffered = unoffered_devices(draft, resource) if waiting else ""
    elsewhere = partial(creation_elsewhere, unoffered=unoffered)
    while True:
        placement = schedule(draft, resource, waiting)
        planned = len(draft.actions)
        blocked = [one for one in waiting if _availability(placement, one) is Availability.BLOCKED]
        unserved = [one for one in waiting if _availability(placement, one) is Availability.NONE]
        refused = [one for one in waiting if _availability(placement, one) is Availability.REFUSED]
        helped = _cancel_drains(draft, resource, blocked + unserved, placement)
        open_, later = [one for one in unserved if one.uid not in helped], list[ShareView]()
        choose = creation_for if claimed is None else partial(_creation_without_node, claimed)
        denials = _create(draft, open_, choose, later if claimed is None else None)
        denials |= _create(draft, refused, elsewhere)
        if len(draft.actions) == planned:
            denials |= dict(_in_vain(draft, waiting, placement, unoffered))
            return _outcome(waiting, placement, denials, postponed, deferred=bool(later))


def _in_vain(
    draft: Draft, waiting: Iterable[ShareView], placement: Placement, unoffered: str
) -> Iterator[tuple[str, Denial]]:
    """The share pods whose devices are free and that the scheduler refuses on every node.
    `unoffered`: as for `scheduler_refuses`."""
    for share in waiting:
        free = _availability(placement, share) is Availability.FREE
        if free and refused_on_every_node(draft, share):
            yield share.uid, scheduler_refuses(share, unoffered)


def _outcome(
    waiting: list[ShareView],
    placement: Placement,
    denials: dict[str, Denial],
    postponed: list[ShareView],
    *,
    deferred: bool,
) -> DemandOutcome:
    for share in postponed:
        placement.assignments[share.uid] = Assignment(Availability.POSTPONED)
        denials[share.uid] = POSTPONED
    return DemandOutcome([*waiting, *postponed], placement, denials, deferred, postponed)


def pending_demand(draft: Draft, resource: str) -> tuple[list[ShareView], list[ShareView]]:
    """The waiting share pods that devices of the resource could serve, the hardest to place first,
    each excluding the nodes that the scheduler has refused it; and those that are postponed."""
    found = [one for one in draft.waiting(resource) if is_admitted(draft, one)]
    if not found:
        return [], []
    judged, postponed = without_postponed(found, draft.now)
    refused = RefusedNodes(draft, resource)
    return sorted((refused.excluding_refused(one) for one in judged), key=hardest_first), postponed


def _availability(placement: Placement, share: ShareView) -> Availability:
    return placement.assignments[share.uid].availability


def _cancel_drains(
    draft: Draft,
    resource: str,
    waiting: Iterable[ShareView],
    placement: Placement,
) -> set[str]:
    """Cancel the drains that would help, beside the devices that are left on their nodes; returns
    the UIDs of the share pods that are helped."""
    candidates, left = _cancellable(draft, resource), placement.left_soon.copy()
    drains, groups = Bins(), placement.groups
    for shadow in candidates:
        _add_node(draft, drains, shadow, _with_left(shadow, left), groups)
    bins, helped = Bins(), set[str]()
    for share in waiting:
        fits = bins.put(share.count, share.needs, share.groups) is not None
        if not fits and too_many_devices(share) is None:
            chosen = _pick_drain(draft, candidates, drains, share, left)
            if chosen is None:
                continue
            draft.do(CancelDrain(chosen.key))
            _add_node(draft, bins, chosen, _with_left(chosen, left), groups)
            left[chosen.on_node or ""] = 0
            fits = bins.put(share.count, share.needs, share.groups) is not None
        if fits:
            helped.add(share.uid)
    return helped


def _with_left(shadow: ShadowView, left: Mapping[str, int]) -> int:
    """The shadow pod's devices, and those that are `left` on its node."""
    return shadow.usable + left.get(shadow.on_node or "", 0)


def _add_node(
    draft: Draft,
    bins: Bins,
    shadow: ShadowView,
    free: int,
    groups: Mapping[str, frozenset[str]],
) -> None:
    node = draft.nodes[shadow.on_node or ""]
    there = groups.get(node.name) or draft.groups(node.name, shadow.resource)
    bins.add(free, on_node(node), there)


def _cancellable(draft: Draft, resource: str) -> list[ShadowView]:
    """Draining shadow pods that the scheduler could use again, the latest drain first."""
    found = [one for one in draft.of_resource(resource) if _is_cancellable(draft, one)]
    return sorted(found, key=_last_asked_first)


def _last_asked_first(shadow: ShadowView) -> tuple[float, Key]:
    asked = shadow.pod.drain_asked if shadow.pod else None
    return -(asked.timestamp() if asked else 0.0), shadow.key


def _is_cancellable(draft: Draft, shadow: ShadowView) -> bool:
    if draft.stages[shadow.key] is not ShadowStage.DRAINING or not draft.is_wanted(shadow):
        return False
    if draft.is_given_up(shadow) or (shadow.drained and never_offered(shadow)):
        return False
    node = draft.nodes.get(shadow.on_node or "")
    return node is not None and node.available


def _pick_drain(
    draft: Draft,
    candidates: Sequence[ShadowView],
    drains: Bins,
    share: ShareView,
    left: Mapping[str, int],
) -> ShadowView | None:
    """The first candidate that has enough devices for the share pod, with those `left` on its node,
    that the share pod may use, and whose quota allows it. `drains`: a bin per candidate, which is
    used up when the candidate is considered: a quota that does not allow it now will not allow it
    later in this round."""
    while (number := drains.put(share.count, share.needs, share.groups)) is not None:
        drains.fill(number)
        shadow = candidates[number]
        if _with_left(shadow, left) < share.count:
            continue
        entitlement = draft.entitlements.of(shadow.quota_key, shadow.devices)
        if entitlement is not None and draft.usage.live.limit_reached(entitlement) is None:
            return shadow
    return None


def _cancel_one_drain(draft: Draft, entitlement: Entitlement) -> bool:
    if draft.usage.live.limit_reached(entitlement) is not None:
        return False
    for shadow in _cancellable(draft, entitlement.resource):
        # One that has left its pool is drained whatever `min` says, and would be again at once.
        if shadow.quota_key == entitlement.key and not is_misplaced(draft, shadow):
            draft.do(CancelDrain(shadow.key))
            return True
    return False


def _creation_without_node(
    claimed: tuple[Entitlement, ...], draft: Draft, share: ShareView
) -> Choice:
    """As `creation_for`; a denial for a share pod that fits no present node if its quota does not
    allow its shadow pod beside the `claimed` ones, whose room it would take again and again."""
    chosen = creation_for(draft, share)
    if not isinstance(chosen, Creation):
        return chosen
    others = [one for one in claimed if one.key == chosen.entitlement.key]
    if not others or has_node(draft, share):
        return chosen
    used = draft.usage.live.only(chosen.entitlement.key)
    for one in others:
        used.count(one.key, one.profile.devices, one.profile.cards)
    if used.limit_reached(chosen.entitlement) is None:
        return chosen
    return Denial(
        EventReason.QUOTA_EXCEEDED,
        f"quota {chosen.entitlement.key[1]} makes room for a share pod that fits a present node, "
        "and this one fits none",
    )


def _create_one(draft: Draft, entitlement: Entitlement) -> bool:
    if denial_for(draft, entitlement) is not None:
        return False
    needs = draft.feasible_nodes.of_pool(entitlement.pool.metadata.name)
    draft.create(entitlement, needs, CreationReason.WARM)
    return True


def _create(
    draft: Draft,
    waiting: Iterable[ShareView],
    choose: Callable[[Draft, ShareView], Choice],
    later: list[ShareView] | None = None,
) -> dict[str, Denial]:
    """Create the shadow pods that `choose` returns for the waiting pods; returns its denials, by
    the UID of the pod. `later`: if given, receives the pods that fit no present node, for which no
    shadow pod is created then."""
    bins, denials = Bins(), dict[str, Denial]()
    for share in waiting:
        if bins.put(share.count, share.needs, share.groups) is not None:
            continue
        chosen = choose(draft, share)
        if later is not None and isinstance(chosen, Creation) and not has_node(draft, share):
            later.append(share)
        elif isinstance(chosen, Creation):
            action = draft.create(chosen.entitlement, chosen.needs, CreationReason.DEMAND)
            bins.add(action.devices, draft.feasible_nodes.accepts(action.pool, action.needs))
            bins.put(share.count, share.needs, share.groups)
        elif chosen is not None:
            denials[share.uid] = chosen
    return denials
