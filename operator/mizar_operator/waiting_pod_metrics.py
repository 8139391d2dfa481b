"""The metrics of share pods that wait: how many and why, and since when the oldest has waited for
devices that should come soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from prometheus_client import CollectorRegistry

from mizar_core.names import EventReason
from mizar_core.planning.events import SCHEDULING
from mizar_operator.gauge_series import Labels, Series

COMING = frozenset({EventReason.NODE_AGENT_SILENT, EventReason.WAITING_FOR_SHADOW, SCHEDULING})
"""The reasons for which pods wait whose devices should come soon: there are such devices, or shadow
pods are on their way."""


class WaitingPods:
    """Counts waiting share pods by namespace and reason. `now`: seconds since the epoch."""

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._count = Series(
            "mizar_waiting_pods",
            "Share pods that wait, by reason.",
            ["namespace", "reason"],
            registry,
        )
        self._oldest = Series(
            "mizar_waiting_pods_due_since_timestamp_seconds",
            "Since when the share pod has waited that has waited longest for what is to come soon.",
            ["namespace"],
            registry,
            together=min,
        )
        self._since: dict[str, dict[Labels, float]] = {}

    def planned(self, key: str, waiting: Mapping[Labels, Collection[str]]) -> None:
        """Show a key's waiting pods: their UIDs, by (namespace, reason). For a pod whose reason
        changes to another one of COMING, the time since which it has waited stays the same."""
        self._count.show(key, {labels: len(uids) for labels, uids in waiting.items()})
        before, now = self._since.pop(key, {}), self._now()
        due: dict[Labels, float] = {
            (namespace, uid): before.get((namespace, uid), now)
            for (namespace, reason), uids in waiting.items()
            if reason in COMING
            for uid in uids
        }
        if due:
            self._since[key] = due
        oldest: dict[Labels, float] = {}
        for (namespace, _), since in due.items():
            oldest[namespace,] = min(since, oldest.get((namespace,), since))
        self._oldest.show(key, oldest)
