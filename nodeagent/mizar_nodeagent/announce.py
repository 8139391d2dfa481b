"""The events that follow from what changed between two plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizar_core.names import ConditionType, EventReason
from mizar_kube.kinds import POD, SHADOW_POD, Kind
from mizar_nodeagent.planning.carving import Stage
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.reports import Report, Said
from mizar_nodeagent.pods import Key, Pod


@dataclass(frozen=True)
class News:
    """An event on a ShadowPod, or on a pod that holds devices of it."""

    about: Key
    uid: str
    reason: EventReason
    message: str
    warning: bool = False
    kind: Kind = SHADOW_POD


def news(before: Plan | None, after: Plan, pods: Mapping[Key, Pod]) -> Iterable[News]:
    """What people should hear of. After a start nothing is news: it was told before."""
    if before is None:
        return
    old = {report.key: report for report in before.reports}
    for report in after.reports:
        yield from _of_report(old.get(report.key), report, pods)
    yield from _lost(before, after)


def _of_report(old: Report | None, report: Report, pods: Mapping[Key, Pod]) -> Iterable[News]:
    """A card that fails. That a shadow pod is ready, the operator tells. Who uses the card is told
    and runs on, as with the kubelet and the NVIDIA plugin."""
    said, was = _healthy(report), _healthy(old)
    if said is None or said.status != "False" or (was is not None and was.status == "False"):
        return
    yield News(report.key, report.uid, EventReason.DEVICE_UNHEALTHY, said.message, warning=True)
    for key in sorted(set(_on_bad_cards(report))):
        if pod := pods.get(key):
            yield News(key, pod.uid, EventReason.DEVICE_UNHEALTHY, said.message, True, POD)


def _on_bad_cards(report: Report) -> Iterable[Key]:
    """The pods that hold devices on cards that failed."""
    for one in report.devices:
        if one.holder and one.health == "Unhealthy":
            yield one.holder.namespace, one.holder.name


def _healthy(report: Report | None) -> Said | None:
    conditions = report.conditions if report else ()
    return next((one for one in conditions if one.type == ConditionType.HEALTHY), None)


def _lost(before: Plan, after: Plan) -> Iterable[News]:
    for key, carving in after.memory.items():
        earlier = before.memory.get(key)
        left = carving.stage is Stage.LEAVING and (
            earlier is not None and earlier.stage is not Stage.LEAVING
        )
        if left and carving.idle_since is None:
            yield News(
                key,
                carving.owner_uid,
                EventReason.SHADOW_LOST,
                "the shadow pod goes while containers still use its cards",
                warning=True,
            )
