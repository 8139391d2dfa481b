"""The events that follow from what changed between two plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mizar_core.names import ConditionType, EventReason
from mizar_nodeagent.planning.carving import Stage
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.reports import Report, Said
from mizar_nodeagent.pods import Key


@dataclass(frozen=True)
class News:
    """An event on a ShadowPod."""

    about: Key
    uid: str
    reason: EventReason
    message: str
    warning: bool = False


def news(before: Plan | None, after: Plan) -> Iterable[News]:
    """What people should hear of. After a start nothing is news: it was told before."""
    if before is None:
        return
    old = {report.key: report for report in before.reports}
    for report in after.reports:
        yield from _of_report(old.get(report.key), report)
    yield from _lost(before, after)


def _of_report(old: Report | None, report: Report) -> Iterable[News]:
    """A card that fails. That a shadow pod is ready, the operator tells."""
    said, was = _healthy(report), _healthy(old)
    if said is None or said.status != "False" or (was is not None and was.status == "False"):
        return
    yield News(report.key, report.uid, EventReason.DEVICE_UNHEALTHY, said.message, warning=True)


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
