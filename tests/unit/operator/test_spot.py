"""Spot pods from the API server to the plan, and from the plan back to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Event
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from mizar_core.model_base import format_time, parse_time
from mizar_core.names import SPOT_GATE
from mizar_core.planning.spot import SpotPlan, SpotSnapshot, plan_spot
from mizar_core.spot_rules import CONFIG_MAP, KEY
from mizar_kube.client import KubeClient
from mizar_kube.clock import Clock
from mizar_kube.errors import Forbidden, KubeError, Unavailable
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_kube.kinds import CONFIG_MAP as CONFIG_MAPS
from mizar_kube.kinds import (
    GPU_POOL,
    GPU_QUOTA,
    NODE,
    POD,
    Kind,
    Object,
    Ref,
)
from mizar_kube.store import key_of
from mizar_kube.work_queue import WorkQueue
from mizar_operator.caches import SPOT, Caches
from mizar_operator.kopf_store import KopfStore
from mizar_operator.main import Operator
from mizar_operator.settings import Settings
from mizar_operator.spot import assembly
from mizar_operator.spot.pod_view import spot_view
from mizar_operator.spot.reconcile import SpotReconciler
from mizar_operator.status_writer import StatusWriter, without_lending, without_spot
from stateful.harness import Events
from stateful.memory_api import MemoryApi, Write
from unit.operator.slices import device, device_class, resource_slice

NOW = parse_time("2026-03-01T12:00:00Z")
CARDS = "mizar.spot/gpu"


def pod(name: str, namespace: str = "a", age: int = 60, **spec: Any) -> Object:
    """A spot pod as the webhook lets it in."""
    container = {"name": "main", "resources": {"limits": {CARDS: "1"}, "requests": {CARDS: "1"}}}
    gates = {} if "nodeName" in spec else {"schedulingGates": [{"name": SPOT_GATE}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {"mizar.share/spot-pod": "true"},
            "creationTimestamp": format_time(NOW - timedelta(seconds=age)),
        },
        "spec": {"containers": [container], **gates, **spec},
        "status": {"phase": "Pending"},
    }


def lost(name: str, reason: str = "OwnerBack") -> Object:
    """A spot pod of which the node agent says that it has lost its card."""
    made = pod(name, nodeName="n1")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return made | {"status": {"conditions": [{**condition, "message": "owner x/y woke up"}]}}


def node(lendable: int) -> Object:
    count = {CARDS: str(lendable)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "spec": {},
        "status": {
            "capacity": {CARDS: "4"},
            "allocatable": count,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def quota(namespace: str, most: int) -> Object:
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUQuota",
        "metadata": {"name": "gpus", "namespace": namespace},
        "spec": {"spot": {"max": most}},
    }


def pool(**spot: Any) -> Object:
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": "default"},
        "spec": {"spot": {"enabled": True, **spot}},
    }


class Cluster:
    """The operator's part for spot pods, on an API server in memory."""

    def __init__(self, *objects: Object, **settings: Any) -> None:
        self.api, self.events, self.now = MemoryApi(), Events(), NOW
        self.writes: list[Write] = []
        self.api.before_write = self.writes.append
        rules = {"apiVersion": "v1", "kind": "ConfigMap", "data": {}}
        meta = {"name": CONFIG_MAP, "namespace": "mizar-system"}
        for obj in (rules | {"metadata": meta}, *objects):
            self.api.put(obj)
        self.settings = Settings(**{"spot": True} | settings)
        self.restart()

    def restart(self) -> None:
        """A new process."""
        client = cast(KubeClient, self.api)
        self.caches, self.registry = Caches(client), CollectorRegistry()
        self.queue: WorkQueue[str] = WorkQueue(clock=self.seconds)
        assembly.follow(self.caches, self.queue.add)
        self.reconciler: SpotReconciler = assembly.reconciler(
            client,
            self.caches,
            cast(EventRecorder, self.events),
            self.queue,
            self.registry,
            self.settings,
            Clock(self.seconds, lambda: self.now),
        )

    def seconds(self) -> float:
        return self.now.timestamp()

    def sync(self) -> None:
        """The watches catch up."""
        for kind, copy in self._copies():
            found = list(self.api.all(kind))
            for obj in found:
                copy._store.put(obj, even_older=True)
            copy._store.keep_only(key_of(obj) for obj in found)
            copy.synced.set()
            if isinstance(copy, Informer):
                copy._version = str(self.api.version)

    def _copies(self) -> Iterator[tuple[Kind, Informer[Any] | KopfStore[Any]]]:
        yield from ((POD, self.caches.spots), (NODE, self.caches.nodes))
        yield from ((GPU_POOL, self.caches.pools), (GPU_QUOTA, self.caches.quotas))

    def round(self) -> None:
        """The watches catch up, and the operator acts."""
        self.sync()
        self.again()

    def work(self) -> None:
        """The operator acts on whatever is due in its queue."""
        while len(self.queue):
            key = asyncio.run(self.queue.get())
            try:
                self.again()
            finally:
                self.queue.done(key)

    def again(self) -> None:
        """The operator acts by what it knows."""
        asyncio.run(self.reconciler.reconcile())

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        found = self.api.find(kind, name, namespace)
        assert found is not None
        return found

    def gated(self) -> list[str]:
        pods = (one for one in self.api.all(POD) if one["spec"].get("schedulingGates"))
        return sorted(one["metadata"]["name"] for one in pods)

    def there(self) -> list[str]:
        pods = (one["metadata"] for one in self.api.all(POD))
        return sorted(one["name"] for one in pods if "deletionTimestamp" not in one)

    def figure(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_gates_open_for_as_many_as_cards_are_lendable() -> None:
    cluster = Cluster(quota("a", 4), node(2), *(pod(f"p{i}", age=9 - i) for i in range(3)))
    cluster.round()
    assert cluster.gated() == ["p2"]
    assert [(about, reason) for about, reason, _ in cluster.events.told] == [
        ("Pod/p2", "SpotWaiting")
    ]
    assert not cluster.events.warnings, "to wait for one's turn is nothing wrong"
    cluster.round()
    assert len(cluster.events.told) == 1


def test_a_waiting_pod_is_told_by_itself_when_the_queue_before_it_gets_shorter() -> None:
    cluster = Cluster(quota("a", 4), node(0), *(pod(f"p{i}", age=9 - i) for i in range(3)))
    cluster.round()
    assert [note.split("; ")[1] for _, _, note in cluster.events.told] == [
        "it is next",
        "1 spot pod ahead of it",
        "2 spot pods ahead of it",
    ]
    for name in ("p1", "p0"):
        cluster.api.remove(cluster.get(POD, name, "a"))
        cluster.now += timedelta(seconds=10)
        cluster.round()
    for _ in range(281):
        assert len(cluster.events.told) == 3
        cluster.now += timedelta(seconds=1)
        cluster.work()
    ((about, _, note),) = cluster.events.told[3:]
    assert (about, note.split("; ")[1]) == ("Pod/p2", "it is next")


def test_what_was_opened_is_known_before_the_watch_tells() -> None:
    """Otherwise a card would be promised twice."""
    cluster = Cluster(quota("a", 4), node(1), pod("p", age=9), pod("q", age=8))
    cluster.round()
    cluster.writes.clear()
    cluster.again()
    assert cluster.writes == []
    assert cluster.gated() == ["q"]


def test_a_gate_of_somebody_else_stays(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(quota("a", 4), node(1), pod("p"))
    cluster.sync()
    cluster.get(POD, "p", "a")["spec"]["schedulingGates"].append({"name": "example.com/mine"})
    cluster.again()
    assert cluster.gated() == ["p"]
    assert len(cluster.get(POD, "p", "a")["spec"]["schedulingGates"]) == 2


def test_a_pod_that_took_the_name_waits_for_a_turn_of_its_own() -> None:
    cluster = Cluster(quota("a", 4), node(1), pod("p"))
    cluster.sync()
    cluster.get(POD, "p", "a")["metadata"]["uid"] = "another"
    cluster.again()
    assert cluster.gated() == ["p"]


def test_a_spot_pod_that_lost_its_card_is_evicted() -> None:
    cluster = Cluster(quota("a", 4), node(0), lost("p"))
    cluster.round()
    assert "deletionTimestamp" in cluster.get(POD, "p", "a")["metadata"]
    # The node agent has reported the loss and counted it.
    assert cluster.events.told == []
    assert cluster.figure("mizar_spot_evictions_total", reason="QuotaReclaim") == 0


def test_an_eviction_that_was_begun_is_ended() -> None:
    """The API server first writes its own reason over the node agent's, then deletes; if it stops
    in between, nothing else would delete the pod."""
    cluster = Cluster(quota("a", 4), node(0), lost("p", "EvictionByEvictionAPI"))
    cluster.round()
    assert "deletionTimestamp" in cluster.get(POD, "p", "a")["metadata"]
    assert cluster.figure("mizar_spot_evictions_total", reason="Drain") == 0


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "DeletionByTaintManager"])
def test_what_others_do_to_a_pod_is_theirs(reason: str) -> None:
    cluster = Cluster(quota("a", 4), node(1), lost("p", reason))
    cluster.round()
    assert cluster.caches.spots.get("p", "a") is not None
    assert "deletionTimestamp" not in cluster.get(POD, "p", "a")["metadata"]


def refusing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reason: str = "QuotaReclaim"
) -> list[float]:
    """A budget refuses the evictions. Returns what was counted for that reason each time it was
    asked."""
    counted: list[float] = []

    async def evict(ref: Ref, **_: Any) -> Object:
        counted.append(cluster.figure("mizar_spot_evictions_total", reason=reason))
        causes = frozenset({"DisruptionBudget"})
        raise Unavailable("a budget is in the way", status=429, causes=causes)

    monkeypatch.setattr(cluster.api, "evict", evict)
    return counted


def test_a_budget_protects_nobody_whose_processes_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(quota("a", 4), node(0), lost("p"))
    refusing(cluster, monkeypatch)
    cluster.round()
    assert "deletionTimestamp" in cluster.get(POD, "p", "a")["metadata"]


@pytest.mark.parametrize(
    ("allowed", "lends", "reason"), [(0, True, "QuotaReclaim"), (1, False, "Drain")]
)
def test_what_the_operator_takes_back_is_counted_and_then_evicted_once(
    monkeypatch: pytest.MonkeyPatch, allowed: int, lends: bool, reason: str
) -> None:
    """A quota was lowered, or the installation lends no more."""
    cluster = Cluster(quota("a", allowed), node(1), pod("p", nodeName="n1"), spot=lends)
    counted = refusing(cluster, monkeypatch, reason)
    for _ in range(2):
        cluster.round()
        assert "deletionTimestamp" not in cluster.get(POD, "p", "a")["metadata"]
    cluster.now += timedelta(seconds=31)
    for _ in range(2):
        cluster.round()
        assert "deletionTimestamp" in cluster.get(POD, "p", "a")["metadata"]
    assert counted == [1, 1, 1]
    assert cluster.figure("mizar_spot_evictions_total", reason=reason) == 1


def test_a_pod_keeps_no_card_by_a_grace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds also where the pod is being deleted already: the API server accepts a shorter
    grace period."""
    new = pod("new", nodeName="n1", terminationGracePeriodSeconds=86400)
    quick = pod("quick", nodeName="n1", terminationGracePeriodSeconds=5)
    old = pod("old", nodeName="n1", terminationGracePeriodSeconds=86400)
    old["metadata"]["deletionTimestamp"] = format_time(NOW + timedelta(days=1))
    cluster = Cluster(quota("a", 0), node(1), old, new, quick)
    asked: dict[str, int | None] = {}

    async def evict(ref: Ref, *, grace_seconds: int | None = None, **_: Any) -> Object:
        asked[ref.name] = grace_seconds
        return {}

    monkeypatch.setattr(cluster.api, "evict", evict)
    cluster.round()
    assert asked == {"old": 30, "new": 30, "quick": 5}


def test_nobody_loses_a_card_for_a_quota_that_cannot_be_read() -> None:
    broken = quota("a", 4)
    broken["spec"]["profiles"] = "many"
    cluster = Cluster(broken, node(2), pod("p", nodeName="n1"), pod("q"))
    cluster.round()
    assert "deletionTimestamp" not in cluster.get(POD, "p", "a")["metadata"]
    assert cluster.gated() == ["q"]


def refuse(cluster: Cluster, name: str, why: str = "1 Insufficient cpu.") -> None:
    """The scheduler finds no node for a pod that has waited behind its gate since its creation:
    the condition keeps the time that it had there."""
    made = cluster.get(POD, name, "a")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    since = made["metadata"]["creationTimestamp"]
    made["status"]["conditions"] = [condition | {"message": why, "lastTransitionTime": since}]
    cluster.api.touch(made)


class TestPromise:
    """A card is kept for a pod that the scheduler refuses for another reason."""

    def cluster(self) -> Cluster:
        """A pod that has waited for long has its turn, and the scheduler refuses it."""
        cluster = Cluster(quota("a", 1), node(1), pod("stuck", age=3600), pod("next", age=60))
        cluster.round()
        assert cluster.gated() == ["next"]
        refuse(cluster, "stuck")
        cluster.round()
        return cluster

    def test_it_is_kept_for_half_a_minute_however_long_the_pod_waited_for_its_turn(self) -> None:
        cluster = self.cluster()
        assert cluster.gated() == ["next"]
        cluster.now += timedelta(seconds=29)
        cluster.work()
        assert cluster.gated() == ["next"]
        cluster.now += timedelta(seconds=2)
        cluster.work()
        assert cluster.gated() == []

    def test_a_refusal_that_ended_does_not_count(self) -> None:
        cluster = self.cluster()
        cluster.now += timedelta(seconds=20)
        refuse(cluster, "stuck", f"1 Insufficient {CARDS}.")
        cluster.round()
        refuse(cluster, "stuck")
        cluster.round()
        cluster.now += timedelta(seconds=29)
        cluster.round()
        assert cluster.gated() == ["next"]

    def test_what_lapsed_stays_so_when_the_scheduler_says_that_cards_lack(self) -> None:
        """As it does once another pod has the card: otherwise one of the two would be evicted, and
        its controller's next pod go the same way."""
        cluster = self.cluster()
        cluster.now += timedelta(seconds=30)
        cluster.round()
        assert cluster.gated() == []
        bind(cluster, "next")
        refuse(cluster, "stuck", f"1 Insufficient {CARDS}.")
        cluster.round()
        assert cluster.there() == ["next", "stuck"]
        cluster.now += timedelta(seconds=1)
        bind(cluster, "stuck")
        cluster.round()
        assert cluster.there() == ["next"], "it was there first"

    def test_what_lapsed_stays_so_in_a_new_process(self) -> None:
        """Otherwise the quota would seem exceeded, and a pod be evicted for it."""
        cluster = self.cluster()
        cluster.now += timedelta(seconds=30)
        cluster.round()
        assert cluster.gated() == []
        cluster.restart()
        cluster.round()
        assert len(list(cluster.api.all(POD))) == 2


def bind(cluster: Cluster, name: str) -> None:
    """The scheduler finds a node for a pod."""
    made = cluster.get(POD, name, "a")
    made["spec"]["nodeName"] = "n1"
    made["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    cluster.api.touch(made)


def lends(cluster: Cluster, cards: int) -> None:
    """The node has that many cards to lend."""
    cluster.get(NODE, "n1")["status"]["allocatable"][CARDS] = str(cards)
    cluster.api.touch(cluster.get(NODE, "n1"))


class TestSilentScheduler:
    """A card is kept for a pod of which its scheduler says nothing."""

    def cluster(self) -> Cluster:
        first = pod("first", age=3600, schedulerName="nobody")
        cluster = Cluster(quota("a", 1), node(1), first, pod("next"))
        cluster.round()
        assert cluster.gated() == ["next"]
        cluster.round()
        return cluster

    def later(self, cluster: Cluster, seconds: int) -> None:
        cluster.now += timedelta(seconds=seconds)
        cluster.sync()
        cluster.work()

    def test_it_is_kept_for_five_minutes(self) -> None:
        cluster = self.cluster()
        self.later(cluster, 299)
        assert cluster.gated() == ["next"]
        self.later(cluster, 2)
        assert cluster.gated() == []
        assert cluster.events.told[-1] == (
            "Pod/first",
            "SpotWaiting",
            "its turn has come, but for 5 minutes the scheduler nobody has found no node for it and"
            " reported nothing new: its card may be given to another pod",
        )

    def test_a_scheduler_that_dies_while_a_pod_waits_for_a_card(self) -> None:
        """Nothing is lost while there is no card for it; the time counts from when there is."""
        cluster = self.cluster()
        refuse(cluster, "first", f"1 Insufficient {CARDS}.")
        lends(cluster, 0)
        cluster.round()
        self.later(cluster, 3600)
        lends(cluster, 1)
        cluster.round()
        assert cluster.gated() == ["next"]
        self.later(cluster, 299)
        assert cluster.gated() == ["next"]
        self.later(cluster, 2)
        assert cluster.gated() == []

    def test_news_of_the_pod_begins_the_time_anew(self) -> None:
        cluster = self.cluster()
        self.later(cluster, 299)
        refuse(cluster, "first", f"1 Insufficient {CARDS}.")
        cluster.round()
        self.later(cluster, 299)
        assert cluster.gated() == ["next"]

    def test_a_new_process_begins_the_time_anew(self) -> None:
        """It may have opened the gate a moment before it ended."""
        cluster = self.cluster()
        self.later(cluster, 299)
        cluster.restart()
        cluster.round()
        self.later(cluster, 299)
        assert cluster.gated() == ["next"]
        self.later(cluster, 2)
        assert cluster.gated() == []

    def test_while_the_only_scheduler_is_away_the_others_stay_behind_their_gates(self) -> None:
        """Or else it would bind them all when it is back, out of turn and beyond their quotas."""
        cluster = Cluster(quota("a", 9), node(2), *(pod(f"p{i}", age=9 - i) for i in range(7)))
        cluster.round()
        assert cluster.gated() == ["p2", "p3", "p4", "p5", "p6"]
        cluster.round()
        self.later(cluster, 301)
        assert cluster.gated() == ["p3", "p4", "p5", "p6"], "one finds out whether it is back"
        cluster.round()
        assert cluster.gated() == ["p3", "p4", "p5", "p6"]
        self.later(cluster, 301)
        assert cluster.gated() == ["p4", "p5", "p6"]
        lends(cluster, 6)
        for name in ("p0", "p1", "p2", "p3"):
            bind(cluster, name)
        cluster.round()
        assert cluster.gated() == ["p6"], "it is back"

    def test_a_scheduler_that_refuses_pods_is_there(self) -> None:
        cluster = Cluster(quota("a", 9), node(2), *(pod(f"p{i}", age=9 - i) for i in range(6)))
        cluster.round()
        cluster.round()
        self.later(cluster, 60)
        refuse(cluster, "p1")
        cluster.round()
        self.later(cluster, 241)
        assert cluster.gated() == ["p4", "p5"], "both promises have lapsed"


def test_turns_outlive_the_process() -> None:
    cluster = Cluster(quota("a", 4), quota("b", 4), node(1), pod("one", nodeName="n1"))
    cluster.round()
    cluster.now += timedelta(seconds=600)
    cluster.api.remove(cluster.get(POD, "one", "a"))
    cluster.round()
    told = cluster.get(GPU_QUOTA, "gpus", "a")["status"]["spot"]
    assert told["inUse"] == 0
    assert 500 < told["recentCardSeconds"] < 600
    cluster.restart()
    for made in (pod("of-a", "a", age=90), pod("of-b", "b", age=10)):
        cluster.api.put(made)
    cluster.round()
    assert cluster.gated() == ["of-a"]


def test_statuses_say_what_is_lent() -> None:
    cluster = Cluster(pool(), quota("a", 4), node(2), pod("r", nodeName="n1"), pod("p"))
    cards = {"nvidia.com/gpu": "4"}
    cluster.get(NODE, "n1")["status"]["capacity"] |= cards
    cluster.round()
    found = cluster.get(GPU_POOL, "default")["status"]
    assert found["cards"]["lent"] == 1
    assert [(one["type"], one["status"]) for one in found["conditions"]] == [("Lending", "True")]
    assert cluster.get(GPU_QUOTA, "gpus", "a")["status"]["spot"]["inUse"] == 2
    cluster.round()
    cluster.writes.clear()
    cluster.round()
    assert cluster.writes == []
    assert cluster.figure("mizar_spot_borrowed_cards", namespace="a", state="in_use") == 2
    assert cluster.figure("mizar_spot_lendable_cards", node="n1") == 0
    assert cluster.figure("mizar_spot_recent_card_seconds", namespace="a") is not None


def test_cards_of_the_dra_driver_are_lent_by_the_pool_that_has_them() -> None:
    """Its node's status names only those that may be lent."""
    cluster = Cluster(pool(), quota("a", 4), node(1), pod("p", nodeName="n1"))
    slices, classes = cluster.caches.dra.make_informers()
    slices._store.put(resource_slice("n1", device(0)))
    cluster.round()
    assert cluster.get(GPU_POOL, "default")["status"]["cards"]["lent"] == 0
    classes._store.put(device_class())
    cluster.round()
    assert cluster.get(GPU_POOL, "default")["status"]["cards"]["lent"] == 1


def test_each_namespace_has_figures_of_its_own() -> None:
    borrows = (pod(f"{name}-r", name, nodeName="n1") for name in "ab")
    cluster = Cluster(pool(), quota("a", 4), quota("b", 4), node(2), *borrows)
    cluster.round()
    figures = [
        cluster.figure("mizar_spot_borrowed_cards", namespace=name, state="in_use") for name in "ab"
    ]
    assert figures == [1, 1]


def test_a_quota_that_allows_no_spot_pods_any_more_says_nothing_of_them() -> None:
    cluster = Cluster(quota("a", 4), node(2), pod("r", nodeName="n1"))
    cluster.round()
    found = cluster.get(GPU_QUOTA, "gpus", "a")
    assert found["status"]["spot"]["inUse"] == 1
    found["spec"] = {"profiles": [{"devices": 2, "max": 1}]}
    cluster.api.touch(found)
    cluster.api.remove(cluster.get(POD, "r", "a"))
    cluster.round()
    assert "spot" not in cluster.get(GPU_QUOTA, "gpus", "a")["status"]


def test_no_status_is_written_to_another_object_of_the_name() -> None:
    cluster = Cluster(pool(), quota("a", 4), node(2), pod("r", nodeName="n1"))
    cluster.sync()
    for kind, name, namespace in ((GPU_QUOTA, "gpus", "a"), (GPU_POOL, "default", "")):
        found = cluster.get(kind, name, namespace)
        cluster.api.remove(found)
        cluster.api.put(found | {"metadata": found["metadata"] | {"uid": "another"}, "status": {}})
    cluster.again()
    assert not cluster.get(GPU_QUOTA, "gpus", "a")["status"]
    assert not cluster.get(GPU_POOL, "default")["status"]


def test_two_writers_of_one_status_leave_each_others_part() -> None:
    cluster = Cluster(pool(), quota("a", 4), node(1), pod("r", nodeName="n1"))
    cluster.round()
    client = cast(KubeClient, cluster.api)
    others = StatusWriter(client, cluster.caches)
    own_quota, own_pool = (
        cluster.caches.quotas.get("gpus", "a"),
        cluster.caches.pools.get("default"),
    )
    assert own_quota is not None
    assert own_quota.status.spot is not None
    assert own_pool is not None
    quota_part, pool_part = without_spot(own_quota.status), without_lending(own_pool.status)
    assert "spot" not in quota_part
    assert "lent" not in pool_part["cards"]
    assert pool_part["conditions"] == []
    asyncio.run(others.write(GPU_QUOTA, ("a", "gpus"), "", quota_part))
    asyncio.run(others.write(GPU_POOL, ("", "default"), "", pool_part))
    assert cluster.get(GPU_QUOTA, "gpus", "a")["status"]["spot"]["inUse"] == 1
    assert cluster.get(GPU_POOL, "default")["status"]["conditions"]


class TestRules:
    """The ConfigMap that node agents read."""

    def rules(self, cluster: Cluster) -> str:
        found = cluster.get(CONFIG_MAPS, CONFIG_MAP, "mizar-system")
        return str(found["data"].get(KEY, ""))

    def test_they_follow_the_pools(self) -> None:
        cluster = Cluster(pool(idleAfterSeconds=7))
        cluster.round()
        assert '"idleAfterSeconds":7' in self.rules(cluster)
        found = cluster.get(GPU_POOL, "default")
        found["spec"]["spot"]["idleAfterSeconds"] = 8
        cluster.api.touch(found)
        cluster.round()
        assert '"idleAfterSeconds":8' in self.rules(cluster)

    def test_an_installation_that_lends_nothing_has_none(self) -> None:
        cluster = Cluster(pool(), pod("p"), quota("a", 1), node(1), spot=False)
        cluster.round()
        assert self.rules(cluster) == '{"rules":[]}'
        assert cluster.gated() == ["p"]
        (condition,) = cluster.get(GPU_POOL, "default")["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "NotInstalled")

    def test_a_pool_that_cannot_be_read_changes_none(self) -> None:
        cluster = Cluster(pool())
        cluster.round()
        before = self.rules(cluster)
        broken = cluster.get(GPU_POOL, "default")
        broken["spec"]["spot"]["idleAfterSeconds"] = "soon"
        cluster.api.touch(broken)
        cluster.round()
        assert self.rules(cluster) == before

    def test_what_somebody_changed_comes_back_in_time(self) -> None:
        """It comes back without any other news: an upgrade of the chart may have made an empty
        one."""
        cluster = Cluster(pool())
        cluster.round()
        before = self.rules(cluster)
        cluster.work()
        cluster.get(CONFIG_MAPS, CONFIG_MAP, "mizar-system")["data"] = {}
        cluster.now += timedelta(seconds=31)
        cluster.work()
        assert self.rules(cluster) == before

    def test_an_installation_that_lends_nothing_does_not_look_again_by_itself(self) -> None:
        cluster = Cluster(spot=False)
        cluster.round()
        cluster.work()
        cluster.now += timedelta(seconds=3600)
        assert not len(cluster.queue)

    def test_without_the_config_map_the_rest_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster = Cluster(pool(), quota("a", 1), node(1), pod("p"))
        cluster.api.remove(cluster.get(CONFIG_MAPS, CONFIG_MAP, "mizar-system"))
        cluster.round()
        assert cluster.gated() == []


def test_a_failure_of_one_pod_holds_up_no_other() -> None:
    cluster = Cluster(quota("a", 4), node(2), pod("p", age=9), pod("q", age=8))

    def fail(write: Write) -> None:
        if write[1].name == "p":
            raise Unavailable("away", status=503)

    cluster.api.before_write = fail
    with pytest.raises(KubeError):
        cluster.round()
    assert cluster.gated() == ["p"]


def test_a_gate_that_cannot_be_opened_keeps_no_card_from_others() -> None:
    """A webhook of one namespace is down, or a policy there refuses every change of a pod."""
    pods = (pod("p", "a", age=9), pod("q", "b", age=8))
    cluster = Cluster(quota("a", 4), quota("b", 4), node(1), *pods)
    tries = list[timedelta]()

    def fail(write: Write) -> None:
        if write[1].name == "p":
            tries.append(cluster.now - NOW)
            raise Unavailable("failed calling webhook x.example.com", status=500)

    cluster.api.before_write = fail
    with pytest.raises(KubeError):
        cluster.round()
    cluster.round()
    assert cluster.gated() == ["p"]
    assert any("webhook x.example.com" in note for _, _, note in cluster.events.told)
    cluster.api.put(node(2))
    cluster.sync()
    for _ in range(120):
        cluster.now += timedelta(seconds=1)
        with suppress(KubeError):
            cluster.work()
    assert 4 <= len(tries) <= 10, "it is tried again, ever more seldom"


def test_a_job_whose_gates_cannot_be_opened_keeps_no_card_from_others() -> None:
    """Each of its pods would be tried in turn, since its namespace borrows nothing."""
    mine = [pod(f"p{number}", "a", age=99) for number in range(40)]
    others = [pod(f"q{number}", "b") for number in range(4)]
    cluster = Cluster(quota("a", 99), quota("b", 99), node(4), *mine, *others)

    def fail(write: Write) -> None:
        if write[1].namespace == "a" and write[1].kind == POD:
            raise Unavailable("failed calling webhook x.example.com", status=500)

    cluster.api.before_write = fail
    for _ in range(2):
        with suppress(KubeError):
            cluster.round()
    assert set(cluster.gated()) == {one["metadata"]["name"] for one in mine}
    assert any("webhook x.example.com" in note for _, _, note in cluster.events.told)


def test_a_pod_whose_gate_cannot_be_opened_holds_up_none_of_its_namespace() -> None:
    """A policy refuses the pod, and no other."""
    cluster = Cluster(quota("a", 4), node(1), pod("p", "a", age=9), pod("q", "a", age=8))

    def fail(write: Write) -> None:
        if write[1].name == "p":
            raise Forbidden("denied by a policy", status=403)

    cluster.api.before_write = fail
    for _ in range(8):
        with suppress(KubeError):
            cluster.round()
        cluster.now += timedelta(seconds=1)
    assert cluster.gated() == ["p"]


@pytest.mark.parametrize("lost", [Unavailable("no answer"), Unavailable("timeout", status=504)])
def test_a_gate_that_may_be_open_keeps_its_card(lost: KubeError) -> None:
    """The API server has opened it, but its answer was lost."""
    cluster = Cluster(quota("a", 1), node(1), pod("p", "a", age=9), pod("q", "a", age=8))

    def fail(write: Write) -> None:
        raise lost

    cluster.api.before_write = fail
    for _ in range(2):
        with suppress(KubeError):
            cluster.round()
    cluster.api.before_write = lambda write: None
    cluster.round()
    assert cluster.gated() == ["q"]


@pytest.mark.parametrize("lost", [Unavailable("no answer"), Unavailable("timeout", status=504)])
def test_a_gate_that_may_be_open_keeps_its_card_from_other_namespaces(lost: KubeError) -> None:
    """Whose turn has come meanwhile."""
    cluster = Cluster(quota("a", 1), quota("b", 1), node(1), pod("p", "a"), pod("q", "b"))

    def fail(write: Write) -> None:
        if write[1].name == "p":
            raise lost

    cluster.api.before_write = fail
    with suppress(KubeError):
        cluster.round()
    status = {"spot": {"recentCardSeconds": 900, "inUse": 0, "countedAt": "2026-03-01T11:59:59Z"}}
    first = cluster.api.find(GPU_QUOTA, "gpus", "a")
    assert first is not None
    first["status"] = status
    cluster.api.touch(first)
    cluster.api.before_write = lambda write: None
    cluster.round()
    assert cluster.gated() == ["q"]


def test_a_gate_that_was_open_already_keeps_its_card_before_the_watch_tells() -> None:
    """The second try is refused, since the first one took effect. By then it is the turn of another
    namespace."""
    cluster = Cluster(quota("a", 1), quota("b", 1), node(1), pod("p", "a"), pod("q", "b"))

    def lose(write: Write) -> None:
        if write[1].name == "p":
            found = cluster.get(POD, "p", "a")
            del found["spec"]["schedulingGates"]
            cluster.api.touch(found)
            raise Unavailable("no answer")

    cluster.api.before_write = lose
    with suppress(KubeError):
        cluster.round()
    cluster.api.before_write = lambda write: None
    status = {"spot": {"recentCardSeconds": 900, "inUse": 0, "countedAt": "2026-03-01T11:59:59Z"}}
    cluster.caches.quotas.observe(cluster.get(GPU_QUOTA, "gpus", "a") | {"status": status})
    for _ in range(3):
        with suppress(KubeError):
            cluster.again()
    assert cluster.gated() == ["q"]


def test_rules_that_cannot_be_written_delay_no_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy or a webhook refuses every change of ConfigMaps."""
    cluster = Cluster(pool(), quota("a", 0), node(1), pod("p", nodeName="n1"))
    tried = refusing(cluster, monkeypatch)

    def fail(write: Write) -> None:
        if write[1].kind == CONFIG_MAPS:
            raise Unavailable("failed calling webhook", status=500)

    cluster.api.before_write = fail
    cluster.sync()
    tries = list[int]()
    for _ in range(2):
        while len(cluster.queue):
            with suppress(KubeError):
                cluster.work()
        tries.append(len(tried))
        cluster.now += timedelta(seconds=6)
    assert 0 < tries[0] < tries[1]


async def test_other_tasks_run_while_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among them is the one that renews the Lease."""
    process = Operator(cast(KubeClient, MemoryApi()), Settings())
    started, renewed = Event(), Event()

    def slow(snapshot: SpotSnapshot, now: datetime) -> SpotPlan:
        started.set()
        assert renewed.wait(20), "the event loop stands still"
        return plan_spot(snapshot, now)

    monkeypatch.setattr("mizar_operator.spot.reconcile.plan_spot", slow)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(process.spot.reconcile())
        while not started.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        renewed.set()


def test_what_matters_to_lending_is_asked_for_and_nothing_else() -> None:
    cluster = Cluster()

    def asked(*objects: Object) -> bool:
        for obj in objects:
            cluster.api.put(obj)
        cluster.sync()
        found = len(cluster.queue) > 0
        while len(cluster.queue):
            key = asyncio.run(cluster.queue.get())
            assert key == SPOT
            cluster.queue.done(key)
        return found

    assert asked(pool())
    assert asked(quota("a", 1))
    told = cluster.get(GPU_QUOTA, "gpus", "a")
    told["status"] = {"ready": 1}
    cluster.api.touch(told)
    assert not asked()
    cluster.api.remove(told)
    again = quota("a", 1)
    again["metadata"]["uid"] = "another"
    assert asked(again), "it says nothing of what its namespace borrows yet"
    assert asked(node(1))
    other = node(1) | {"metadata": {"name": "plain"}, "status": {"capacity": {"cpu": "1"}}}
    assert not asked(other)
    assert asked(pod("p"))
    told = cluster.get(GPU_POOL, "default")
    told["status"] = {"cards": {"total": 1}}
    cluster.api.touch(told)
    assert not asked()
    lending = {"type": "Lending", "status": "False", "reason": "x", "message": "by a hand"}
    told["status"]["conditions"] = [lending | {"lastTransitionTime": format_time(NOW)}]
    cluster.api.touch(told)
    assert asked(), "what it says is put right"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_borrows_nothing(phase: str) -> None:
    assert spot_view(pod("p") | {"status": {"phase": phase}}) is None


def test_what_the_plan_sees_of_a_pod() -> None:
    made = pod("p", nodeSelector={"a": "b"})
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    view = spot_view(made | {"status": {"conditions": [scheduled]}})
    assert view is not None
    assert (view.cards, view.gates, view.node) == (1, (SPOT_GATE,), None)
    assert view.needs.selector == {("a", "b")}
    assert view.scheduler == "default-scheduler"
    assert view.unschedulable == "0/1 nodes"
    assert (view.lost, view.deleting) == (None, False)
    assert (view.grace_s, view.gone_by, view.borrows) == (30, None, "")
    made["spec"]["terminationGracePeriodSeconds"] = 86400
    made["metadata"]["deletionTimestamp"] = "2026-03-02T12:00:00Z"
    view = spot_view(made)
    assert view is not None and view.deleting
    assert (view.grace_s, view.gone_by) == (86400, parse_time("2026-03-02T12:00:00Z"))


def test_the_plan_sees_what_a_pod_borrows_while_its_node_agent_says_so() -> None:
    said = {"type": "mizar.share/borrows", "reason": "CardBorrowed", "message": "card GPU-1 of x/y"}
    for status, seen in (("True", "card GPU-1 of x/y"), ("False", "")):
        view = spot_view(pod("p") | {"status": {"conditions": [said | {"status": status}]}})
        assert view is not None and view.borrows == seen
