"""Accounts of the card-seconds that namespaces borrowed recently, which decide whose turn it is: a
second of a borrowed card counts half after an hour.

The account is in the status of the namespace's quotas. While a namespace keeps the same number of
cards, its account follows from the last entry and the time, so that nothing needs to be written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from mizar_core.models import GPUQuota, SpotStatus

HALF_LIFE_S = 3600.0
"""Seconds after which a second of a borrowed card counts half."""
STEADY_S = HALF_LIFE_S / math.log(2)
"""Recent card-seconds to which a namespace that always borrows one card converges."""


def recent(status: SpotStatus | None, now: datetime) -> float:
    """Recent card-seconds, at `now`, of a namespace that has had `status.in_use` cards since the
    last count."""
    if status is None or status.counted_at is None:
        return 0.0
    passed = max(0.0, (now - status.counted_at).total_seconds())
    left = math.exp2(-passed / HALF_LIFE_S)
    return status.recent_card_seconds * left + status.in_use * STEADY_S * (1 - left)


class Accounts:
    """The accounts of all namespaces, and how many cards each may have, by its quotas."""

    def __init__(self, quotas: Iterable[GPUQuota], now: datetime) -> None:
        self._status: dict[str, SpotStatus] = {}
        self._most: defaultdict[str, int] = defaultdict(int)
        for quota in quotas:
            self._add(quota)
        self._recent = {name: recent(one, now) for name, one in self._status.items()}

    def _add(self, quota: GPUQuota) -> None:
        namespace, status = quota.metadata.namespace or "", quota.status.spot
        if quota.spec.spot is not None and not quota.metadata.deletion_timestamp:
            self._most[namespace] += quota.spec.spot.max
        if status is not None and status.counted_at is not None:
            known = self._status.get(namespace)
            if known is None or _newer(status, known):
                self._status[namespace] = status

    def recent(self, namespace: str) -> float:
        """Card-seconds that the namespace borrowed recently."""
        return self._recent.get(namespace, 0.0)

    def most(self, namespace: str) -> int:
        """How many cards the namespace may have at the same time."""
        return self._most.get(namespace, 0)

    def figure(self, namespace: str, cards: int) -> float:
        """The figure by which namespaces take turns, the lowest first: the recent card-seconds plus
        those to which this many cards converge if they are kept. If only the past counted, one
        namespace would get all cards that become lendable at once, and keep them."""
        return self.recent(namespace) + cards * STEADY_S


def _newer(one: SpotStatus, other: SpotStatus) -> bool:
    """Whether the first of two entries of a namespace, each in another quota, was written later:
    the last one holds."""
    return _rank(one) > _rank(other)


def _rank(one: SpotStatus) -> tuple[str, int, int]:
    at = one.counted_at.isoformat() if one.counted_at else ""
    return at, one.recent_card_seconds, one.in_use
