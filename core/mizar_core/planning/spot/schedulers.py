"""Detects schedulers that do not react to their pods: they are down, far behind, or do not
exist."""

from __future__ import annotations

from datetime import datetime

from mizar_core.planning.spot.snapshot import SpotSnapshot, SpotView


class Schedulers:
    """Decides, by the state of the schedulers, which pods' gates may be opened.

    A scheduler that has not reacted since a promise that lapsed gets its pods one at a time, to
    find out whether it is back. Otherwise all waiting pods would be released while it is down, and
    once it is back, it would bind them out of turn and beyond their quotas.
    """

    def __init__(self, snapshot: SpotSnapshot, now: datetime) -> None:
        unheard = (one for one in snapshot.spots if one.is_unheard(now))
        self._silent = {one.scheduler for one in unheard if _is_last(one, snapshot)}
        self._asked = {one.scheduler for one in snapshot.spots if one.promised and one.counts(now)}

    def takes(self, spot: SpotView) -> bool:
        """Whether the state of the pod's scheduler allows the pod to have its turn now."""
        return spot.scheduler not in self._silent & self._asked

    def reacts(self, spot: SpotView) -> bool:
        """Whether the pod's scheduler is not known to be silent. A pod of one that is silent may
        have its turn, but no cards are kept from other pods until then: it may never be seen."""
        return spot.scheduler not in self._silent

    def ask(self, spot: SpotView) -> None:
        """Note that the pod's turn has come, so that its scheduler has a pod to react to."""
        self._asked.add(spot.scheduler)


def _is_last(spot: SpotView, snapshot: SpotSnapshot) -> bool:
    """Whether the pod's scheduler has reacted to no spot pod after the pod's `unheard_since`."""
    heard = snapshot.heard.get(spot.scheduler)
    return heard is None or spot.unheard_since is None or heard <= spot.unheard_since
