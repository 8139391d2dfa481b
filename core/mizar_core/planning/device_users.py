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
    use any more, and from those that would only hold up the drain of their node."""
    for shadow, stage in draft.in_order():
        pod = shadow.pod
        if stage not in _MARKED or pod is None:
            continue
        keep = shadow.held and not _holds_up_drain(draft, shadow)
        if pod.in_use != keep:
            draft.do(SetInUse(shadow.key, keep))


def _holds_up_drain(draft: Draft, shadow: ShadowView) -> bool:
    """Whether only pods of DaemonSets use the shadow pod, on a node that takes no pods.

    A drain evicts the shadow pod, but not these pods, and would wait for ever for them to end. Once
    it has evicted the shadow pod, they lose the card, as with any lost shadow pod.
    """
    node = draft.nodes.get(shadow.on_node or "")
    if node is None or node.available or not shadow.holders:
        return False
    bound = draft.bound.get((node.name, shadow.resource), ())
    staying = {one.key for one in bound if one.of_daemon_set}
    return staying.issuperset(shadow.holders)
