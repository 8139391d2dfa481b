"""The operator's Prometheus metrics. Those of created, reaped and lost shadow pods, of
waiting share pods and of lending are in shadow_counters.py, waiting_pod_metrics.py and
spot/metrics.py."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from mizar_core.models import GPUPool
from mizar_core.planning import Plan, Snapshot
from mizar_core.planning.exclusion import PartKind
from mizar_core.planning.pool_nodes import in_pool
from mizar_core.planning.snapshot import THE_QUOTA_ITSELF, Key
from mizar_kube import probes
from mizar_operator.apply_result import Result
from mizar_operator.gauge_series import Labels, Series
from mizar_operator.pod_views import SharePod
from mizar_operator.shadow_counters import ShadowCounters
from mizar_operator.waiting_pod_metrics import WaitingPods

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds, in seconds, of the histogram of the duration of a reconcile's steps."""
START_BUCKETS = (1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
"""Bounds, in seconds, of the histogram of share pods' start times: from a start on a warm shadow
pod to one that waits for a node."""
QUOTA_LABELS = ("namespace", "quota", "profile")
"""Names of the labels of metrics about a quota's profile."""
QUOTA_SERIES = {
    "ready_devices": "Free devices minus those waited for.",
    "pipelining_devices": "Devices of shadow pods on their way.",
    "in_use_devices": "Devices that share pods have.",
    "waiting_devices": "Devices that share pods wait for.",
    "shadow_pods": "Shadow pods.",
}
"""Descriptions of the gauges about a quota's profile, by name without `mizar_quota_`."""
CARD_SERIES = {
    "total": ("mizar_pool_cards", "Cards of the pool."),
    "held": ("mizar_pool_held_cards", "Cards that shadow pods hold."),
    "healthy": ("mizar_pool_healthy_cards", "Cards that their nodes report healthy."),
    "lost": ("mizar_pool_lost_cards", "Cards whose shadow pods have lost them."),
    "lent": ("mizar_pool_lent_cards", "Cards that spot pods borrow."),
}
"""Names and descriptions of the gauges about a pool's cards, by the state of the cards."""


class Metrics:
    """All metrics, in a registry of their own, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = probes.registry("operator")
        self.shadow_counters = ShadowCounters(self.registry)
        self.waiting = WaitingPods(self.registry)
        self._make_series(self.registry)
        self._make_histograms(self.registry)
        self._make_counters(self.registry)
        self._make_gauges(self.registry)
        self._quotas: dict[str, set[Key]] = {}
        self._refused: set[Labels] = set()

    def _make_series(self, registry: CollectorRegistry) -> None:
        self.quota = {
            name: Series(f"mizar_quota_{name}", text, QUOTA_LABELS, registry)
            for name, text in QUOTA_SERIES.items()
        }
        self.cards = {
            state: Series(name, text, ["pool"], registry)
            for state, (name, text) in CARD_SERIES.items()
        }
        self.node_cards = Series(
            "mizar_node_cards",
            "Cards of a pool's node.",
            ["pool", "node", "resource", "health"],
            registry,
        )
        self.shadow_pods = Series(
            "mizar_shadow_pods", "Shadow pods by phase.", ["pool", "phase"], registry
        )

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        self.start = Histogram(
            "mizar_share_pod_start_seconds",
            "From the creation of a share pod until its containers run.",
            buckets=START_BUCKETS,
            registry=registry,
        )
        self.reconcile = Histogram(
            "mizar_reconcile_duration_seconds",
            "Duration of one step of one reconcile.",
            ["step"],
            buckets=BUCKETS,
            registry=registry,
        )

    def _make_counters(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "mizar_shadow_pods_refused_total",
            "Shadow pods that the API server refused to create.",
            QUOTA_LABELS,
            registry=registry,
        )
        self.actions = Counter(
            "mizar_actions_total",
            "Actions of plans, done or failed.",
            ["action", "result"],
            registry=registry,
        )
        self.planning_errors = Counter(
            "mizar_planning_errors_total",
            "Objects that made planning fail and were left out.",
            ["kind"],
            registry=registry,
        )
        for kind in get_args(PartKind):  # so that the first one is seen as an increase
            self.planning_errors.labels(kind)
        self.failures = Counter(
            "mizar_reconcile_failures_total", "Reconciles that failed.", registry=registry
        )

    def _make_gauges(self, registry: CollectorRegistry) -> None:
        self.unreadable = Gauge(
            "mizar_unreadable_objects",
            "Objects that are there but cannot be read; what depends on them is left as it is.",
            ["kind"],
            registry=registry,
        )
        self.webhook_reachable = Gauge(
            "mizar_webhook_reachable",
            "1 if the API server reached the webhook when it was last tried, by dry runs, else 0.",
            registry=registry,
        )
        self.leader = Gauge("mizar_leader", "1 while this replica leads.", registry=registry)

    @contextmanager
    def counting_failure(self) -> Iterator[None]:
        """Count the reconcile as failed if an error is raised inside."""
        try:
            yield
        except Exception:
            self.failures.inc()
            raise

    def planned(self, key: str, snapshot: Snapshot, plan: Plan) -> None:
        """Set the gauges of a key's pools, quotas and nodes."""
        self.shadow_counters.planned(key, snapshot)
        for name, gauge in self.quota.items():
            gauge.show(key, _of_quotas(plan, name.removesuffix("_devices")))
        for state, cards in self.cards.items():
            cards.show(key, _of_pools(snapshot.pools, state))
        self.node_cards.show(key, _of_nodes(snapshot))
        phases = Count((one.pool, one.phase or "Pending") for one in snapshot.shadows)
        self.shadow_pods.show(key, {(pool, str(phase)): n for (pool, phase), n in phases.items()})
        self._forget_refusals(key, plan.quotas)
        for labels in _of_quotas(plan, "ready"):
            self._count_refusals_of(labels)
        self.waiting.planned(key, plan.waiting)

    def applied(self, snapshot: Snapshot, result: Result) -> None:
        """Count the outcome of a plan's actions. `snapshot`: the one that the plan was made
        from."""
        for outcome, actions in (("done", result.done), ("failed", result.failed)):
            for action in actions:
                self.actions.labels(type(action).__name__, outcome).inc()
        self.shadow_counters.applied(snapshot, result.done)

    def refusals(self, refused: Iterable[tuple[Key, int]]) -> None:
        """Count the shadow pods that the API server refused, by quota and devices."""
        of_shadows = (one for one in refused if one[1] != THE_QUOTA_ITSELF)
        for (namespace, name), devices in of_shadows:
            self._count_refusals_of((namespace, name, str(devices))).inc()

    def _count_refusals_of(self, labels: Labels) -> Counter:
        """The series that counts the refusals of a quota's profile. It is created here, so that it
        starts at 0: a series that starts at 1 shows no increase."""
        self._refused.add(labels)
        return self.refused.labels(*labels)

    def _forget_refusals(self, key: str, quotas: Mapping[Key, object]) -> None:
        """Remove the series of quotas that are gone. A quota that another key has now, since its
        pool was created again, is not gone."""
        before, self._quotas[key] = self._quotas.get(key, set()), set(quotas)
        for namespace, name in before.difference(*self._quotas.values()):
            for labels in [one for one in self._refused if one[:2] == (namespace, name)]:
                self.refused.remove(*labels)
                self._refused.discard(labels)

    def pod_changed(self, old: SharePod | None, new: SharePod | None) -> None:
        """Record how long a share pod took to start, once all of its containers run."""
        if old is None or new is None or old.running_at:
            return
        if new.running_at is not None:
            created = new.demands[0][1].created
            self.start.observe(max(0.0, (new.running_at - created).total_seconds()))


def _of_quotas(plan: Plan, figure: str) -> Mapping[Labels, float]:
    return {
        (namespace, name, str(one.devices)): getattr(one, figure)
        for (namespace, name), status in plan.quotas.items()
        for one in status.profiles
    }


def _of_pools(pools: Iterable[GPUPool], state: str) -> Mapping[Labels, float]:
    return {(pool.metadata.name,): getattr(pool.status.cards, state) for pool in pools}


def _of_nodes(snapshot: Snapshot) -> Mapping[Labels, float]:
    found: dict[Labels, float] = {}
    for pool in snapshot.pools:
        for node in snapshot.nodes:
            if in_pool(node, pool):
                resource = pool.spec.physical_resource
                cards = node.cards[resource]
                labels = pool.metadata.name, node.name, resource
                found[*labels, "healthy"] = cards.healthy
                found[*labels, "unhealthy"] = cards.total - cards.healthy
    return found
