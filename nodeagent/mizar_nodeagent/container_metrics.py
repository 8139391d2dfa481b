"""Prometheus metrics of the containers that share cards: their limits and their use."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.quantities import WHOLE_CARD
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.audit.auditor import Auditor
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.container_utilization import ContainerUtilization
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.regions import layout, limits_file, usage_snapshot
from mizar_nodeagent.regions.layout import LimitsCard, LimitsLive
from mizar_nodeagent.regions.usage_snapshot import CardUsage, Copied

LABELS = ("node", "namespace", "pod", "container", "device_uuid")
NS = 1e9
NO_SHIM = "None"
"""The value of `enforcement` for a container that runs without the shim."""

MEMORY_MODES = {number: name for name, number in layout.MEMORY_MODES.items()}
COMPUTE_MODES = {number: name for name, number in layout.COMPUTE_MODES.items()} | {
    layout.COMPUTE_STOPPED: "Stopped"
}
# Unspecified: unified addresses, whose direction only the driver can tell.
DIRECTIONS = {
    "host_to_device": layout.COPY_TO_DEVICE,
    "device_to_host": layout.COPY_TO_HOST,
    "device_to_device": layout.COPY_DEVICES,
    "unspecified": layout.COPY_OTHER,
}

Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True)
class Reading:
    """A reading of a container on one card, at the time `now` in monotonic seconds and `epoch` in
    seconds since 1970. `without_shim`: number of its processes that no limits bind. `utilization`:
    its part of the card's time by NVML, from 0 to 1; None if that is not known."""

    card: LimitsCard
    live: LimitsLive
    use: CardUsage
    enforcement: str
    without_shim: int
    utilization: float | None
    now: float
    epoch: float

    @property
    def has_shim(self) -> bool:
        """Whether the container runs with the shim, which keeps it to its limits and counts its
        use."""
        return self.enforcement != NO_SHIM

    @property
    def metered(self) -> bool:
        """Whether the container's work is metered, as it is if its share of the card's time is
        limited."""
        return bool(self.card.compute_mode)

    @property
    def last_work(self) -> float | None:
        """When the container last asked for GPU time, in seconds since 1970; None if never, or if
        that is not known."""
        wanted = self.use.wanted_at / NS
        return self.epoch - max(0.0, self.now - wanted) if wanted else None


Values = Iterable[tuple[tuple[str, ...], float]]
"""Values of further labels, and the metric's value."""


def _one(value: float | None) -> Values:
    return () if value is None else (((), value),)


def _copies(reading: Reading, value: Callable[[Copied], float]) -> Values:
    return [((way,), value(reading.use.copied[kind])) for way, kind in DIRECTIONS.items()]


@dataclass(frozen=True)
class ContainerMetric:
    """A metric of a container on a card. `values` returns its values for a reading; none if they
    are not known. `labels`: names of labels besides LABELS. `without_shim`: the metric exists for a
    container without the shim too; others would show limits that do not bind it, and a use of 0
    that nobody has counted."""

    kind: type[Family]
    name: str
    about: str
    values: Callable[[Reading], Values]
    labels: tuple[str, ...] = field(default=())
    without_shim: bool = False

    def family(self) -> Family:
        """A new, empty family of this metric."""
        return self.kind(self.name, self.about, labels=(*LABELS, *self.labels))


METRICS = (
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_memory_limit_bytes",
        "Memory that a container may take",
        lambda one: _one(one.card.memory_limit),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_memory_used_bytes",
        "Memory that a container's processes hold, by their own account",
        lambda one: _one(one.use.bytes),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_memory_refused",
        "Requests that were refused because a container would have had more than its limit",
        lambda one: _one(one.use.refused),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_memory_unaccounted_bytes",
        "Memory of a container that NVML reports beyond its own account; deducted from its limit",
        lambda one: _one(one.live.unaccounted_bytes),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_compute_share_ratio",
        "Part of the card's time that is a container's own; absent where no share is set",
        lambda one: _one(one.card.core_share / WHOLE_CARD if one.metered else None),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_compute_seconds",
        "GPU time that a container has used; absent where no share is set",
        lambda one: _one(one.use.charged_ns / NS if one.metered else None),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_compute_throttled_seconds",
        "Time that a container's work waited for its turn; absent where no share is set",
        lambda one: _one(one.use.waited_ns / NS if one.metered else None),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_utilization_ratio",
        "Part of the card's time in which a container's processes worked, by NVML's last samples",
        lambda one: _one(one.utilization),
        without_shim=True,
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_last_work_timestamp_seconds",
        "When a container last asked for GPU time, since 1970; absent before the first time",
        lambda one: _one(one.last_work),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_processes_without_shim",
        "Processes of a container with memory on the card that its limits do not bind",
        lambda one: _one(one.without_shim),
    ),
    ContainerMetric(
        GaugeMetricFamily,
        "mizar_device_isolation_info",
        "How a container is kept to its limits on a card; always 1",
        lambda one: [
            (
                (
                    MEMORY_MODES.get(one.card.memory_mode, "unknown"),
                    COMPUTE_MODES.get(one.card.compute_mode, "unknown"),
                    one.enforcement,
                ),
                1,
            )
        ],
        ("memory", "compute", "enforcement"),
        without_shim=True,
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_memsets",
        "Memsets that a container started",
        lambda one: _one(one.use.copied[layout.MEMSET].count),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_memset_bytes",
        "Bytes of the memsets that a container started",
        lambda one: _one(one.use.copied[layout.MEMSET].bytes),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_copies",
        "Copies that a container started on the card's copy engines, outside of graphs",
        lambda one: _copies(one, lambda copied: copied.count),
        ("direction",),
    ),
    ContainerMetric(
        CounterMetricFamily,
        "mizar_device_copied_bytes",
        "Bytes of the copies that a container started, outside of graphs",
        lambda one: _copies(one, lambda copied: copied.bytes),
        ("direction",),
    ),
)


class ContainerCollector(Collector):
    """The metrics of the containers that hold devices now, computed at each scrape in the scrape's
    thread. `clock` returns monotonic seconds, `now` seconds since 1970."""

    def __init__(
        self,
        node: str,
        state: AgentState,
        slots: Slots,
        auditor: Auditor,
        utilization: ContainerUtilization,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._state = state
        self._slots = slots
        self._auditor = auditor
        self._utilization = utilization
        self._clock = clock
        self._now = now

    def collect(self) -> Iterable[Metric]:
        families = [(one, one.family()) for one in METRICS]
        for labels, reading in self._readings().items():
            for metric, family in families:
                known = reading.has_shim or metric.without_shim
                for further, value in metric.values(reading) if known else ():
                    family.add_metric((*labels, *further), value)
        return [family for _, family in families]

    def _readings(self) -> Mapping[tuple[str, ...], Reading]:
        """The readings by values of LABELS, so that two slots of one container never give a series
        twice."""
        past = collections.Counter((one.owner, one.uuid) for one in self._auditor.without_shim)
        found: dict[tuple[str, ...], Reading] = {}
        for slot in slots_in_use(self._slots.all(), self._state.snapshot):
            # Without its files, or with damaged ones, a container has no metrics and fails closed.
            with suppress(OSError, RegionDamaged):
                found |= self._of_slot(slot, past)
        return found

    def _of_slot(
        self, slot: Slot, past: Mapping[tuple[Owner, str], int]
    ) -> Mapping[tuple[str, ...], Reading]:
        owner = slot.owner
        assert owner is not None
        region = limits_file.read(slot.limits)
        cards = region.cards[: region.card_count]
        uses = usage_snapshot.card_usage(slot.usage, len(cards))
        container = owner.namespace, owner.pod, owner.container
        enforcement, now, epoch = self._enforcement(slot), self._clock(), self._now()
        return {
            (self._node, *container, uuid): Reading(
                card,
                live,
                use,
                enforcement,
                past.get((owner, uuid), 0),
                self._utilization.of(container, uuid),
                now,
                epoch,
            )
            for card, live, use in zip(cards, region.live, uses, strict=False)
            if (uuid := card.uuid.decode())
        }

    def _enforcement(self, slot: Slot) -> str:
        """The value of `enforcement`, which says what the agent does about a process that no limits
        bind; NO_SHIM if the container has no limits."""
        if not slot.shim:
            return NO_SHIM
        try:
            carving = self._state.carving_of(DeviceID.parse(min(slot.ids)))
        except (DeviceIDRefused, ValueError):
            carving = None
        return carving.carve.isolation.enforcement if carving else "Report"
