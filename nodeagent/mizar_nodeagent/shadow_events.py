"""Derives the events on ShadowPods and their users from the changes between two plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.names import EventReason
from mizar_kube.kinds import POD, SHADOW_POD, Kind
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.shadow_status import Report
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
    """Events about a shadow pod that is excluded from the plan, and about its cards that have
    failed since `old`. Pods that use these run on, as with the kubelet and the NVIDIA plugin. (The
    operator emits that a shadow pod is ready.)"""
    if _is_excluded(report) and not _is_excluded(old):
        message = report.conditions[0].message
        yield ShadowEvent(report.key, report.uid, EventReason.PLANNING_FAILED, message, True)
    known = old.failed if old else {}
    for card, problem in report.failed.items():
        if card not in known:
            yield from _of_failed_card(report, card, f"{card}: {problem}", pods)


def _of_failed_card(
    report: Report, card: str, message: str, pods: Mapping[Key, Pod]
) -> Iterable[ShadowEvent]:
    reason = EventReason.DEVICE_UNHEALTHY
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
