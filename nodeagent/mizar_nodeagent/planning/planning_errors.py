"""Excludes shadow pods for which planning fails from the plan, so that the node's other shadow pods
are planned all the same.

The carving of an excluded shadow pod stays as it is: its devices stay listed as Unhealthy, its card
is not carved for any other pod, its users run on, and a drain of it makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from mizar_core.device_ids import DeviceID
from mizar_core.models import DeviceStatus, Holder
from mizar_core.names import ConditionType, EventReason
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.plan import Carvings, Plan, plan
from mizar_nodeagent.planning.shadow_status import ConditionState, Report
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key

MESSAGE_MAX = 1000
"""Characters to which a condition's message is cut, since an error may have a text of any
length."""

Planner = Callable[[Carvings, NodeSnapshot, Collection[Key]], Plan]
"""Makes a plan without the shadow pods that are named last, as `plan.plan` does."""
Errors = Mapping[Key, Exception]
"""The error that planning for each of these shadow pods raises."""


def plan_isolated(
    carvings: Carvings, snapshot: NodeSnapshot, before: Plan | None, planner: Planner = plan
) -> Plan:
    """The plan without the shadow pods for which `planner` fails. `before`: the last plan, whose
    reports about these shadow pods are kept. Raises what `planner` raises if it fails without any
    shadow pod too."""
    try:
        return planner(carvings, snapshot, ())
    except Exception as error:
        failed = error
    try:
        known = dict(before.excluded) if before else {}
        return _told(planner(carvings, snapshot, known), known, before, snapshot)
    except Exception:
        errors = _culprits(carvings, snapshot, planner, failed)
    return _told(planner(carvings, snapshot, errors), errors, before, snapshot)


def _culprits(
    carvings: Carvings, snapshot: NodeSnapshot, planner: Planner, failed: Exception
) -> dict[Key, Exception]:
    """The shadow pods without which planning succeeds, each with its error. A node has few shadow
    pods, so each is tried in turn. Raises what `planner` raises if it fails without any of them."""
    pods = snapshot.pods or {}
    keys = sorted(carvings.keys() | {key for key, pod in pods.items() if pod.shadow})
    errors = dict.fromkeys(keys, failed)
    planner(carvings, snapshot, errors)
    for key in keys:
        others = {one: error for one, error in errors.items() if one != key}
        try:
            planner(carvings, snapshot, others)
            errors = others
        except Exception as error:
            errors[key] = error
    return errors


def _told(found: Plan, errors: Errors, before: Plan | None, snapshot: NodeSnapshot) -> Plan:
    """The plan with reports about the excluded shadow pods."""
    reports = [one for one in found.reports if one.key not in errors]
    if snapshot.pods is not None:
        reports += _reports(found.carvings, errors, before, snapshot)
    return replace(found, excluded=dict(errors), reports=tuple(reports))


def _reports(
    carvings: Carvings, errors: Errors, before: Plan | None, snapshot: NodeSnapshot
) -> Iterable[Report]:
    last = {report.key: report for report in before.reports} if before else {}
    for key, error in sorted(errors.items()):
        pod, carving = (snapshot.pods or {}).get(key), carvings.get(key)
        owner = carving.owner_uid if carving else pod.owner_uid if pod else ""
        known = last.get(key)
        if known is None or known.uid != owner:
            known = Report(key, owner, ())
        yield _report(known, error, _devices(known, carving, snapshot.holders()))


def _devices(
    known: Report, carving: Carving | None, holders: Mapping[DeviceID, Holder]
) -> tuple[DeviceStatus, ...]:
    """The devices as they were last reported, but Unhealthy and with their present holders."""
    held = {str(device): holder for device, holder in holders.items()}
    told = known.devices or tuple(
        DeviceStatus(id=str(one)) for one in (carving.ids if carving else ())
    )
    return tuple(one.changed(health="Unhealthy", holder=held.get(one.id)) for one in told)


def _report(known: Report, error: Exception, devices: tuple[DeviceStatus, ...]) -> Report:
    reason = EventReason.PLANNING_FAILED
    message = f"Mizar leaves it as it is, since planning for it fails: {error!r}"[:MESSAGE_MAX]
    held = sum(one.holder is not None for one in devices)
    in_using = f"{held} of {len(devices)} devices are held"
    draining = [one for one in known.conditions if one.type == ConditionType.DRAINING]
    return replace(
        known,
        devices=devices,
        idle_since=None,
        failed={},  # which cards have failed now is not known
        conditions=(
            ConditionState(ConditionType.READY, "False", reason, message),
            ConditionState(
                ConditionType.POD_IN_USING, "True" if held else "False", reason, in_using
            ),
            ConditionState(ConditionType.HEALTHY, "False", reason, message),
            *(draining or [ConditionState(ConditionType.DRAINING, "Unknown", reason, message)]),
        ),
    )
