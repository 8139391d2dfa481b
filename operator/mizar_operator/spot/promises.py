"""Keeps track of promises: when the gate of a spot pod is opened, the pod is promised cards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from mizar_core.planning.spot import SpotView
from mizar_core.planning.spot.snapshot import STUCK_AFTER


class Promises:
    """The operator's observations of each spot pod whose gate is open, with their times. No object
    records them: Kubernetes keeps the time of the condition PodScheduled while its status is False,
    which it is from the creation of a gated pod on.

    A pod that is stuck when the operator starts counts as stuck for long: otherwise a promise that
    had lapsed would count again, and a pod could lose a card that it got meanwhile. The promise of
    a pod about which its scheduler reports nothing counts again: its gate may have been opened a
    moment ago.
    """

    def __init__(self) -> None:
        self._seen: dict[str, SpotView] | None = None
        self._heard: dict[str, datetime] = {}

    def dated(self, spots: Collection[SpotView], now: datetime) -> tuple[SpotView, ...]:
        """The spot pods as they are at the time `now`, with all observations of them. Observations
        of all other pods are forgotten."""
        known, first = self._seen, now
        if known is None:
            known, first = {}, now - STUCK_AFTER
        found = tuple(_dated(one, known.get(one.uid), now, first) for one in spots)
        self._listen(known, found, now)
        self._seen = {one.uid: one for one in found if one.has_cards}
        return found

    def _listen(
        self, known: Mapping[str, SpotView], spots: Collection[SpotView], now: datetime
    ) -> None:
        there = {one.scheduler for one in spots}
        self._heard = {name: at for name, at in self._heard.items() if name in there}
        for spot in spots:
            if _is_news(spot, known.get(spot.uid)):
                self._heard[spot.scheduler] = now

    @property
    def heard(self) -> Mapping[str, datetime]:
        """When each scheduler was last seen to bind or refuse a spot pod."""
        return dict(self._heard)

    def note(self, kept: Collection[str]) -> None:
        """Note the UIDs of the pods for which there are cards. For the other pods that lack cards,
        the time without a reaction of their scheduler starts anew, since it is right to report
        nothing."""
        for uid, spot in (self._seen or {}).items():
            if spot.lacks_cards and uid not in kept and self._seen is not None:
                self._seen[uid] = replace(spot, unheard_since=None)


def _dated(spot: SpotView, before: SpotView | None, now: datetime, first: datetime) -> SpotView:
    if spot.node is not None:
        return replace(spot, late=_late(before, now))
    if not spot.promised:
        return spot
    stuck_since = unheard_since = None
    if before is not None:
        stuck_since = before.stuck_since
        unheard_since = None if _is_news(spot, before) else before.unheard_since
    dated = replace(
        spot,
        stuck_since=(stuck_since or first) if spot.is_stuck else None,
        unheard_since=unheard_since or now,
        lapsed=before is not None and before.lapsed,
    )
    return replace(dated, lapsed=dated.has_lapsed(now))


def _late(before: SpotView | None, now: datetime) -> datetime | None:
    if before is None:
        return None
    return now if before.lapsed else before.late


def _is_news(spot: SpotView, before: SpotView | None) -> bool:
    """Whether the pod's scheduler has done something about it."""
    if spot.node is not None:
        return before is None or before.node is None
    told = before.unschedulable if before is not None else None
    return spot.promised and spot.unschedulable is not None and spot.unschedulable != told
