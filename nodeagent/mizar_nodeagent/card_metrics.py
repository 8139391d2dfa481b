"""Prometheus metrics of the node's cards, and of the shadow pods that hold them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_core.models import Holder
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.card_health import Readings
from mizar_nodeagent.cards import is_out_of_use
from mizar_nodeagent.planning.snapshot import NodeSnapshot

CARD_LABELS = ("node", "device_uuid")
SHADOW_LABELS = ("node", "namespace", "pod")


class CardCollector(Collector):
    """The metrics, computed at each scrape in the scrape's thread. `readings`: returns NVML's last
    readings of each card, by UUID. `xids`: how often each card has reported each XID, by UUID and
    XID. `now` returns seconds since 1970."""

    def __init__(
        self,
        node: str,
        state: AgentState,
        readings: Callable[[], Mapping[str, Readings]],
        xids: Counter[tuple[str, int]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._state = state
        self._readings = readings
        self._xids = Counter() if xids is None else xids
        self._now = now

    def collect(self) -> Iterator[Metric]:
        snapshot = self._state.snapshot
        yield from self._cards(snapshot)
        yield from self._shadow_pods(snapshot)
        yield self._reported()

    def _cards(self, snapshot: NodeSnapshot) -> Iterator[Metric]:
        info = _gauge("mizar_card_info", "A card of the node; always 1", (*CARD_LABELS, "model"))
        healthy = _gauge("mizar_card_healthy", "1 if the card may be given out", CARD_LABELS)
        size = _gauge("mizar_card_memory_bytes", "Memory that the card has", CARD_LABELS)
        used = _gauge(
            "mizar_card_memory_used_bytes",
            "Memory of the card that is in use by any process, according to NVML",
            CARD_LABELS,
        )
        busy = _gauge(
            "mizar_card_utilization_ratio",
            "Part of NVML's last sampling period in which the card worked",
            CARD_LABELS,
        )
        holders = _gauge(
            "mizar_card_holders", "Containers that hold virtual devices of the card", CARD_LABELS
        )
        held = self._holders_of_cards(snapshot)
        # While NVML does not answer, its last figures are out of date.
        readings = self._readings() if snapshot.cards_problem is None else {}
        for uuid, card in snapshot.cards.items():
            labels, read = (self._node, uuid), readings.get(uuid)
            info.add_metric((*labels, card.model), 1)
            if not is_out_of_use(card, snapshot.cards):
                healthy.add_metric(labels, not card.problem)
            size.add_metric(labels, card.memory_bytes)
            holders.add_metric(labels, len(held.get(uuid, ())))
            if read is not None and read.used_bytes is not None:
                used.add_metric(labels, read.used_bytes)
            if read is not None and read.busy_percent is not None:
                busy.add_metric(labels, read.busy_percent / 100)
        yield from (info, healthy, size, used, busy, holders)

    def _reported(self) -> Metric:
        found = CounterMetricFamily(
            "mizar_card_xids", "XIDs that the card has reported", labels=(*CARD_LABELS, "xid")
        )
        for (uuid, xid), count in sorted(self._xids.copy().items()):
            found.add_metric((self._node, uuid, str(xid)), count)
        return found

    def _holders_of_cards(self, snapshot: NodeSnapshot) -> Mapping[str, set[Holder]]:
        found: defaultdict[str, set[Holder]] = defaultdict(set)
        for device, holder in snapshot.holders().items():
            if carving := self._state.carving_of(device):
                found[carving.card(device).uuid].add(holder)
        return found

    def _shadow_pods(self, snapshot: NodeSnapshot) -> Iterator[Metric]:
        idle = _gauge(
            "mizar_shadow_pod_idle_seconds",
            "How long no container has held a device of the shadow pod; 0 while one does",
            SHADOW_LABELS,
        )
        holders = _gauge(
            "mizar_shadow_pod_holders",
            "Containers that hold devices of the shadow pod",
            SHADOW_LABELS,
        )
        cards = _gauge(
            "mizar_shadow_pod_card_info",
            "A card that the shadow pod holds; always 1",
            (*SHADOW_LABELS, "device_uuid"),
        )
        held, now = snapshot.holders(), self._now()
        for (namespace, name), carving in sorted(self._state.carvings.items()):
            labels = self._node, namespace, name
            users = {held[one] for one in carving.ids if one in held}
            since = carving.idle_since
            idle.add_metric(labels, max(0.0, now - since.timestamp()) if since else 0)
            holders.add_metric(labels, len(users))
            for card in carving.cards:
                cards.add_metric((*labels, card.uuid), 1)
        yield from (idle, holders, cards)


def _gauge(name: str, about: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=labels)
