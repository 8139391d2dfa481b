"""Gauges whose series come and go with what they are about: pools, quotas, nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

Labels = tuple[str, ...]


class Series:
    """A gauge. Each key of the queue shows its own series; what it shows no more goes."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._gauge = Gauge(name, text, labels, registry=registry)
        self._shown: dict[str, set[Labels]] = {}

    def show(self, key: str, values: Mapping[Labels, float]) -> None:
        """These are all of the key's series now."""
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        for labels in self._shown.pop(key, set()) - set(values):
            self._gauge.remove(*labels)
        if values:
            self._shown[key] = set(values)
