"""Preemption of idle shadow pods, before their idle timeout, by pods that the scheduler refuses for
lack of cards: pods that request whole cards, and shadow pods that share pods wait for. As few as
possible are drained, only where it helps, and never below a quota's `min`.

Where another scheduler does not say what a pod lacks, it lacks cards if no node that fits it has as
many free: then one pod after the other makes room, since it may wait for something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mizar_core.names import ReapReason
from mizar_core.planning.actions import Drain
from mizar_core.planning.demand import DemandOutcome
from mizar_core.planning.draft import Draft
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.planning.reap import SpareDevices, by_idleness, is_above_min, is_idle
from mizar_core.planning.refusal_message import lacks, lacks_claimed_devices
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import Attempt, Key, NodeView, ShadowView

LOOKS_AGAIN_AFTER = timedelta(seconds=30)
"""How long after a plan there is another one while a pod waits whose scheduler does not say what it
lacks: the plan depends on other pods' cards, and such pods make no plan by themselves."""

JUDGED_MOST = 64
"""The most kinds of pods of which one plan judges whether they lack cards, the oldest first: that
may look at each node."""

Shape = tuple[str, int, Needs, bool]


@dataclass(frozen=True)
class Preemptor:
    """A pod that the scheduler refuses for lack of `cards` cards of a physical resource. `since`:
    when a whole-card pod was created; None for a shadow pod's. `reason_unknown`: as in
    PendingView."""

    since: datetime | None
    key: Key
    uid: str
    resource: str
    cards: int
    needs: Needs
    reason_unknown: bool = False

    @property
    def shape(self) -> Shape:
        """What decides which shadow pods would make room for it."""
        return self.resource, self.cards, self.needs, self.reason_unknown

    @property
    def room(self) -> Attempt:
        """The attempt to make room for it, made once and then not again for a while: cards take
        time to become free, and other pods may take them."""
        return Attempt(f"room/{self.uid}", self.uid)

    @property
    def order(self) -> tuple[bool, float, Key]:
        """A key for sorting: whole-card pods first, the oldest first; then shadow pods."""
        return self.since is None, self.since.timestamp() if self.since else 0.0, self.key


def waits_for_cards(draft: Draft, shadow: ShadowView) -> bool:
    """Whether an unschedulable shadow pod waits for cards, and not only for CPU or a node."""
    pool, message = draft.pools.get(shadow.pool), shadow.unschedulable
    if pool is None:
        return False
    # A shadow pod has no claim but the one that stands for its cards.
    return lacks(message, pool.spec.physical_resource) or lacks_claimed_devices(message)


def preempt_idle(draft: Draft, outcomes: dict[str, DemandOutcome], spare: SpareDevices) -> None:
    """Drain idle shadow pods where another pod needs their cards."""
    preemptors = [
        one for one in _preemptors(draft, outcomes) if one.room.what not in draft.attempted
    ]
    search, in_vain = _Search.among(draft, preemptors, spare), set[Shape]()
    for preemptor in sorted(preemptors, key=lambda one: one.order):
        # Each drain leaves less to drain: where one pod finds nothing, others of its shape find
        # nothing either. A Job may have thousands of them.
        if preemptor.shape in in_vain:
            continue
        if victims := search.victims(preemptor):
            search.drain(victims, preemptor.resource)
            draft.record_attempt(preemptor.room)
        else:
            in_vain.add(preemptor.shape)


@dataclass
class _Search:
    """The search for idle shadow pods that make room. By physical resource: `idle`, these shadow
    pods by node, and `held`, the cards of each node that shadow pods hold. `freeing`: the resources
    of which a shadow pod on its way out may make room. `judged`: see JUDGED_MOST."""

    draft: Draft
    spare: SpareDevices
    idle: dict[str, dict[str, list[ShadowView]]]
    held: dict[str, Counter[str]]
    freeing: set[str]
    judged: set[Shape] = field(default_factory=set)

    @classmethod
    def among(cls, draft: Draft, preemptors: Collection[Preemptor], spare: SpareDevices) -> _Search:
        """A search for these pods."""
        idle = {one: _idle(draft, one) for one in {each.resource for each in preemptors}}
        judges = any(one.reason_unknown for one in preemptors)
        counts = judges or any(one.cards > 1 for one in preemptors)
        held = {one: draft.cards_held(resource=one) if counts else Counter[str]() for one in idle}
        return cls(draft, spare, idle, held, _freeing(draft) if judges else set())

    def victims(self, preemptor: Preemptor) -> list[ShadowView]:
        """The shadow pods to drain for the pod; none if that would not help it."""
        if preemptor.reason_unknown and not self._lacks_cards(preemptor):
            return []
        resource = preemptor.resource
        return _victims(self.draft, preemptor, self.idle[resource], self.held[resource], self.spare)

    def drain(self, victims: Iterable[ShadowView], resource: str) -> None:
        """Plan the drains of shadow pods with cards of this resource."""
        self.freeing.add(resource)
        for shadow in victims:
            self.spare.take(shadow)
            self.draft.do(Drain(shadow.key, self.draft.now, ReapReason.PREEMPTED))

    def _lacks_cards(self, preemptor: Preemptor) -> bool:
        """Whether a pod whose scheduler does not say what it lacks can only lack cards, and no
        shadow pod is on its way out that may make room."""
        self.judged.add(preemptor.shape)
        if preemptor.resource in self.freeing or len(self.judged) > JUDGED_MOST:
            return False
        return _can_only_lack_cards(self.draft, preemptor, self.held[preemptor.resource])


def _preemptors(draft: Draft, outcomes: dict[str, DemandOutcome]) -> Iterator[Preemptor]:
    known = {pool.spec.physical_resource for pool in draft.pools.values()}
    for pod in draft.pending:
        for resource, cards in pod.cards:
            if resource in known and pod.pool not in draft.pools:
                yield Preemptor(
                    pod.created, pod.key, pod.uid, resource, cards, pod.needs, pod.reason_unknown
                )
    for outcome in outcomes.values():
        for key in outcome.placement.relied_on:
            shadow = draft.shadows[key]
            resource = draft.pools[shadow.pool].spec.physical_resource
            if waits_for_cards(draft, shadow) and shadow.pod is not None:
                yield Preemptor(None, key, shadow.uid, resource, shadow.cards, shadow.pod.needs)


def looks_again_at(draft: Draft) -> datetime | None:
    """When to plan again for pods whose schedulers do not say what they lack; None if there are
    none, or no idle shadow pods."""
    unknown = {resource for one in draft.pending if one.reason_unknown for resource, _ in one.cards}
    waits = any(_idle(draft, resource) for resource in unknown)
    return draft.now + LOOKS_AGAIN_AFTER if waits else None


def _can_only_lack_cards(draft: Draft, preemptor: Preemptor, held: Mapping[str, int]) -> bool:
    """Whether no node that fits the pod has as many free cards, as far as the planner can judge and
    as somebody looked."""
    resource, fitting = preemptor.resource, draft.feasible_nodes.candidates(preemptor.needs)
    return all(
        (resource, node.name) in draft.taken
        and _free(draft, node, resource, held.get(node.name, 0)) < preemptor.cards
        for node in fitting
        if node.available and resource in node.cards and fits(preemptor.needs, node)
    )


def _freeing(draft: Draft) -> set[str]:
    """The physical resources of which a shadow pod on its way out may make room for a pod."""
    return {
        draft.pools[shadow.pool].spec.physical_resource
        for shadow, stage in draft.unsettled()
        if shadow.pool in draft.pools and stage in (ShadowStage.DRAINING, ShadowStage.LEAVING)
    }


def _victims(
    draft: Draft,
    preemptor: Preemptor,
    idle: dict[str, list[ShadowView]],
    held: Mapping[str, int],
    spare: SpareDevices,
) -> list[ShadowView]:
    """The idle shadow pods on one node that make enough room, with as few cards as possible.
    `held`: the cards of each node that shadow pods hold."""
    best = list[ShadowView]()
    for name in _named(draft, preemptor.needs, idle):
        node, shadows = draft.nodes[name], idle[name]
        # A node may offer no cards any more, as after its DeviceClass was deleted: whatever leaves
        # it makes no room there.
        if preemptor.resource not in node.cards or not fits(preemptor.needs, node):
            continue
        lacking = preemptor.cards - _free(draft, node, preemptor.resource, held.get(name, 0))
        found = _enough(draft, shadows, lacking, spare)
        if found and (not best or _cards(found) < _cards(best)):
            best = found
        if _cards(best) == 1:
            break
    return best


def _named(draft: Draft, needs: Needs, idle: Collection[str]) -> Iterable[str]:
    """The nodes with idle shadow pods that the needs name, or all of them if the needs do not name
    a few."""
    if not needs.pins:
        return idle
    return [one.name for one in draft.feasible_nodes.candidates(needs) if one.name in idle]


def _cards(shadows: Iterable[ShadowView]) -> int:
    return sum(one.cards for one in shadows)


def _free(draft: Draft, node: NodeView, resource: str, held: int) -> int:
    """Cards of a node that no pod has, as far as is known; none where nobody has looked."""
    taken = draft.taken.get((resource, node.name))
    return 0 if taken is None else max(0, node.cards[resource].healthy - held - taken)


def _idle(draft: Draft, resource: str) -> dict[str, list[ShadowView]]:
    """Idle shadow pods, the longest idle first, by available node in the order of their names."""
    found: dict[str, list[ShadowView]] = {}
    for shadow in by_idleness(draft, draft.shadows.values()):
        node = draft.nodes.get(shadow.on_node or "")
        if node is None or not node.available or not is_idle(draft, shadow):
            continue
        if draft.pools[shadow.pool].spec.physical_resource == resource:
            found.setdefault(node.name, []).append(shadow)
    return {name: found[name] for name in sorted(found)}


def _enough(
    draft: Draft, shadows: Iterable[ShadowView], lacking: int, spare: SpareDevices
) -> list[ShadowView]:
    """The first of the shadow pods that can be spared and together hold the lacking cards; none if
    they do not suffice."""
    chosen: list[ShadowView] = []
    for shadow in shadows:
        if not is_idle(draft, draft.shadows[shadow.key]):
            continue
        if is_above_min(draft, shadow, beside=chosen) and spare.has(shadow, beside=chosen):
            chosen.append(shadow)
            if _cards(chosen) >= lacking:
                return chosen
    return []
