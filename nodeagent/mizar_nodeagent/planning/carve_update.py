"""Updates a carving when the annotation of its shadow pod changes: its limits differ, or it is
closed, so that the shadow pod takes no new pods."""

from __future__ import annotations

from dataclasses import replace

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod


def update_carve(carving: Carving, pod: Pod) -> Carving:
    """The carving with the carve that its pod's annotation has now. It stays as it is if that carve
    is damaged or has another shape, since cards in use cannot be divided differently."""
    carve = _valid_carve(pod)
    if carve is None or carve == carving.carve or not carve.is_shaped_like(carving.carve):
        return carving
    return replace(carving, carve=carve)


def _valid_carve(pod: Pod) -> Carve | None:
    try:
        pod.carve.check_tenant(pod.namespace)
        return pod.carve
    except CarveRefused:
        return None


def close(
    carving: Carving,
    free: frozenset[int],
    lowered_at: float,
    sure_at: float,
    snapshot: NodeSnapshot,
    *,
    waited_for: bool,
) -> Carving:
    """One step towards a closed carve: first the node's status stops offering its free devices,
    then, once no pod is on its way to them, they become unhealthy to the kubelet.

    `free`: indices of the devices that are not held. `lowered_at`: when the last confirmed write of
    the node's status began. `sure_at`: the time for which claims are known. Both in monotonic
    seconds. `waited_for`: bound pods waited for devices until now, so that the count in the node's
    status was not lowered: only writes from now on count.
    """
    if not carving.carve.closed:
        return carving.changed(closing_since=None, withdrawn=frozenset())
    carving = carving.changed(withdrawn=carving.withdrawn & free)
    if free <= carving.withdrawn:
        return carving.changed(closing_since=None)
    since = carving.closing_since
    if since is None or waited_for:
        return replace(carving, closing_since=snapshot.now)
    waiting = min(snapshot.now, sure_at) - since < snapshot.grace.lowered
    if waiting or lowered_at <= since:
        return carving
    return replace(carving, closing_since=None, withdrawn=free)
