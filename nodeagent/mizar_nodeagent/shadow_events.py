"""Derives the events on ShadowPods and their users from the changes between two plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.names import ConditionType, EventReason
from mizar_kube.kinds import POD, SHADOW_POD, Kind
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.shadow_status import ConditionState, Report
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


def shadow_events(
    before: Plan | None, after: Plan, pods: Mapping[Key, Pod]
) -> Iterable[ShadowEvent]:
    """The events to emit after the plan `after`. There are none without `before`, as after the
    agent's start, since the previous agent has emitted them."""
    if before is None:
        return
    old = {report.key: report for report in before.reports}
    for report in after.reports:
        yield from _of_report(old.get(report.key), report, pods)
    yield from _lost(before, after)


def _of_report(
    old: Report | None, report: Report, pods: Mapping[Key, Pod]
) -> Iterable[ShadowEvent]:
    """Events about a card that fails. Pods that use the card run on, as with the kubelet and the
    NVIDIA plugin. (The operator emits that a shadow pod is ready.)"""
    now, was = _healthy(report), _healthy(old)
    if now is None or now.status != "False" or (was is not None and was.status == "False"):
        return
    if now.reason == EventReason.PLANNING_FAILED:
        reason = EventReason.PLANNING_FAILED
        yield ShadowEvent(report.key, report.uid, reason, now.message, warning=True)
        return
    yield ShadowEvent(
        report.key, report.uid, EventReason.DEVICE_UNHEALTHY, now.message, warning=True
    )
    for key in sorted(set(_on_bad_cards(report))):
        if pod := pods.get(key):
            yield ShadowEvent(key, pod.uid, EventReason.DEVICE_UNHEALTHY, now.message, True, POD)


def _on_bad_cards(report: Report) -> Iterable[Key]:
    """The pods that hold devices on cards that failed."""
    for one in report.devices:
        if one.holder and one.health == "Unhealthy":
            yield one.holder.namespace, one.holder.name


def _healthy(report: Report | None) -> ConditionState | None:
    conditions = report.conditions if report else ()
    return next((one for one in conditions if one.type == ConditionType.HEALTHY), None)


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
