"""Properties of every plan, whatever the snapshot (INVARIANTS.md, 3 and 6)."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil
from random import Random
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import ReapReason
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import (
    CreatePod,
    CreateQuota,
    CreateShadow,
    DeleteShadow,
    Drain,
    RemoveFinalizer,
    WriteQuotaStatus,
)
from mizar_core.planning.draft import Draft
from mizar_core.planning.feasible_nodes import FeasibleNodes
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.scheduler_simulation import is_admitted
from mizar_core.planning.shadow_stage import LIVE, ShadowStage, stage_of
from mizar_core.planning.snapshot import Key, NodeView, ShadowView, quota_key
from property.plan.clusters import changed, cluster, snapshots
from property.plan.snapshots import NOW, node, pool, quota, shadow, waiting
from support.effort import effort
from support.projection import apply_plan

T = TypeVar("T")


def _tallies(snapshot: Snapshot) -> tuple[Counter[tuple[Key, int]], Counter[Key]]:
    shadows, cards = Counter[tuple[Key, int]](), Counter[Key]()
    nodes = {one.name: one for one in snapshot.nodes}
    for one in snapshot.shadows:
        # Nothing is left of shadow pods that only another program's finalizer keeps.
        if stage_of(one, nodes) is not ShadowStage.GONE and not _is_stranded(one, nodes):
            shadows[one.quota_key, one.devices] += 1
            cards[one.quota_key] += one.cards
    return shadows, cards


def _is_stranded(shadow: ShadowView, nodes: dict[str, NodeView]) -> bool:
    pod = shadow.pod
    if pod is None or pod.node is None or not pod.deleting or pod.overdue_at is None:
        return False
    answers = pod.node in nodes and nodes[pod.node].available
    return pod.overdue_at <= NOW and not answers


@effort(9)
@given(snapshots())
# A pod is refused a node, and its shadow pod there is deleted, or its drain cancelled.
@example(cluster(1017))
@example(cluster(1061))
@example(cluster(3935))
# A shadow pod whose card has failed in part is idle, and a pod waits for all of its devices.
@example(changed(1826))
def test_planning_again_plans_nothing(snapshot: Snapshot) -> None:
    """Invariant 6: idempotent. Only a default quota's shadow pods come in the plan after its own:
    see CreateQuota."""
    first = plan(snapshot, NOW)
    assert not first.unsettled
    if any(isinstance(one, CreateQuota) for one in first.actions):
        snapshot = apply_plan(snapshot, first)
        first = plan(snapshot, NOW)
    again = plan(apply_plan(snapshot, first), NOW)
    assert not again.actions, f"first {first.actions}\nagain {again.actions}"


@effort(9)
@given(snapshots(), st.randoms(use_true_random=False))
@example(changed(39), Random(39)).via("two quotas that are overdrawn")
def test_order_does_not_matter(snapshot: Snapshot, random: Random) -> None:
    """Invariant 6: deterministic, indifferent to the order of its input."""

    def shuffled(part: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(random.sample(part, len(part)))

    other = replace(
        snapshot,
        pools=shuffled(snapshot.pools),
        quotas=shuffled(snapshot.quotas),
        shadows=shuffled(snapshot.shadows),
        shares=shuffled(snapshot.shares),
        nodes=shuffled(snapshot.nodes),
        refused=shuffled(snapshot.refused),
        pending=shuffled(snapshot.pending),
    )
    assert plan(other, NOW) == plan(snapshot, NOW)


@effort(9)
@given(snapshots())
def test_creates_nothing_beyond_a_quota(snapshot: Snapshot) -> None:
    before, cards_before = _tallies(snapshot)
    after, cards = _tallies(apply_plan(snapshot, plan(snapshot, NOW)))
    for one in snapshot.quotas:
        key, ceiling = quota_key(one), one.spec.max_cards
        for limits in one.spec.profiles:
            profile = key, limits.devices
            assert after[profile] <= max(limits.max, before[profile])
        if ceiling is not None:
            assert cards[key] <= max(ceiling, cards_before[key])


@effort(9)
@given(snapshots())
def test_takes_nothing_from_a_holder(snapshot: Snapshot) -> None:
    """Invariant 3: no device is drained, deleted or forgotten while a container holds it."""
    known = {one.key: one for one in snapshot.shadows}
    nodes = {one.name for one in snapshot.nodes}
    for action in plan(snapshot, NOW).actions:
        if isinstance(action, Drain | DeleteShadow | RemoveFinalizer):
            victim = known[action.shadow]
            assert not victim.held or victim.on_node not in nodes or victim.on_node is None


@effort(9)
@given(snapshots())
def test_deletes_only_what_is_drained_lost_or_was_never_bound(snapshot: Snapshot) -> None:
    """Invariant 3: stop advertising the devices, make sure that no container holds one, then
    delete. What no node agent reports on, a minute after it was to be drained, was never
    advertised."""
    known = {one.key: one for one in snapshot.shadows}
    nodes = {one.name for one in snapshot.nodes}
    for action in plan(snapshot, NOW).actions:
        if isinstance(action, DeleteShadow):
            victim = known[action.shadow]
            pod = victim.pod
            assert not victim.contested
            assert (
                pod is None
                or pod.ended
                or victim.lost
                or pod.node is None
                or pod.node not in nodes
                or (pod.drain_asked is not None and victim.drained)
                or (pod.drain_asked is not None and _was_never_offered(victim, pod.drain_asked))
            )


def _was_never_offered(shadow: ShadowView, drain_asked: datetime) -> bool:
    reported = shadow.node or shadow.heard_at or shadow.ready or shadow.healthy or shadow.held
    return not reported and drain_asked + timedelta(seconds=60) <= NOW


KEEPS_NO_MINIMUM = (ReapReason.REPLACED, ReapReason.AGENT_SILENT)
"""The first keeps it by what replaces the shadow pod; what the second ends is of use to nobody."""


@effort(9)
@given(snapshots())
# Of two idle shadow pods, one is replaced.
@example(cluster(100274))
def test_idleness_costs_nobody_the_minimum(snapshot: Snapshot) -> None:
    sound = [one for one in snapshot.quotas if _is_sound(one, snapshot)]
    planned = plan(snapshot, NOW)
    drains = [one for one in planned.actions if isinstance(one, Drain)]
    drained = {one.shadow for one in drains if one.reason not in KEEPS_NO_MINIMUM}
    excepted = {one.shadow for one in drains} - drained
    after = apply_plan(snapshot, planned)
    nodes = {one.name for one in after.nodes}
    warm = Counter(
        (one.quota_key, one.devices)
        for one in after.shadows
        if stage_of(one, nodes) in LIVE or one.key in excepted
    )
    for victim in snapshot.shadows:
        if victim.key not in drained or victim.deleting or victim.broken:
            continue
        for one in sound:
            if quota_key(one) == victim.quota_key:
                least = {limits.devices: limits.min for limits in one.spec.profiles}
                key = victim.quota_key, victim.devices
                assert warm[key] >= least.get(victim.devices, 0)


def _is_sound(quota: GPUQuota, snapshot: Snapshot) -> bool:
    """Whether nothing but `min` and `max` limits the quota."""
    pools = {one.metadata.name: one for one in snapshot.pools}
    pool = pools.get(quota.spec.pool)
    if quota.metadata.deletion_timestamp or quota.spec.max_cards is not None or pool is None:
        return False
    return all(pool.spec.profile(one.devices) for one in quota.spec.profiles)


@effort(9)
@given(snapshots())
def test_the_worst_is_over_after_the_world_has_moved(snapshot: Snapshot) -> None:
    """The planner converges: when every deletion takes effect, plan after plan ends in an empty
    one."""
    for _ in range(12):
        planned = plan(snapshot, NOW)
        snapshot = _move(apply_plan(snapshot, planned))
        if not planned.actions:
            return
    raise AssertionError(f"still planning: {planned.actions}")


def _move(snapshot: Snapshot) -> Snapshot:
    """Kubelet and node agents do what they were asked to do."""
    moved = []
    for one in snapshot.shadows:
        if one.pod is not None and one.pod.deleting:
            one = replace(one, pod=None)
        if one.pod is not None and one.pod.drain_asked is not None:
            one = replace(one, drained=not one.held, draining=not one.held, ready=one.held)
        elif one.draining:
            one = replace(one, draining=False, drained=False)
        if not (one.deleting and not one.finalizer and one.pod is None):
            moved.append(replace(one, contested=False))
    return replace(snapshot, shadows=tuple(moved))


@effort(9)
@given(
    counts=st.lists(st.integers(1, 2), max_size=20),
    starting=st.integers(0, 5),
)
def test_creates_as_many_as_the_design_says(counts: list[int], starting: int) -> None:
    """ceil(-(ready + pipelining) / N) where nothing is fragmented; never fewer."""
    shares = [waiting(f"p{i}", count) for i, count in enumerate(counts)]
    snapshot = Snapshot(
        pools=(pool(),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 100}]),),
        shadows=tuple(shadow(f"shadow-2-{i}", sequence=i) for i in range(starting)),
        shares=tuple(shares),
        nodes=(node("n1"),),
    )
    planned = plan(snapshot, NOW)
    made = sum(isinstance(one, CreateShadow) for one in planned.actions)
    lacking = sum(counts) - 2 * starting
    assert made >= max(0, ceil(lacking / 2))
    if all(count == 1 for count in counts):
        assert made == max(0, ceil(lacking / 2))


@effort(9)
@given(snapshots())
def test_negative_means_created_or_refused(snapshot: Snapshot) -> None:
    """A quota that lacks devices after the plan says so, and why."""
    for action in plan(snapshot, NOW).actions:
        if isinstance(action, WriteQuotaStatus):
            status = action.status
            satisfied = next(one for one in status.conditions if one.type == "Satisfied")
            if status.ready + status.pipelining < 0:
                assert satisfied.status == "False", status


@effort(9)
@given(snapshots())
def test_nobody_waits_beside_a_satisfied_quota(snapshot: Snapshot) -> None:
    for key, status in plan(snapshot, NOW).quotas.items():
        satisfied = next(one for one in status.conditions if one.type == "Satisfied")
        assert satisfied.status == "False" or status.waiting == 0, (key, status)


@effort(9)
@given(snapshots())
def test_all_that_wait_count_for_a_quota_of_their_namespace(snapshot: Snapshot) -> None:
    """Whatever profile the pods ask for."""
    draft, counted = Draft(snapshot, NOW), Counter[str]()
    for (namespace, _), status in plan(snapshot, NOW).quotas.items():
        counted[namespace] += status.waiting
    paid = {key[0] for key, one in draft.active_quotas.items() if one.spec.pool in draft.pools}
    waiting = Counter[str]()
    for one in snapshot.shares:
        if one.node is None and one.namespace in paid and is_admitted(draft, one):
            waiting[one.namespace] += one.count
    assert +counted == waiting


@effort(9)
@given(snapshots())
def test_what_is_refused_is_not_asked_for_again(snapshot: Snapshot) -> None:
    known = {one.key: one for one in snapshot.shadows}
    refused = {(one.quota, one.devices) for one in snapshot.refused}
    for action in plan(snapshot, NOW).actions:
        if isinstance(action, CreateShadow):
            assert ((action.shadow[0], action.quota), action.devices) not in refused
        if isinstance(action, CreatePod):
            shadow = known[action.shadow]
            assert (shadow.quota_key, shadow.devices) not in refused


@effort(9)
@given(snapshots())
def test_a_shadow_pod_serves_whom_it_is_made_for(snapshot: Snapshot) -> None:
    """Otherwise one shadow pod after the other would be made, as far as the quota goes."""
    known = {one.metadata.name: one for one in snapshot.pools}
    feasible_nodes = FeasibleNodes(known, snapshot.nodes, snapshot.shadows)
    for name, owner in known.items():
        for share in snapshot.shares:
            wanted = replace(share.needs, excluded_nodes=frozenset({"n2"}))
            if _contradict(wanted, owner):
                continue
            needs = feasible_nodes.needs_for(name, wanted)
            assert feasible_nodes.serves(name, needs, wanted), (needs, wanted)


def _contradict(needs: Needs, pool: GPUPool) -> bool:
    selector = pool.spec.node_selector
    return any(selector.get(key, value) != value for key, value in needs.selector)


@effort(9)
@given(snapshots())
def test_only_time_makes_a_plan_due(snapshot: Snapshot) -> None:
    due = plan(snapshot, NOW).due
    assert due is None or due > NOW
