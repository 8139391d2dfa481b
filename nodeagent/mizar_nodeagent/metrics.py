"""Prometheus metrics of the node as a whole: devices, plugins, planning errors and latencies. Those
of cards, containers and lending are in card_metrics.py, container_metrics.py and
spot/metrics.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState

log = get_logger(__name__)

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 30.0)


class AnswerLatency:
    """The histogram of the seconds that the kubelet waited for an answer, by kind of call. An
    instance is called with the call's name and the seconds that it took."""

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
    """The counter of shadow pods that were excluded from a plan, with the same name as the
    operator's counter."""
    family = Counter(
        "mizar_planning_errors",
        "Objects that made planning fail and were left out",
        ("kind",),
        registry=registry,
    )
    return family.labels("ShadowPod")


class DeviceCollector(Collector):
    """The metrics of the node's devices and plugins, computed at each scrape in the scrape's
    thread. `connected` returns, by resource, whether the kubelet is connected to its plugin."""

    def __init__(
        self, node: str, state: AgentState, connected: Callable[[], dict[str, bool]]
    ) -> None:
        self._node = node
        self._state = state
        self._connected = connected

    def collect(self) -> Iterator[Metric]:
        yield self._devices()
        yield self._plugins()

    def _devices(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_devices",
            "Virtual devices in the kubelet's list",
            labels=("node", "resource", "health"),
        )
        plan = self._state.last
        for resource, devices in (plan.lists if plan else {}).items():
            healthy = sum(one.healthy for one in devices)
            family.add_metric((self._node, resource, "Healthy"), healthy)
            family.add_metric((self._node, resource, "Unhealthy"), len(devices) - healthy)
        return family

    def _plugins(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_deviceplugin_connected",
            "1 if the kubelet follows the list",
            labels=("node", "resource"),
        )
        for resource, connected in self._connected().items():
            family.add_metric((self._node, resource), connected)
        return family
