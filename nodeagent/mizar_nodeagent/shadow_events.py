"""Derives the events on ShadowPods and their users from the changes between two plans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mizar_core.names import EventReason
from mizar_kube.kinds import POD, SHADOW_POD, Kind
from mizar_nodeagent.cards import Card
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod


@dataclass(frozen=True)
class ShadowEvent:
    """An event on a ShadowPod, or on a pod that holds devices of it. `about`, `uid`, `kind`: the
    object that the event is on."""

    about: Key
    uid: str
    reason: EventReason
    message: str
    warning: bool = False
    kind: Kind = SHADOW_POD


def shadow_events(before: Plan | None, after: Plan) -> Iterable[ShadowEvent]:
    """The events to emit after the plan `after`, without those of FailedCards. There are none
    without `before`, as after the agent's start, since the previous agent has emitted them. (The
    operator emits that a shadow pod is ready.)"""
    if before is None:
        return
    old = {report.key: report for report in before.reports}
    for report in after.reports:
        if _is_excluded(report) and not _is_excluded(old.get(report.key)):
            message = report.conditions[0].message
            yield ShadowEvent(report.key, report.uid, EventReason.PLANNING_FAILED, message, True)
    yield from _lost(before, after)


class FailedCards:
    """Tells, once for each card that fails, the ShadowPod that holds it and each pod that uses it,
    and tells them again when the card is well. These pods run on, as with the kubelet and the
    NVIDIA plugin. A pod that the API server has not named yet is told later."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._faulty: frozenset[str] = frozenset()
        self._told: set[tuple[str, str]] = set()

    def were_told(self, cards: Iterable[str], faulty: Iterable[str] = ()) -> None:
        """An earlier agent has told of these cards, by UUID, and of the MIG devices of the `faulty`
        ones: which these are is not known before the cards have been read."""
        self._known.update(cards)
        self._faulty = frozenset(faulty)

    def events(self, plan: Plan, snapshot: NodeSnapshot) -> Iterable[ShadowEvent]:
        """The events to emit after a plan of this snapshot."""
        pods = snapshot.pods or {}
        if self._faulty and snapshot.cards_problem is None:
            failed = (one for one in snapshot.cards.values() if one.problem)
            self._known |= {one.uuid for one in failed if _whole(one) in self._faulty}
            self._faulty = frozenset()
        # A card that is back may still have to wait for its former users.
        bad = {uuid for report in plan.reports for uuid in report.failed}
        well = {uuid for uuid, card in snapshot.cards.items() if not card.problem} - bad
        over = well & (self._known | {card for _, card in self._told})
        for report in plan.reports:
            yield from self._of_well(report, over, pods)
        self._known -= over
        self._told = {one for one in self._told if one[1] not in over}
        if self._told:  # a card may stay as it is for weeks, and its pods be replaced
            present = {one.uid for one in plan.reports} | {pod.uid for pod in pods.values()}
            self._told = {one for one in self._told if one[0] in present}
        for report in plan.reports:
            yield from self._of_failed(report, pods)

    def _of_well(
        self, report: Report, over: Collection[str], pods: Mapping[Key, Pod]
    ) -> Iterable[ShadowEvent]:
        for card in sorted({one.uuid for one in report.cards if one.uuid in over}):
            message = f"{card}: it is well again, and is given to new pods"
            for event in _about(report, card, EventReason.DEVICE_HEALTHY, message, pods):
                if card in self._known or (event.uid, card) in self._told:
                    yield event

    def _of_failed(self, report: Report, pods: Mapping[Key, Pod]) -> Iterable[ShadowEvent]:
        for card, problem in report.failed.items():
            message = f"{card}: {problem}"
            for event in _about(report, card, EventReason.DEVICE_UNHEALTHY, message, pods):
                if card not in self._known and (event.uid, card) not in self._told:
                    self._told.add((event.uid, card))
                    yield replace(event, warning=True)


def _whole(card: Card) -> str:
    """UUID of the whole card, of which the card may be a MIG device."""
    return card.instance.card if card.instance else card.uuid


def _about(
    report: Report, card: str, reason: EventReason, message: str, pods: Mapping[Key, Pod]
) -> Iterable[ShadowEvent]:
    """An event on the ShadowPod, and one on each pod that uses this card of it and is known."""
    yield ShadowEvent(report.key, report.uid, reason, message)
    holders = (one.holder for one in report.devices if one.card == card and one.holder)
    for key in sorted({(one.namespace, one.name) for one in holders}):
        if pod := pods.get(key):
            yield ShadowEvent(key, pod.uid, reason, message, kind=POD)


def _is_excluded(report: Report | None) -> bool:
    """Whether planning for the shadow pod fails."""
    conditions = report.conditions if report else ()
    return any(one.reason == EventReason.PLANNING_FAILED for one in conditions)


def _lost(before: Plan, after: Plan) -> Iterable[ShadowEvent]:
    for key, carving in after.carvings.items():
        earlier = before.carvings.get(key)
        left = carving.stage is DrainStage.LEAVING and (
            earlier is not None and earlier.stage is not DrainStage.LEAVING
        )
        if left and carving.idle_since is None:
            yield ShadowEvent(
                key,
                carving.owner_uid,
                EventReason.SHADOW_LOST,
                "the shadow pod is being deleted while containers still use its cards",
                warning=True,
            )
