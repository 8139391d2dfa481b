"""Schedulers of which nothing is heard: they are down, far behind, or do not exist."""

from __future__ import annotations

from datetime import datetime

from mizar_core.planning.spot.snapshot import SpotSnapshot, SpotView


class Schedulers:
    """Which pods are of use to their scheduler when their gate is opened.

    One that has said nothing since a promise that lapsed gets its pods one at a time, to find out
    whether it is back. Otherwise all that wait would be released while it is down, and it would
    bind them out of turn, and more of them than their quotas allow, when it is back.
    """

    def __init__(self, snapshot: SpotSnapshot, now: datetime) -> None:
        unheard = (one for one in snapshot.spots if one.is_unheard(now))
        self._silent = {one.scheduler for one in unheard if _is_last(one, snapshot)}
        self._asked = {one.scheduler for one in snapshot.spots if one.promised and one.counts(now)}

    def takes(self, spot: SpotView) -> bool:
        """Whether the pod may have its turn now, as far as its scheduler is concerned."""
        return spot.scheduler not in self._silent & self._asked

    def ask(self, spot: SpotView) -> None:
        """The pod's turn has come."""
        self._asked.add(spot.scheduler)


def _is_last(spot: SpotView, snapshot: SpotSnapshot) -> bool:
    """Whether nothing has been heard of the pod's scheduler since."""
    heard = snapshot.heard.get(spot.scheduler)
    return heard is None or spot.unheard_since is None or heard <= spot.unheard_since
