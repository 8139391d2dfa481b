"""Gauges whose series come and go with what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

Labels = tuple[str, ...]
"""The values of a series' labels."""


class Series:
    """A gauge whose series appear and disappear with pools, quotas and nodes. Keys of the queue may
    have the same series, as a namespace that waits in several pools: it is the sum of their values,
    or what else `together` makes of them."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        together: Callable[[Iterable[float]], float] = sum,
    ) -> None:
        self._gauge = Gauge(name, text, labels, registry=registry)
        self._together = together
        self._values: dict[str, dict[Labels, float]] = {}

    def show(self, key: str, values: Mapping[Labels, float]) -> None:
        """Set all values of a key; series that no key has a value of are removed."""
        before = self._values.pop(key, {})
        if values:
            self._values[key] = dict(values)
        for labels in {changed for changed, _ in before.items() ^ values.items()}:
            found = [one[labels] for one in self._values.values() if labels in one]
            if found:
                self._gauge.labels(*labels).set(self._together(found))
            else:
                self._gauge.remove(*labels)
