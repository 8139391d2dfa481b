"""The operator's Prometheus metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mizar_core.planning import Snapshot, plan
from mizar_core.planning.snapshot import CardsOnNode
from mizar_operator.metrics import Metrics
from mizar_operator.pod_views import SharePod, pod_view
from property.plan.snapshots import NOW, node, pool, quota, ready, shadow, waiting
from support.planned import small

KEY = "mizar.share"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def _show(metrics: Metrics, snapshot: Snapshot, key: str = KEY) -> None:
    metrics.planned(key, snapshot, plan(snapshot, NOW))


def _page(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def _values(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The series of a metric, by the values of its labels in order of their names."""
    families = text_string_to_metric_families(_page(metrics))
    return {
        tuple(value for _, value in sorted(one.labels.items())): one.value
        for family in families
        for one in family.samples
        if one.name == name
    }


def test_shadow_pods_by_phase(metrics: Metrics) -> None:
    _show(metrics, small(shadows=(ready(), ready("shadow-2-b"), shadow("shadow-2-c"))))
    assert _values(metrics, "mizar_shadow_pods") == {("Ready", "pool"): 2, ("Pending", "pool"): 1}


def test_cards_by_health(metrics: Metrics) -> None:
    half = replace(node("n1"), cards={"nvidia.com/gpu": CardsOnNode(4, 3)})
    _show(metrics, small(nodes=(half,)))
    found = _values(metrics, "mizar_node_cards")
    place = ("n1", "pool", "nvidia.com/gpu")
    assert found == {("healthy", *place): 3, ("unhealthy", *place): 1}


def test_waiting_pods_by_reason(metrics: Metrics) -> None:
    profiles = [{"devices": 2, "max": 1}]
    shares = tuple(waiting(f"p{i}") for i in range(5))
    quotas = (quota("team-a", profiles=profiles),)
    snapshot = small(quotas=quotas, shadows=(ready(),), shares=shares)
    _show(metrics, snapshot)
    found = _values(metrics, "mizar_waiting_pods")
    assert found == {("team-a", "QuotaExceeded"): 3, ("team-a", "Scheduling"): 2}


def test_pods_that_wait_in_pools_of_two_prefixes_are_added_up(metrics: Metrics) -> None:
    def wait(key: str, count: int) -> dict[tuple[str, ...], float]:
        _show(metrics, small(shares=tuple(waiting(f"p{i}") for i in range(count))), key=key)
        return _values(metrics, "mizar_waiting_pods")

    labels = ("team-a", "WaitingForShadow")
    assert wait("mizar.share", 5) == {labels: 5}
    assert wait("other.prefix", 1) == {labels: 6}
    assert wait("mizar.share", 2) == {labels: 3}
    assert wait("other.prefix", 0) == {labels: 2}
    assert wait("mizar.share", 0) == {}


def test_series_go_with_what_they_are_about(metrics: Metrics) -> None:
    _show(metrics, small(shadows=(ready(),), shares=(waiting("p"),)))
    _show(metrics, small(pools=(pool("other"),), quotas=()), key="other.prefix")
    _show(metrics, Snapshot())
    for name in ("mizar_shadow_pods", "mizar_waiting_pods", "mizar_quota_ready_devices"):
        assert _values(metrics, name) == {}, name
    assert {labels[0] for labels in _values(metrics, "mizar_pool_cards")} == {"other"}
    assert {labels[2] for labels in _values(metrics, "mizar_node_cards")} == {"other"}


def test_refused_creations(metrics: Metrics) -> None:
    metrics.refusals([(("team-a", "gpus"), 2), (("team-a", "gpus"), 2)])
    assert _values(metrics, "mizar_shadow_pods_refused_total") == {("team-a", "2", "gpus"): 2}


def test_the_first_refused_creation_is_an_increase(metrics: Metrics) -> None:
    """To Prometheus, a series that begins with 1 has never grown."""
    key = ("team-a", "2", "quota")
    _show(metrics, small())
    assert _values(metrics, "mizar_shadow_pods_refused_total") == {key: 0}
    metrics.refusals([(("team-a", "quota"), 2)])
    _show(metrics, small())
    assert _values(metrics, "mizar_shadow_pods_refused_total") == {key: 1}


def test_refused_creations_of_a_quota_that_is_gone_go(metrics: Metrics) -> None:
    metrics.refusals([(("team-a", "quota"), 2)])
    _show(metrics, small())
    assert _values(metrics, "mizar_shadow_pods_refused_total")
    _show(metrics, Snapshot())
    assert not _values(metrics, "mizar_shadow_pods_refused_total")


def test_refused_creations_of_a_quota_that_another_key_plans_now_stay(metrics: Metrics) -> None:
    """The quota's pool was made anew, with another prefix."""
    _show(metrics, small())
    metrics.refusals([(("team-a", "quota"), 2)])
    _show(metrics, small(), key="other.prefix")
    _show(metrics, Snapshot())
    key = ("team-a", "2", "quota")
    assert _values(metrics, "mizar_shadow_pods_refused_total") == {key: 1}
    _show(metrics, Snapshot(), key="other.prefix")
    assert not _values(metrics, "mizar_shadow_pods_refused_total")


def _pod(started: str | None, restarts: int = 0) -> SharePod:
    status = {"name": "c", "restartCount": restarts}
    state: dict[str, Any] = {"running": {"startedAt": started}} if started else {"waiting": {}}
    container = {"name": "c", "resources": {"limits": {"team-a.mizar.share/gpu.2": "1"}}}
    view = pod_view(
        {
            "metadata": {
                "name": "p",
                "namespace": "team-a",
                "creationTimestamp": "2026-01-31T12:00:00Z",
            },
            "spec": {"containers": [container]},
            "status": {"phase": "Pending", "containerStatuses": [{**status, "state": state}]},
        }
    )
    assert isinstance(view, SharePod)
    return view


def test_how_long_a_share_pod_took_to_run(metrics: Metrics) -> None:
    starting, running = _pod(None), _pod("2026-01-31T12:00:07Z")
    metrics.pod_changed(starting, running)
    metrics.pod_changed(running, _pod("2026-01-31T13:00:00Z"))
    metrics.pod_changed(None, running)
    assert _values(metrics, "mizar_share_pod_start_seconds_count") == {(): 1}
    assert _values(metrics, "mizar_share_pod_start_seconds_sum") == {(): 7}


def test_a_container_that_restarts_is_no_start_of_its_pod(metrics: Metrics) -> None:
    """It ran out of memory after three days: it is between two runs, and runs again."""
    metrics.pod_changed(_pod(None), _pod("2026-01-31T12:00:07Z"))
    metrics.pod_changed(_pod("2026-01-31T12:00:07Z"), _pod(None))
    metrics.pod_changed(_pod(None), _pod("2026-02-03T12:00:00Z", restarts=1))
    assert _values(metrics, "mizar_share_pod_start_seconds_count") == {(): 1}
    assert _values(metrics, "mizar_share_pod_start_seconds_sum") == {(): 7}


def test_failures_of_planning_are_counted_from_zero() -> None:
    """An alert sees no increase in a series that begins with 1."""
    registry = Metrics().registry
    for kind in ("Pod", "PendingPod", "Node", "ShadowPod", "GPUQuota", "GPUPool"):
        assert registry.get_sample_value("mizar_planning_errors_total", {"kind": kind}) == 0
