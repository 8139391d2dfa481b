"""Since when spot pods have been stuck."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from mizar_core.planning.spot import SpotView
from mizar_core.planning.spot.snapshot import STUCK_AFTER


class Refusals:
    """When the operator first found each spot pod stuck. No object records this: the condition
    PodScheduled is False from the pod's creation, while the pod is gated, and Kubernetes does not
    change the condition's time as long as it stays False.

    A pod that is stuck when the operator starts counts as having been stuck for STUCK_AFTER.
    Otherwise promises that had lapsed would count again, and pods that were promised these cards
    meanwhile would lose them."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] | None = None

    def dated(self, spots: Collection[SpotView], now: datetime) -> tuple[SpotView, ...]:
        """The spot pods, with the time since which each stuck one has been stuck. The times of all
        others are forgotten."""
        known, first = self._since, now
        if known is None:
            known, first = {}, now - STUCK_AFTER
        since = {one.uid: known.get(one.uid, first) for one in spots if one.is_stuck}
        self._since = since
        return tuple(replace(one, stuck_since=since.get(one.uid)) for one in spots)
