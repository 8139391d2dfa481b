"""Prometheus metrics: what containers may and do take of cards, and how long answers take."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_core.quantities import WHOLE_CARD
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.container.slot_gc import slots_in_use
from mizar_nodeagent.container.slots import Slot, Slots
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.regions import layout, limits_file, usage_snapshot
from mizar_nodeagent.regions.layout import LimitsCard, LimitsLive
from mizar_nodeagent.regions.usage_snapshot import CardUsage, Copied

log = get_logger(__name__)

LABELS = ("node", "namespace", "pod", "container", "device_uuid")
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 30.0)

Family = GaugeMetricFamily | CounterMetricFamily
# Metrics of a container on a card: a family, and its value by limits, live words and usage.
CONTAINER_METRICS: tuple[
    tuple[type[Family], str, str, Callable[[LimitsCard, LimitsLive, CardUsage], float]], ...
] = (
    (
        GaugeMetricFamily,
        "mizar_device_memory_limit_bytes",
        "Memory a container may take",
        lambda card, live, use: card.memory_limit,
    ),
    (
        GaugeMetricFamily,
        "mizar_device_memory_used_bytes",
        "Memory a container's processes hold",
        lambda card, live, use: use.bytes,
    ),
    (
        GaugeMetricFamily,
        "mizar_device_memory_refused",
        "Requests refused for want of memory",
        lambda card, live, use: use.refused,
    ),
    (
        GaugeMetricFamily,
        "mizar_device_memory_unaccounted_bytes",
        "Memory that NVML tells of a container beyond its own account; taken off its limit",
        lambda card, live, use: live.unaccounted_bytes,
    ),
    (
        GaugeMetricFamily,
        "mizar_device_compute_share_ratio",
        "Part of the card's time that is a container's own; 1 where none is set",
        lambda card, live, use: card.core_share / WHOLE_CARD if card.compute_mode else 1,
    ),
    (
        CounterMetricFamily,
        "mizar_device_compute_seconds",
        "GPU time a container has used; counted where a share is set",
        lambda card, live, use: use.charged_ns / 1e9,
    ),
    (
        CounterMetricFamily,
        "mizar_device_compute_waited_seconds",
        "Time that a container's work waited for its turn",
        lambda card, live, use: use.waited_ns / 1e9,
    ),
    (
        CounterMetricFamily,
        "mizar_device_memsets",
        "Memsets that a container started",
        lambda card, live, use: use.copied[layout.MEMSET].count,
    ),
    (
        CounterMetricFamily,
        "mizar_device_memset_bytes",
        "Bytes of the memsets that a container started",
        lambda card, live, use: use.copied[layout.MEMSET].bytes,
    ),
)

# Unspecified: unified addresses, whose direction only the driver can tell.
DIRECTIONS = {
    "host_to_device": layout.COPY_TO_DEVICE,
    "device_to_host": layout.COPY_TO_HOST,
    "device_to_device": layout.COPY_DEVICES,
    "unspecified": layout.COPY_OTHER,
}
COPY_METRICS: tuple[tuple[str, str, Callable[[Copied], float]], ...] = (
    (
        "mizar_device_copies",
        "Copies that a container started on the card's copy engines, outside of graphs",
        lambda copied: copied.count,
    ),
    (
        "mizar_device_copied_bytes",
        "Bytes of the copies that a container started, outside of graphs",
        lambda copied: copied.bytes,
    ),
)


class AnswerLatency:
    """The metric of how long the kubelet waited for an answer, in seconds by kind of call."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "mizar_deviceplugin_answer_seconds",
            "Time that the device plugin took for an answer to the kubelet",
            ("call",),
            buckets=BUCKETS,
            registry=registry,
        )

    def __call__(self, call: str, seconds: float) -> None:
        self._seconds.labels(call).observe(seconds)
        log.info("answered", duration_ms=round(seconds * 1000, 3))


def planning_errors(registry: CollectorRegistry) -> Counter:
    """The metric of shadow pods that were excluded from a plan, named as the operator's."""
    family = Counter(
        "mizar_planning_errors",
        "Objects that made planning fail and were left out",
        ("kind",),
        registry=registry,
    )
    return family.labels("ShadowPod")


class NodeAgentCollector(Collector):
    """The node's devices, plugins and containers, read at each scrape in the scrape's thread."""

    def __init__(
        self,
        node: str,
        state: AgentState,
        slots: Slots,
        connected: Callable[[], dict[str, bool]],
        auditor: Auditor,
    ) -> None:
        self._node = node
        self._state = state
        self._slots = slots
        self._connected = connected
        self._auditor = auditor

    def collect(self) -> Iterator[Metric]:
        yield self._devices()
        yield self._plugins()
        yield from self._containers()
        yield self._without_shim()

    def _devices(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_devices", "Virtual devices in the kubelet's list", labels=("resource", "health")
        )
        plan = self._state.last
        for resource, devices in (plan.lists if plan else {}).items():
            healthy = sum(one.healthy for one in devices)
            family.add_metric((resource, "Healthy"), healthy)
            family.add_metric((resource, "Unhealthy"), len(devices) - healthy)
        return family

    def _plugins(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_deviceplugin_connected",
            "1 if the kubelet follows the list",
            labels=("resource",),
        )
        for resource, connected in self._connected().items():
            family.add_metric((resource,), connected)
        return family

    def _without_shim(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_device_processes_without_shim",
            "Processes of a container with memory on the card that its limits do not bind",
            labels=LABELS,
        )
        counts = collections.Counter((one.owner, one.uuid) for one in self._auditor.without_shim)
        for (owner, uuid), count in counts.items():
            labels = (self._node, owner.namespace, owner.pod, owner.container, uuid)
            family.add_metric(labels, count)
        return family

    def _containers(self) -> Iterable[Metric]:
        families = [kind(name, about, labels=LABELS) for kind, name, about, _ in CONTAINER_METRICS]
        copies = [
            CounterMetricFamily(name, about, labels=(*LABELS, "direction"))
            for name, about, _ in COPY_METRICS
        ]
        for slot in slots_in_use(self._slots.all(), self._state.snapshot):
            # Without its files, or with damaged ones, a container has no metrics and fails closed.
            with suppress(OSError, RegionDamaged):
                self._add_container(slot, families, copies)
        return [*families, *copies]

    def _add_container(
        self, slot: Slot, families: Sequence[Family], copies: Sequence[CounterMetricFamily]
    ) -> None:
        assert slot.owner is not None
        region = limits_file.read(slot.limits)
        cards = region.cards[: region.card_count]
        uses = usage_snapshot.card_usage(slot.usage, len(cards))
        for card, live, use in zip(cards, region.live, uses, strict=False):
            owner = slot.owner
            labels = (self._node, owner.namespace, owner.pod, owner.container, card.uuid.decode())
            for family, (_, _, _, value) in zip(families, CONTAINER_METRICS, strict=True):
                family.add_metric(labels, value(card, live, use))
            _add_copies(copies, labels, use)


def _add_copies(
    copies: Sequence[CounterMetricFamily], labels: tuple[str, ...], use: CardUsage
) -> None:
    for family, (_, _, value) in zip(copies, COPY_METRICS, strict=True):
        for direction, kind in DIRECTIONS.items():
            family.add_metric((*labels, direction), value(use.copied[kind]))
