"""Since when share pods have waited for what should come by itself."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from mizar_operator.waiting_pod_metrics import WaitingPods


class Waiting:
    """The metrics of waiting pods, a minute after the other."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 1000.0
        self.pods = WaitingPods(self.registry, lambda: self.now)

    def since(self, key: str = "mizar.share", **waiting: list[str]) -> float | None:
        """The value for team-a after a plan whose pods wait for these reasons."""
        self.pods.planned(key, {("team-a", reason): uids for reason, uids in waiting.items()})
        self.now += 60
        name = "mizar_waiting_pods_due_since_timestamp_seconds"
        return self.registry.get_sample_value(name, {"namespace": "team-a"})


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_a_pod_goes_on_waiting_when_its_reason_changes(waiting: Waiting) -> None:
    assert waiting.since(WaitingForShadow=["one"]) == 1000
    assert waiting.since(NodeAgentSilent=["one"]) == 1000
    assert waiting.since(Scheduling=["one"], WaitingForShadow=["two"]) == 1000
    assert waiting.since(Scheduling=["two"]) == 1120


def test_a_flow_of_pods_is_no_pod_that_waits_long(waiting: Waiting) -> None:
    assert [waiting.since(Scheduling=[str(n)]) for n in range(3)] == [1000, 1060, 1120]


def test_pods_that_wait_for_a_decision_do_not_count(waiting: Waiting) -> None:
    assert waiting.since(QuotaExceeded=["one"], NoCardFree=["two"]) is None
    assert waiting.since(WaitingForShadow=["one"]) == 1060
    assert waiting.since(QuotaExceeded=["one"]) is None
    assert waiting.since(WaitingForShadow=["one"]) == 1180


def test_the_oldest_of_all_pools_counts(waiting: Waiting) -> None:
    assert waiting.since(Scheduling=["one"]) == 1000
    assert waiting.since("other.prefix", Scheduling=["two"]) == 1000
    assert waiting.since() == 1060
    assert waiting.since("other.prefix") is None
