"""Finds the pods that use a shadow pod's devices or may be about to, and marks shadow pods in use,
so that evictions and autoscalers leave them alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from mizar_core.planning.actions import SetInUse
from mizar_core.planning.draft import Draft
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import Key, ShadowView, ShareView


def pods_without_devices(others: Iterable[ShadowView], bound: Iterable[ShareView]) -> list[Key]:
    """The bound share pods whose devices are not all accounted for by `others`, sorted.

    `others`: the other shadow pods of the same resource on the same node. Such a share pod may
    hold, or be about to get, a device of the shadow pod in question.
    """
    held: Counter[Key] = Counter()
    for shadow in others:
        held.update(shadow.holders)
    asked: Counter[Key] = Counter()
    for share in bound:
        asked[share.key] += share.owed
    return sorted(key for key, count in asked.items() if held[key] < count)


def may_be_used(
    shadow: ShadowView, others: Iterable[ShadowView], bound: Iterable[ShareView]
) -> str | None:
    """A pod that uses the shadow pod or may be about to, as text for a message; None if there
    certainly is none."""
    bound = list(bound)
    if shadow.pod is None:
        shadow = _with_existing_holders(shadow, bound)
    if shadow.held:
        return " ".join(sorted({"/".join(key) for key in shadow.holders})) or "a share pod"
    if shadow.on_node is None:
        return None
    unsure = pods_without_devices(others, bound)
    return "/".join(unsure[0]) if unsure else None


def _with_existing_holders(shadow: ShadowView, bound: Iterable[ShareView]) -> ShadowView:
    """The shadow pod without holders that do not exist any more.

    Once its pod is gone, no agent may be left to report on the shadow pod, since the node agent
    loses its state when the node is set up again under the same name.
    """
    there = {one.key for one in bound}
    holders = tuple(key for key in shadow.holders if key in there)
    return replace(shadow, holders=holders, in_use=bool(holders))


_MARKED = frozenset({ShadowStage.STARTING, ShadowStage.READY, ShadowStage.DRAINING})


def mark_in_use(draft: Draft) -> None:
    """Mark the shadow pods that have come into use, and remove the mark from those that are not in
    use any more."""
    for shadow, stage in draft.in_order():
        pod = shadow.pod
        if stage in _MARKED and pod is not None and pod.in_use != shadow.held:
            draft.do(SetInUse(shadow.key, shadow.held))
