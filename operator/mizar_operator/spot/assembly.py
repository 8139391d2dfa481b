"""Assembles the parts that handle spot pods."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from mizar_kube.client import KubeClient
from mizar_kube.clock import Clock
from mizar_kube.events import EventRecorder
from mizar_kube.work_queue import WorkQueue
from mizar_operator.caches import Caches
from mizar_operator.reconcile import run_here
from mizar_operator.settings import Settings
from mizar_operator.spot.apply import SpotApplier
from mizar_operator.spot.metrics import SpotMetrics
from mizar_operator.spot.reconcile import RunsPlan, SpotReconciler, follow
from mizar_operator.spot.rules_writer import RulesWriter

__all__ = ["follow", "reconciler"]


def reconciler(
    client: KubeClient,
    caches: Caches,
    events: EventRecorder,
    queue: WorkQueue[str],
    registry: CollectorRegistry,
    settings: Settings,
    clock: Clock,
    runs: RunsPlan = run_here,
) -> SpotReconciler:
    """The reconciler of spot pods with all that it needs."""
    metrics = SpotMetrics(registry)
    applier = SpotApplier(client, caches, events, metrics, settings.writes_at_once, clock.seconds)
    rules = RulesWriter(client, settings.namespace, clock.seconds)
    return SpotReconciler(
        caches,
        applier,
        rules,
        queue,
        metrics,
        clock.now,
        clock.seconds,
        runs,
        enabled=settings.spot,
    )
