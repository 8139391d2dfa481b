"""Since when spot pods have been stuck."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from mizar_core.planning.spot import SpotView
from mizar_core.planning.spot.snapshot import STUCK_AFTER


class Refusals:
    """When the operator first saw of each spot pod that it is stuck. No object says so: Kubernetes
    keeps the time of the condition PodScheduled for as long as its status is False, as it is from
    the pod's creation behind its gate.

    A pod that is stuck when the operator starts counts as stuck for long. Otherwise promises that
    had lapsed would count again, and a pod lose what it got meanwhile."""

    def __init__(self) -> None:
        self._since: dict[str, datetime] | None = None

    def dated(self, spots: Collection[SpotView], now: datetime) -> tuple[SpotView, ...]:
        """The spot pods as they are at the time `now`, with the times for those that are stuck; all
        others are forgotten."""
        known, first = self._since, now
        if known is None:
            known, first = {}, now - STUCK_AFTER
        since = {one.uid: known.get(one.uid, first) for one in spots if one.is_stuck}
        self._since = since
        return tuple(replace(one, stuck_since=since.get(one.uid)) for one in spots)
