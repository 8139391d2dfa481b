"""Prometheus metrics about lent cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_core.names import SpotEvictionReason
from mizar_nodeagent.spot.loan import CardLoan, CardState

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds, in seconds, of the histogram of how long cards take to be taken back."""


class SpotMetrics(Collector):
    """The metrics of card lending. `loans` returns the loans of all cards of the node; it is called
    at each scrape."""

    def __init__(
        self, registry: CollectorRegistry, node: str, loans: Callable[[], Iterable[CardLoan]]
    ) -> None:
        self._node = node
        self._loans = loans
        evictions = Counter(
            "mizar_spot_evictions",
            "Spot pods that have lost their cards, counted before they are evicted",
            ("node", "reason"),
            registry=registry,
        )
        self._evictions = {one: evictions.labels(node, one.value) for one in SpotEvictionReason}
        reclaim = Histogram(
            "mizar_spot_reclaim_seconds",
            "Seconds from the decision to take a card back until its borrower has no process left",
            ("node",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._reclaim = reclaim.labels(node)
        registry.register(self)

    def evicted(self, reason: SpotEvictionReason) -> None:
        """Count an eviction. Must be called before the pod's eviction becomes visible to others."""
        self._evictions[reason].inc()

    def reclaimed(self, seconds: float) -> None:
        """Record that a reclaim took so many seconds until no process of the borrower was left."""
        self._reclaim.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "mizar_spot_cards", "Cards by state of their loan", labels=("node", "state")
        )
        states = [loan.state for loan in self._loans()]
        for state in CardState:
            family.add_metric((self._node, state.value), states.count(state))
        yield family
