"""One step of the agent: from its carvings and a view of the node to what it should publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mizar_nodeagent.planning import reports
from mizar_nodeagent.planning.adopt import Pending, adopt
from mizar_nodeagent.planning.carving import Carving, Stage
from mizar_nodeagent.planning.devices import Lists, counts, lists
from mizar_nodeagent.planning.reports import Report
from mizar_nodeagent.planning.stages import facts_of, step
from mizar_nodeagent.planning.view import Counts, View
from mizar_nodeagent.pods import Key

Carvings = Mapping[Key, Carving]


@dataclass(frozen=True)
class Plan:
    """`carvings` are for the next step; `lists` go to the kubelet, `counts` to the node's status.

    `rewrite`: resources whose counts must be written again and again, because the kubelet may
    overwrite them. `poll_often`: something waits for the kubelet's word, so it should be asked
    soon; `without_cards`: shadow pods whose cards the kubelet has not told yet.
    """

    carvings: dict[Key, Carving]
    lists: Lists
    counts: dict[str, Counts]
    reports: tuple[Report, ...]
    rewrite: frozenset[str] = frozenset()
    poll_often: bool = False
    without_cards: frozenset[Key] = field(default_factory=frozenset)


def plan(carvings: Carvings, view: View) -> Plan:
    """Pure: the same carvings and view give the same plan."""
    known = _stepped(carvings, view)
    pending: dict[Key, Pending] = {}
    for pod in sorted((view.pods or {}).values(), key=lambda pod: pod.key):
        if not pod.shadow or pod.ended or pod.going or _is_carved(known, pod.key, pod.uid):
            continue
        found = adopt(pod, view, known)
        if isinstance(found, Pending):
            pending[pod.key] = found
        else:
            known[pod.key] = found
    return _said(known, pending, view)


def _stepped(carvings: Carvings, view: View) -> dict[Key, Carving]:
    holders = view.holders()
    steps = {
        key: step(carving, facts_of(carving, view, holders), view)
        for key, carving in carvings.items()
    }
    return {key: carving for key, carving in steps.items() if carving is not None}


def _is_carved(known: Carvings, key: Key, uid: str) -> bool:
    return key in known and known[key].pod_uid == uid


def _said(known: dict[Key, Carving], pending: Mapping[Key, Pending], view: View) -> Plan:
    listed = lists(known.values(), view)
    wanted = counts(listed, known.values(), view)
    return Plan(
        carvings=known,
        lists=listed,
        counts=wanted,
        reports=tuple(_reports(known, pending, listed, wanted, view)),
        rewrite=frozenset(
            one.resource
            for one in known.values()
            if one.stage is Stage.LOWERED or one.closing_since is not None
        ),
        poll_often=_is_unsettled(known, listed, view),
        without_cards=frozenset(
            key for key, one in pending.items() if one.reason == "CardsUnknown"
        ),
    )


def _reports(
    known: Carvings,
    pending: Mapping[Key, Pending],
    listed: Lists,
    wanted: Mapping[str, Counts],
    view: View,
) -> list[Report]:
    if view.pods is None:
        return []
    pods, holders = view.pods, view.holders()
    by_id = {one.id: one for devices in listed.values() for one in devices}
    found = [reports.of_pending(pods[key], one) for key, one in pending.items()]
    for key, carving in sorted(known.items()):
        pod = pods.get(key)
        if _is_missed(carving, view) if pod is None else pod.uid == carving.pod_uid:
            resource = wanted.get(carving.resource)
            found.append(reports.of_carving(carving, by_id, resource, holders, view))
    return found


def _is_missed(carving: Carving, view: View) -> bool:
    """Whether a ShadowPod that has lost its pod waits to hear who still holds its devices, and at
    last that nobody does. With a successor, that one's report tells."""
    return carving.stage is Stage.LEAVING and view.claims.asked_at > carving.since


def _is_unsettled(known: Carvings, listed: Lists, view: View) -> bool:
    unsettled = (Stage.LOWERED, Stage.BLOCKED, Stage.LEAVING)
    if any(one.stage in unsettled or one.closing_since is not None for one in known.values()):
        return True
    if any(one.taken_since is not None for one in known.values()):
        return True
    healthy = {one.id for devices in listed.values() for one in devices if one.healthy}
    kubelet = {
        one for resource in listed for one in (view.kubelet or {}).get(resource, frozenset())
    }
    return healthy != kubelet
