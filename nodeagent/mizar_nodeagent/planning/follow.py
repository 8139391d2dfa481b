"""A carving follows what its shadow pod is told later: other limits, and to take nobody new."""

from __future__ import annotations

from dataclasses import replace

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Pod


def follow(carving: Carving, pod: Pod) -> Carving:
    """With the carve that its pod tells now. Where that is damaged or of another shape, which
    cards in use cannot take on, it stays as it was."""
    carve = _told(pod)
    if carve is None or carve == carving.carve or not carve.is_shaped_like(carving.carve):
        return carving
    return replace(carving, carve=carve)


def _told(pod: Pod) -> Carve | None:
    try:
        pod.carve.check_tenant(pod.namespace)
        return pod.carve
    except CarveRefused:
        return None


def close(
    carving: Carving, free: frozenset[int], lowered_at: float, sure_at: float, view: View
) -> Carving:
    """If it takes nobody new, one step nearer to that: first the scheduler is told that its free
    devices are not there, then, once nobody is on the way to them any more, the kubelet.

    `lowered_at`: when the node's status was last confirmed; `sure_at`: for when claims are known.
    """
    if not carving.carve.closed:
        return replace(carving, closing_since=None, shut=frozenset())
    carving = replace(carving, shut=carving.shut & free)
    if free <= carving.shut:
        return replace(carving, closing_since=None)
    since = carving.closing_since
    if since is None:
        return replace(carving, closing_since=view.now)
    patient = min(view.now, sure_at) - since < view.grace.lowered
    if patient or lowered_at <= since or view.waits(carving.resource):
        return carving
    return replace(carving, closing_since=None, shut=free)
