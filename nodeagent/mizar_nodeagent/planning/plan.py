"""Makes the agent's plan: from its carvings and a snapshot of the node, the next carvings and all
that the agent publishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mizar_nodeagent.planning import shadow_status
from mizar_nodeagent.planning.adopt_shadow_pod import Pending, adopt
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.device_lists import Lists, counts, lists
from mizar_nodeagent.planning.drain_stages import facts_of, step
from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot
from mizar_nodeagent.pods import Key

Carvings = Mapping[Key, Carving]
"""The carvings of a node by the namespaces and names of their shadow pods."""


@dataclass(frozen=True)
class Plan:
    """The result of one planning step. `carvings` are the input of the next step; `lists` go to the
    kubelet, `counts` to the node's status.

    `reports`: the status of each ShadowPod. `rewrite`: resources whose counts must be written
    repeatedly, because the kubelet may overwrite them. `poll_often`: a carving's next stage or the
    device lists wait for an answer of the kubelet. `without_cards`: shadow pods whose cards the
    kubelet has not named yet. `excluded`: shadow pods that are left as they are, with the error
    that planning for each raises.
    """

    carvings: dict[Key, Carving]
    lists: Lists
    counts: dict[str, Counts]
    reports: tuple[Report, ...]
    rewrite: frozenset[str] = frozenset()
    poll_often: bool = False
    without_cards: frozenset[Key] = field(default_factory=frozenset)
    excluded: Mapping[Key, Exception] = field(default_factory=dict)


def plan(carvings: Carvings, snapshot: NodeSnapshot, excluded: Collection[Key] = ()) -> Plan:
    """Make the plan. Pure: the same carvings and snapshot give the same plan. `excluded`: shadow
    pods that stay as they are; only the IDs of their devices are used."""
    kept = {key: one for key, one in carvings.items() if key in excluded}
    known = _advanced({key: carvings[key] for key in carvings.keys() - kept.keys()}, snapshot)
    known |= kept
    pending: dict[Key, Pending] = {}
    for pod in sorted((snapshot.pods or {}).values(), key=lambda pod: pod.key):
        if not pod.shadow or pod.ended or pod.terminating or _is_carved(known, pod.key, pod.uid):
            continue
        if pod.key in excluded:
            continue
        found = adopt(pod, snapshot, known)
        if isinstance(found, Pending):
            pending[pod.key] = found
        else:
            known[pod.key] = found
    return _plan(known, kept, pending, snapshot)


def _advanced(carvings: Carvings, snapshot: NodeSnapshot) -> dict[Key, Carving]:
    holders = snapshot.holders()
    steps = {
        key: step(carving, facts_of(carving, snapshot, holders), snapshot)
        for key, carving in carvings.items()
    }
    return {key: carving for key, carving in steps.items() if carving is not None}


def _is_carved(known: Carvings, key: Key, uid: str) -> bool:
    return key in known and known[key].pod_uid == uid


def _plan(
    all_known: dict[Key, Carving],
    kept: Carvings,
    pending: Mapping[Key, Pending],
    snapshot: NodeSnapshot,
) -> Plan:
    known = {key: one for key, one in all_known.items() if key not in kept}
    listed = lists(known.values(), snapshot, unusable=kept.values())
    wanted = counts(listed, known.values(), snapshot)
    return Plan(
        carvings=all_known,
        lists=listed,
        counts=wanted,
        reports=tuple(_reports(known, pending, listed, wanted, snapshot)),
        rewrite=frozenset(
            one.resource
            for one in known.values()
            if one.stage is DrainStage.LOWERED or one.closing_since is not None
        ),
        poll_often=_is_unsettled(known, listed, snapshot),
        without_cards=frozenset(
            key for key, one in pending.items() if one.reason == "CardsUnknown"
        ),
    )


def _reports(
    known: Carvings,
    pending: Mapping[Key, Pending],
    listed: Lists,
    wanted: Mapping[str, Counts],
    snapshot: NodeSnapshot,
) -> list[Report]:
    if snapshot.pods is None:
        return []
    pods, holders = snapshot.pods, snapshot.holders()
    by_id = {one.id: one for devices in listed.values() for one in devices}
    found = [shadow_status.of_pending(pods[key], one) for key, one in pending.items()]
    if not snapshot.claims.are_known:
        # The statuses keep the holders that an earlier agent wrote.
        return found
    for key, carving in sorted(known.items()):
        pod = pods.get(key)
        if _is_last_report_due(carving, snapshot) if pod is None else pod.uid == carving.pod_uid:
            resource = wanted.get(carving.resource)
            found.append(shadow_status.of_carving(carving, by_id, resource, holders, snapshot))
    return found


def _is_last_report_due(carving: Carving, snapshot: NodeSnapshot) -> bool:
    """Whether a ShadowPod without a pod still needs reports on which containers hold its devices,
    and finally that none does. If there is a new pod, the report on that pod replaces these."""
    return carving.stage is DrainStage.LEAVING and snapshot.claims.asked_at > carving.since


def _is_unsettled(known: Carvings, listed: Lists, snapshot: NodeSnapshot) -> bool:
    unsettled = (DrainStage.LOWERED, DrainStage.BLOCKED, DrainStage.LEAVING)
    if any(one.stage in unsettled or one.closing_since is not None for one in known.values()):
        return True
    if any(one.taken_since is not None or not one.confirmed for one in known.values()):
        return True
    healthy = {one.id for devices in listed.values() for one in devices if one.healthy}
    kubelet = {
        one for resource in listed for one in (snapshot.kubelet or {}).get(resource, frozenset())
    }
    return healthy != kubelet
