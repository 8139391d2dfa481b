"""The operator's Prometheus metrics of lending."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from mizar_core.names import SpotEvictionReason
from mizar_core.planning.spot import SpotPlan
from mizar_operator.gauge_series import Series


class SpotMetrics:
    """The metrics of lending, in the operator's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._cards = Series(
            "mizar_spot_borrowed_cards",
            "Cards that a namespace's spot pods have or were promised, or wait for.",
            ["namespace", "state"],
            registry,
        )
        self._recent = Series(
            "mizar_spot_recent_card_seconds",
            "Card-seconds that a namespace borrowed recently, which decide when its turn comes.",
            ["namespace"],
            registry,
        )
        self._lendable = Series(
            "mizar_spot_lendable_cards",
            "Cards of a node that could be lent and are not promised to any pod.",
            ["node"],
            registry,
        )
        self.evictions = Counter(
            "mizar_spot_evictions_total",
            "Spot pods that the operator takes cards from, counted before they are evicted; node"
            " agents count those that they take.",
            ["reason"],
            registry=registry,
        )
        for reason in (SpotEvictionReason.QUOTA_RECLAIM, SpotEvictionReason.DRAIN):
            self.evictions.labels(reason)

    def planned(self, plan: SpotPlan) -> None:
        """Set the gauges by a plan."""
        found = plan.borrowing.items()
        cards: dict[tuple[str, ...], float] = {}
        for name, one in found:
            cards |= {(name, "in_use"): one.in_use, (name, "waiting"): one.waiting}
        self._cards.show("", cards)
        self._recent.show("", {(name,): one.recent for name, one in found})
        self._lendable.show("", {(name,): float(free) for name, free in plan.lendable.items()})
