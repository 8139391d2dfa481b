"""What Prometheus may know of the operator."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from mizar_core.models import GPUPool, GPUQuotaStatus
from mizar_core.planning.actions import Plan
from mizar_core.planning.snapshot import Key
from mizar_kube import probes

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUOTA_LABELS = ("namespace", "quota", "profile")


class Metrics:
    """All metrics, in a registry of their own so that tests can have several."""

    def __init__(self) -> None:
        self.registry = registry = probes.registry("operator")
        self.quota = {
            name: Gauge(f"mizar_quota_{name}_devices", text, QUOTA_LABELS, registry=registry)
            for name, text in (
                ("ready", "Free devices minus those waited for."),
                ("pipelining", "Devices of shadow pods on their way."),
                ("in_use", "Devices that share pods have."),
                ("waiting", "Devices that share pods wait for."),
            )
        }
        self.shadow_pods = Gauge(
            "mizar_quota_shadow_pods", "Shadow pods.", QUOTA_LABELS, registry=registry
        )
        self.cards = Gauge(
            "mizar_pool_cards", "Cards of the pool.", ["pool", "state"], registry=registry
        )
        self.reconcile = Histogram(
            "mizar_reconcile_duration_seconds",
            "Duration of one step of one reconcile.",
            ["step"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.actions = Counter(
            "mizar_plan_actions_total", "Actions planned.", ["action"], registry=registry
        )
        self.failures = Counter(
            "mizar_reconcile_failures_total", "Reconciles that failed.", registry=registry
        )
        self.leader = Gauge("mizar_leader", "1 while this replica leads.", registry=registry)
        self._known: dict[str, set[tuple[str, str, str]]] = {}

    def planned(self, key: str, plan: Plan) -> None:
        """Count a plan's actions and show its figures."""
        for action in plan.actions:
            self.actions.labels(type(action).__name__).inc()
        self._show(key, plan.quotas)

    def pool(self, pool: GPUPool) -> None:
        """Show the cards of a pool."""
        for state, count in pool.status.cards.model_dump(exclude={"usage"}).items():
            self.cards.labels(pool.metadata.name, state).set(count)

    def _show(self, key: str, quotas: Mapping[Key, GPUQuotaStatus]) -> None:
        shown = set()
        for (namespace, name), status in quotas.items():
            for one in status.profiles:
                labels = namespace, name, str(one.devices)
                shown.add(labels)
                for figure, gauge in self.quota.items():
                    gauge.labels(*labels).set(getattr(one, figure))
                self.shadow_pods.labels(*labels).set(one.shadow_pods)
        for labels in self._known.get(key, set()) - shown:
            for gauge in (*self.quota.values(), self.shadow_pods):
                gauge.remove(*labels)
        self._known[key] = shown
