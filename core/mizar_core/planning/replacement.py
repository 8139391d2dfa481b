"""Replaces shadow pods that are idle or fit no present node if their quota allows no more and a
share pod waits that cannot use them, because of their node or profile or because the scheduler
refuses it their node. As many as necessary are replaced, and only if a node has cards for the new
one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mizar_core.names import EventReason, ReapReason
from mizar_core.planning.creation_checks import Denial, has_node
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import on_node
from mizar_core.planning.first_fit import Bins
from mizar_core.planning.lifecycle import retire, waits_for_silent_agent
from mizar_core.planning.preempt_idle import waits_for_cards
from mizar_core.planning.quotas import Entitlement
from mizar_core.planning.reap import SpareDevices, by_idleness, is_above_min, is_idle
from mizar_core.planning.scheduler_simulation import Availability
from mizar_core.planning.shadow_stage import ShadowStage, agent_silence
from mizar_core.planning.snapshot import Attempt, Key, ShadowView, ShareView
from mizar_core.quantities import counted

Place = tuple[str, str]
"""(resource, node)."""


def replace_idle(draft: Draft, outcomes: dict[str, DemandOutcome], spare: SpareDevices) -> None:
    """Retire shadow pods, idle or without a node, that use up the quota for a shadow pod that a
    share pod waits for."""
    replacements, helped = _Replacements(draft, spare), list[tuple[DemandOutcome, str, Key]]()
    for outcome in outcomes.values():
        coming, kept = Bins(), _kept_in_vain(outcome)
        for share in outcome.waiting:
            denied = outcome.denials.get(share.uid)
            if denied is None or denied.entitlement is None:
                continue
            if not has_node(draft, share):
                outcome.denials[share.uid] = _without_node(denied)
                continue
            assignment = outcome.placement.assignments[share.uid]
            where = share.resource, assignment.node or ""
            spare.add(where, kept[assignment.node])
            attempt = _attempt(share, assignment.availability)
            if _fits(coming, share) or replacements.make_room(
                share, denied.entitlement, coming, attempt, where
            ):
                helped.append((outcome, share.uid, denied.entitlement.key))
            elif silence := replacements.silence(denied.entitlement.key):
                outcome.denials[share.uid] = replace(denied, message=f"{denied.message}; {silence}")
            spare.add(where, -kept[assignment.node])
    quotas = {quota for _, _, quota in helped}
    denials = {quota: _replacement_denial(draft, quota) for quota in quotas}
    for outcome, uid, quota in helped:
        outcome.denials[uid] = denials[quota]


def _without_node(denied: Denial) -> Denial:
    """The denial of a share pod that would not have a node if its quota allowed more."""
    if denied.reason is not EventReason.QUOTA_EXCEEDED:
        return denied
    return replace(denied, message=f"{denied.message}; no present node fits the pod either")


def _kept_in_vain(outcome: DemandOutcome) -> Counter[str | None]:
    """Devices per node that are kept for share pods that the scheduler refuses that node; a
    replacement for such a share pod may use them up."""
    kept = Counter[str | None]()
    for share in outcome.waiting:
        if node := outcome.placement.assignments[share.uid].node:
            kept[node] += share.count
    return kept


def _fits(coming: Bins, share: ShareView) -> bool:
    return coming.put(share.count, share.needs, share.groups) is not None


def _attempt(share: ShareView, availability: Availability) -> Attempt:
    """The attempt to replace for a share pod. Where the scheduler refuses a node, it is not known
    whether another will do, so there is one attempt at a time for all share pods of an owner. Each
    of a pod's several resources has attempts of its own: otherwise, the one whose turn begins when
    the delay after the last attempt ends would be moved each time, and the others never."""
    who = share.owner if availability is Availability.REFUSED and share.owner else share.uid
    which = f"/{share.resource}" if share.beside else ""
    return Attempt(f"replace/{who}{which}", share.uid)


def _replacement_denial(draft: Draft, quota: Key) -> Denial:
    """Why a new shadow pod has to wait for others of its quota to go, and whether they go at once
    or when their users have ended."""
    found = draft.of_quota(quota)
    going = [one for one in found if not (draft.is_live(one) or draft.is_stranded(one))]
    if going and all(waits_for_silent_agent(draft, one) for one in going):
        silence = agent_silence(going[0])
        return Denial(
            EventReason.NODE_AGENT_SILENT,
            f"a shadow pod that it cannot use is still in the way: {silence}",
        )
    if going and all(one.held or draft.stranded_at(one) for one in going):
        return Denial(EventReason.QUOTA_EXCEEDED, _stays(draft, quota[1], going))
    return Denial(
        EventReason.WAITING_FOR_SHADOW,
        f"a shadow pod of quota {quota[1]} that it cannot use is being replaced",
    )


def _stays(draft: Draft, quota: str, going: list[ShadowView]) -> str:
    """Why the shadow pods of the quota that are going stay for now."""
    for one in going:
        if draft.stranded_at(one):
            return (
                f"shadow pod {one.name} counts against quota {quota} until its grace period is "
                f"over: its node {one.on_node} does not confirm that it has ended"
            )
    return (
        f"{counted(len(going), 'shadow pod')} of quota {quota}, closed to new pods, must stay until"
        " the share pods that use them end"
    )


@dataclass(frozen=True, slots=True)
class _Idle:
    """The shadow pods of a quota that may be replaced, found once, since very many share pods may
    ask for them. `spare`: those that fit no present node, and those that are idle and whose devices
    no share pod waits for, in the order in which they are replaced. `by_place`: all idle ones."""

    spare: dict[Key, ShadowView]
    by_place: Mapping[Place, dict[Key, ShadowView]]

    def drop(self, shadow: ShadowView) -> None:
        """Forget a shadow pod that is retired."""
        self.spare.pop(shadow.key, None)
        self.by_place.get(_place(shadow), {}).pop(shadow.key, None)


class _Replacements:
    """The replacements of one plan. `_left`: the usage of quotas once drained shadow pods are gone
    and their replacements exist."""

    def __init__(self, draft: Draft, spare: SpareDevices) -> None:
        self._draft = draft
        self._spare = spare
        self._cards: dict[str, Bins] = {}
        self._left = draft.usage.live.copy()
        self._idle: dict[Key, _Idle] = {}
        self._silence: dict[Key, str | None] = {}

    def make_room(
        self,
        share: ShareView,
        entitlement: Entitlement,
        coming: Bins,
        attempt: Attempt,
        where: Place,
    ) -> bool:
        """Make room in the quota for one more shadow pod, which serves the share pod, and retire as
        many others as that takes. Returns whether there is room, or will be. `where`: the place of
        the devices that are kept in vain for this share pod, and so count as spare for it alone."""
        draft = self._draft
        if self._left.limit_reached(entitlement) is not None:
            new = attempt.what not in draft.attempted
            victims = self._victims(entitlement, where) if new else []
            if not victims or not self._has_cards(share, entitlement):
                return False
            draft.record_attempt(attempt)
            self._end(victims)
        self._left.count(entitlement.key, entitlement.profile.devices, entitlement.profile.cards)
        pool = entitlement.pool.metadata.name
        needs = draft.feasible_nodes.needs_for(pool, share.needs)
        coming.add(entitlement.profile.devices, draft.feasible_nodes.accepts(pool, needs))
        return _fits(coming, share)

    def silence(self, quota: Key) -> str | None:
        """A sentence about a silent node agent that a shadow pod of the quota waits for; None if
        there is none."""
        if not self._draft.silence.shadows:
            return None
        if quota not in self._silence:
            found = (
                agent_silence(one)
                for one in self._draft.of_quota(quota)
                if waits_for_silent_agent(self._draft, one)
            )
            self._silence[quota] = next(found, None)
        return self._silence[quota]

    def _end(self, victims: Iterable[ShadowView]) -> None:
        self._silence.clear()
        for shadow in victims:
            self._idle[shadow.quota_key].drop(shadow)
            self._spare.take(shadow)
            self._left.add(shadow, by=-1)
            retire(self._draft, shadow, ReapReason.REPLACED)

    def _victims(self, entitlement: Entitlement, where: Place) -> list[ShadowView]:
        """The shadow pods of the quota to retire so that it allows one more of the entitlement:
        those that fit no present node, the youngest first, then idle ones; empty if they do not
        suffice. Those of the same profile may fall below its `min`, since their replacement counts
        for it."""
        draft, left, chosen = self._draft, self._left.only(entitlement.key), list[ShadowView]()
        for shadow in self._candidates(entitlement.key, where):
            if left.limit_reached(entitlement) is None:
                break
            helps = shadow.devices == entitlement.profile.devices or (
                not left.has_all_shadows(entitlement) and is_above_min(draft, shadow, beside=chosen)
            )
            if helps and self._may_go(shadow, chosen):
                left.add(shadow, by=-1)
                chosen.append(shadow)
        return chosen if left.limit_reached(entitlement) is None else []

    def _may_go(self, shadow: ShadowView, beside: list[ShadowView]) -> bool:
        """Whether it is idle and its devices are spare, or no present node fits it."""
        if is_idle(self._draft, shadow):
            return self._spare.has(shadow, beside=beside)
        return _has_no_node(self._draft, shadow)

    def _candidates(self, quota: Key, where: Place) -> Iterable[ShadowView]:
        """The quota's shadow pods that may be retired, in order; among them may be some that may
        not any more, since others were retired."""
        if quota not in self._idle:
            self._idle[quota] = self._find_idle(quota)
        found = self._idle[quota]
        if not (here := found.by_place.get(where)):
            return found.spare.values()
        return by_idleness(self._draft, (found.spare | here).values())

    def _find_idle(self, quota: Key) -> _Idle:
        draft, by_place = self._draft, defaultdict[Place, dict[Key, ShadowView]](dict)
        for shadow in draft.of_quota(quota):
            if is_idle(draft, shadow):
                by_place[_place(shadow)][shadow.key] = shadow
        spare = [one for one in draft.of_quota(quota) if self._may_go(one, [])]
        return _Idle({one.key: one for one in by_idleness(draft, spare)}, by_place)

    def _has_cards(self, share: ShareView, entitlement: Entitlement) -> bool:
        """Whether a node for the share pod has cards, or will have once idle shadow pods go."""
        resource = entitlement.pool.spec.physical_resource
        if resource not in self._cards:
            self._cards[resource] = _cards(self._draft, resource)
        needs = self._draft.feasible_nodes.needs_for(entitlement.pool.metadata.name, share.needs)
        return self._cards[resource].put(entitlement.profile.cards, needs) is not None


def _place(shadow: ShadowView) -> Place:
    return shadow.resource, shadow.on_node or ""


def _has_no_node(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the scheduler refuses the shadow pod, and not for want of cards: labels and taints of
    all present nodes keep it away, or its anti-affinity to other shadow pods."""
    pod = shadow.pod
    if pod is None or shadow.unschedulable is None or waits_for_cards(draft, shadow):
        return False
    known = draft.is_live(shadow) and not shadow.contested
    return known and not draft.feasible_nodes.has_open(shadow.pool, pod.needs)


def _cards(draft: Draft, resource: str) -> Bins:
    """The cards of each node that no pod uses, as far as is known."""
    used, bins = Counter[str](), Bins()
    for key, shadow in draft.shadows.items():
        if draft.stages[key] not in (ShadowStage.LOST, ShadowStage.DRAINING) and not is_idle(
            draft, shadow
        ):
            used[shadow.on_node or ""] += shadow.cards
    for node in draft.nodes.values():
        if node.available and resource in node.cards:
            others = draft.taken.get((resource, node.name), 0)
            free = node.cards[resource].healthy - used[node.name] - others
            bins.add(free, on_node(node))
    return bins
