"""Derives the events on ShadowPods and their users from the changes between two plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.names import EventReason
from mizar_kube.kinds import POD, SHADOW_POD, Kind
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
    """Tells, once for each card that fails, the ShadowPod that holds it and each pod that uses it.
    These pods run on, as with the kubelet and the NVIDIA plugin. A pod that the API server has not
    named yet is told later. Cards whose failure is over are told again when they fail once more."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._told: set[tuple[str, str]] = set()

    def were_told(self, cards: Iterable[str]) -> None:
        """An earlier agent has told of these cards, by UUID."""
        self._known.update(cards)

    def events(self, plan: Plan, snapshot: NodeSnapshot) -> Iterable[ShadowEvent]:
        """The events to emit after a plan of this snapshot."""
        well = {uuid for uuid, card in snapshot.cards.items() if not card.problem}
        self._known -= well
        self._told = {one for one in self._told if one[1] not in well}
        for report in plan.reports:
            for card in report.failed.keys() - self._known:
                for event in _of_failed_card(report, card, snapshot.pods or {}):
                    if (event.uid, card) not in self._told:
                        self._told.add((event.uid, card))
                        yield event


def _of_failed_card(report: Report, card: str, pods: Mapping[Key, Pod]) -> Iterable[ShadowEvent]:
    """One event on the ShadowPod, and one on each pod that uses this card of it and is known."""
    reason, message = EventReason.DEVICE_UNHEALTHY, f"{card}: {report.failed[card]}"
    yield ShadowEvent(report.key, report.uid, reason, message, warning=True)
    holders = (one.holder for one in report.devices if one.card == card and one.holder)
    for key in sorted({(one.namespace, one.name) for one in holders}):
        if pod := pods.get(key):
            yield ShadowEvent(key, pod.uid, reason, message, warning=True, kind=POD)


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
