"""Reports how containers of this node get their cards: in a condition of the agent's own pod, and
as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_CARD_ACCESS
from mizar_kube.client import KubeClient
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.nri_component import Counts
from mizar_nodeagent.own_condition import OwnCondition


class AccessReporter:
    """Writes the condition of the agent's own pod. `namespace`, `pod`: the pod's names. `remark`:
    returns a further sentence about the node's containers, or an empty string. Tests set
    `sleep`."""

    def __init__(
        self,
        client: KubeClient,
        access: AccessChoice,
        namespace: str,
        pod: str,
        remark: Callable[[], str] = lambda: "",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._access = access
        self._remark = remark
        written = OwnCondition(
            client, self._condition, FIELD_MANAGER_NODEAGENT, namespace, pod, sleep
        )
        self.run, self.write = written.run, written.write

    def _condition(self) -> dict[str, str]:
        access = self._access
        wrong = access.problem or access.lacking
        told = wrong or f"containers get their cards by {access.describe()}"
        remarks = filter(None, ("" if wrong else access.doubts.remark, self._remark()))
        return {
            "type": POD_CONDITION_CARD_ACCESS,
            "status": "False" if wrong else "True",
            "reason": access.strategy,
            "message": "; ".join((told, *remarks)),
        }


class AccessCollector(Collector):
    """The metrics, computed at each scrape."""

    def __init__(self, node: str, access: AccessChoice, counts: Counts) -> None:
        self._node = node
        self._access = access
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        access = self._access
        info = GaugeMetricFamily(
            "mizar_card_access_info",
            "How containers of the node get their cards; always 1",
            labels=("node", "strategy", "given"),
        )
        info.add_metric((self._node, access.strategy, access.given), 1)
        yield info
        yield self._connected()
        yield self._containers()

    def _connected(self) -> Metric:
        family = GaugeMetricFamily(
            "mizar_runtime_connected",
            "Whether the container runtime asks the agent before it creates a container",
            labels=("node",),
        )
        if self._access.by_nri:
            family.add_metric((self._node,), not self._access.runtime_problem)
        return family

    def _containers(self) -> Metric:
        family = CounterMetricFamily(
            "mizar_runtime_containers",
            "Containers by result: given their cards, refused, or created without asking the agent",
            labels=("node", "result"),
        )
        if not self._access.by_nri:
            return family
        counts = self._counts
        for result, count in (
            ("given", counts.given),
            ("refused", counts.refused),
            ("missed", counts.missed),
        ):
            family.add_metric((self._node, result), count)
        return family
