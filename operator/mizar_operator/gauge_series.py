"""Gauges whose series appear and disappear with the objects that they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

Labels = tuple[str, ...]
"""The values of a series' labels."""


class Series:
    """A gauge whose series appear and disappear with pools, quotas and nodes. Several keys of the
    queue may have values for the same series, for example if a namespace waits in several pools.
    The series then shows their sum, or whatever `together` returns for them. `text`: the gauge's
    description; `labels`: the names of its labels."""

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
        """Set all values of a key; series for which no key has a value any more are removed."""
        before = self._values.pop(key, {})
        if values:
            self._values[key] = dict(values)
        for labels in {changed for changed, _ in before.items() ^ values.items()}:
            found = [one[labels] for one in self._values.values() if labels in one]
            if found:
                self._gauge.labels(*labels).set(self._together(found))
            else:
                self._gauge.remove(*labels)
