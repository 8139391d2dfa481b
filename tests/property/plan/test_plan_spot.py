"""What a plan for spot pods must keep to, whichever pods ask for borrowed cards and whichever
owners sleep."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.model_base import parse_time
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import SPOT_GATE, SPOT_RESOURCE, SpotEvictionReason
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.node_fit import NO_NEEDS, Needs, fits
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from mizar_core.planning.spot import SpotPlan, SpotSnapshot, SpotView, plan_spot
from mizar_core.planning.spot.actions import EvictSpot, OpenGate, WriteLent, WriteSpotStatus
from mizar_core.planning.spot.next_borrowers import PATIENCE
from mizar_core.planning.spot.snapshot import STUCK_AFTER, UNHEARD_AFTER
from mizar_operator.spot.promises import Promises
from property.plan.among import among

NOW = parse_time("2026-03-01T12:00:00Z")
NAMESPACES = ("a", "b", "c")
ZONES = ("x", "y")
SCHEDULERS = ("default-scheduler", "nobody")
REFUSALS = ("1 Insufficient cpu.", f"1 Insufficient {SPOT_RESOURCE}.")
ROUND_S = 20
"""Seconds between two plans where a property is about hours."""
SECONDS = st.integers(0, 5).map(lambda seconds: timedelta(seconds=seconds))


def quota(namespace: str, most: int, status: dict[str, object] | None = None) -> GPUQuota:
    spec = {"spot": {"max": most}}
    meta = {"name": "gpus", "namespace": namespace, "uid": namespace}
    told = {"spot": status} if status else {}
    return GPUQuota.from_dict({"metadata": meta, "spec": spec, "status": told})


@st.composite
def quotas(draw: st.DrawFn) -> tuple[GPUQuota, ...]:
    found = []
    for name in draw(st.sets(st.sampled_from(NAMESPACES))):
        seconds, in_use = draw(st.integers(0, 10**5)), draw(st.integers(0, 3))
        at = {"countedAt": "2026-03-01T11:30:00Z"}
        status = {"recentCardSeconds": seconds, "inUse": in_use, **at}
        found.append(quota(name, draw(st.integers(0, 5)), draw(st.sampled_from((None, status)))))
    return tuple(found)


def in_zone(zone: str) -> Needs:
    return Needs(selector=frozenset({("zone", zone)}))


@st.composite
def spots(draw: st.DrawFn, at: int) -> SpotView:
    gates = draw(among((SPOT_GATE,), (SPOT_GATE,), (), ("other", SPOT_GATE)))
    refused = draw(st.booleans()) if not gates else False
    ago = (timedelta(0), STUCK_AFTER, UNHEARD_AFTER)
    return SpotView(
        namespace=draw(among(*NAMESPACES)),
        name=f"p{at}",
        uid=f"u{at}",
        cards=draw(st.integers(1, 2)),
        created=NOW - draw(among(timedelta(0), PATIENCE)) - draw(SECONDS),
        node=draw(among(None, "n0", "n1")) if not gates else None,
        gates=gates,
        needs=draw(among(NO_NEEDS, *map(in_zone, ZONES))),
        lost=draw(among(None, None, SpotEvictionReason.OWNER_BACK)),
        deleting=draw(among(False, False, True)),
        gone_by=NOW + draw(among(timedelta(seconds=30), timedelta(days=1))),
        scheduler=draw(among(*SCHEDULERS)),
        unschedulable=draw(among(*REFUSALS)) if refused else None,
        stuck_since=NOW - draw(among(*ago)) if refused else None,
        unheard_since=NOW - draw(among(*ago)) if not gates else None,
        lapsed=draw(among(False, False, True)) if not gates else False,
        late=draw(among(None, None, NOW - timedelta(seconds=1))),
    )


SPOTS = tuple(map(spots, range(9)))
QUOTAS = quotas()


@st.composite
def snapshots(draw: st.DrawFn) -> SpotSnapshot:
    nodes = tuple(
        NodeView(
            f"n{at}",
            labels=frozenset({("zone", draw(among(*ZONES)))}),
            available=draw(among(True, True, False)),
            cards={SPOT_RESOURCE: CardsOnNode(4, draw(st.integers(0, 4)))},
        )
        for at in range(draw(st.integers(0, 3)))
    )
    found = tuple(draw(SPOTS[at]) for at in range(draw(st.integers(0, 8))))
    pools = (GPUPool.from_dict({"metadata": {"name": "p"}, "spec": {"spot": {"enabled": True}}}),)
    heard = draw(st.dictionaries(among(*SCHEDULERS), st.just(NOW - UNHEARD_AFTER)))
    return SpotSnapshot(pools=pools, quotas=draw(QUOTAS), spots=found, nodes=nodes, heard=heard)


def opened(plan: SpotPlan) -> set[str]:
    return {one.uid for one in plan.actions if isinstance(one, OpenGate)}


def applied(snapshot: SpotSnapshot, plan: SpotPlan, at: datetime = NOW) -> SpotSnapshot:
    """The snapshot after the plan: evicted pods are on their way out."""
    evicted = {one.uid for one in plan.actions if isinstance(one, EvictSpot)}
    statuses = {
        one.quota[0]: one.status for one in plan.actions if isinstance(one, WriteSpotStatus)
    }
    events = [one for one in plan.actions if isinstance(one, EmitEvent)]
    lent = {one.pool: one for one in plan.actions if isinstance(one, WriteLent)}
    return replace(
        snapshot,
        spots=tuple(
            replace(
                one,
                gates=() if one.uid in opened(plan) else one.gates,
                deleting=one.deleting or one.uid in evicted,
            )
            for one in snapshot.spots
        ),
        quotas=tuple(
            one.changed(status=one.status.changed(spot=statuses[one.metadata.namespace or ""]))
            if one.metadata.namespace in statuses
            else one
            for one in snapshot.quotas
        ),
        pools=tuple(
            one.changed(
                status=one.status.changed(
                    cards=one.status.cards.changed(lent=told.lent), conditions=(told.condition,)
                )
            )
            if (told := lent.get(one.metadata.name))
            else one
            for one in snapshot.pools
        ),
        announced=snapshot.announced.union(*((one.subject, one.wording) for one in events)),
    )


def may_all_run(spots: list[SpotView], snapshot: SpotSnapshot) -> bool:
    """Whether some placement gives every pod its cards, beside those that have some."""
    free = {
        one.name: one.cards[SPOT_RESOURCE].healthy
        - sum(spot.cards for spot in snapshot.spots if spot.node == one.name)
        for one in snapshot.nodes
        if one.available
    }
    nodes = {one.name: one for one in snapshot.nodes}

    def place(left: list[SpotView]) -> bool:
        if not left:
            return True
        for name in free:
            if free[name] >= left[0].cards and fits(left[0].needs, nodes[name]):
                free[name] -= left[0].cards
                if place(left[1:]):
                    return True
                free[name] += left[0].cards
        return False

    return place(spots)


@given(snapshots())
def test_never_more_is_promised_than_is_lendable(snapshot: SpotSnapshot) -> None:
    new = [one for one in snapshot.spots if one.uid in opened(plan_spot(snapshot, NOW))]
    assert may_all_run(new, snapshot)
    promised = [one for one in snapshot.spots if one.promised and one.counts(NOW)]
    if may_all_run(promised, snapshot) and not any(one.needs.selector for one in snapshot.spots):
        assert may_all_run(promised + new, snapshot)


@given(snapshots())
def test_never_more_is_promised_than_a_quota_allows(snapshot: SpotSnapshot) -> None:
    plan = plan_spot(snapshot, NOW)
    most = {one.metadata.namespace: one.spec.spot.max for one in snapshot.quotas if one.spec.spot}
    for name in {one.namespace for one in snapshot.spots if one.uid in opened(plan)}:
        after = [one for one in applied(snapshot, plan).spots if one.namespace == name]
        before = [one for one in snapshot.spots if one.namespace == name]
        kept = {one.uid for one in before if one.counts(NOW)} | opened(plan)
        assert sum(one.cards for one in after if one.uid in kept) <= most[name]


@given(snapshots())
def test_what_stays_is_within_the_quota(snapshot: SpotSnapshot) -> None:
    most = {one.metadata.namespace: one.spec.spot.max for one in snapshot.quotas if one.spec.spot}
    have: Counter[str] = Counter()
    for spot in applied(snapshot, plan_spot(snapshot, NOW)).spots:
        if spot.counts(NOW) and not spot.deleting:
            have[spot.namespace] += spot.cards
    assert all(cards <= most.get(name, 0) for name, cards in have.items())


@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_its_input_does_not_count(
    snapshot: SpotSnapshot, chance: random.Random
) -> None:
    def shuffled(parts: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(chance.sample(parts, len(parts)))

    other = SpotSnapshot(
        pools=snapshot.pools,
        quotas=shuffled(snapshot.quotas),  # type: ignore[arg-type]
        spots=shuffled(snapshot.spots),  # type: ignore[arg-type]
        nodes=shuffled(snapshot.nodes),  # type: ignore[arg-type]
        heard=snapshot.heard,
    )
    assert plan_spot(snapshot, NOW) == plan_spot(other, NOW)


@given(snapshots())
def test_a_plan_that_is_applied_leaves_nothing_to_do(snapshot: SpotSnapshot) -> None:
    """Except for what follows from evicted pods: cards that were promised to them are free
    again."""
    first = plan_spot(snapshot, NOW)
    again = plan_spot(applied(snapshot, first), NOW)
    if not any(isinstance(one, EvictSpot) for one in first.actions):
        assert again.actions == ()


@given(
    seed=st.integers(0, 2**32),
    cards=st.integers(1, 4),
    tenants=st.integers(2, 3),
    longest=st.integers(30, 900),
)
def test_with_equal_demand_nobody_falls_behind_by_more_than_a_turn(
    seed: int, cards: int, tenants: int, longest: int
) -> None:
    """Each namespace has pods that wait at all times; each runs for a while of its own."""
    chance, names = random.Random(seed), NAMESPACES[:tenants]
    ends: dict[str, int] = {}
    had: Counter[str] = Counter()
    snapshot = SpotSnapshot(
        quotas=tuple(quota(name, 10) for name in names),
        nodes=(NodeView("n", cards={SPOT_RESOURCE: CardsOnNode(cards, cards)}),),
    )
    for second in range(0, 6 * longest, ROUND_S):
        now = NOW + timedelta(seconds=second)
        running = [one for one in snapshot.spots if one.node and ends[one.uid] > second]
        waiting = [waits(name, second, at, now) for name in names for at in range(cards)]
        snapshot = replace(snapshot, spots=(*running, *waiting))
        plan = plan_spot(snapshot, now)
        snapshot = applied(snapshot, plan, now)
        for one in snapshot.spots:
            if one.uid in opened(plan):
                ends[one.uid] = second + chance.randrange(10, longest + 1)
        snapshot = replace(
            snapshot,
            spots=tuple(
                replace(one, node="n") for one in snapshot.spots if one.node or one.promised
            ),
        )
        had.update({one.namespace: ROUND_S for one in snapshot.spots})
    assert max(had[name] for name in names) - min(had[name] for name in names) <= 1.5 * longest


@given(
    seed=st.integers(0, 2**32),
    cards=st.integers(2, 4),
    wants=st.integers(2, 4),
    tenants=st.integers(1, 3),
    longest=st.integers(30, 900),
)
def test_a_spot_pod_that_wants_several_cards_is_not_passed_for_ever(
    seed: int, cards: int, wants: int, tenants: int, longest: int
) -> None:
    """Beside pods that want one card each, of its own namespace and of others, and that keep
    coming."""
    chance, names = random.Random(seed), NAMESPACES[:tenants]
    large = SpotView("a", "large", "large", min(wants, cards), NOW, gates=(SPOT_GATE,))
    ends: dict[str, int] = {}
    snapshot = SpotSnapshot(
        quotas=tuple(quota(name, cards) for name in names),
        nodes=(NodeView("n", cards={SPOT_RESOURCE: CardsOnNode(cards, cards)}),),
    )
    bound = round(PATIENCE.total_seconds()) + 3 * longest
    for second in range(0, bound + ROUND_S, ROUND_S):
        now = NOW + timedelta(seconds=second)
        running = [one for one in snapshot.spots if one.node and ends[one.uid] > second]
        waiting = [waits(name, second, at, now) for name in names for at in range(cards)]
        snapshot = replace(snapshot, spots=(*running, *waiting, large))
        plan = plan_spot(snapshot, now)
        if large.uid in opened(plan):
            return
        snapshot = applied(snapshot, plan, now)
        ends |= {uid: second + chance.randrange(10, longest + 1) for uid in opened(plan)}
        placed = [replace(one, node="n") for one in snapshot.spots if one.node or one.promised]
        snapshot = replace(snapshot, spots=tuple(placed))
    raise AssertionError(f"it has waited for {bound} s")


@given(
    seed=st.integers(0, 2**32),
    cards=st.integers(1, 4),
    unserved=st.integers(1, 6),
    longest=st.integers(30, 900),
)
def test_pods_that_no_scheduler_sees_keep_no_card_from_others_for_long(
    seed: int, cards: int, unserved: int, longest: int
) -> None:
    """Of one namespace or another, each keeps one once and for five minutes at most, and after the
    first ones have lapsed, one at a time."""
    chance, promises = random.Random(seed), Promises()
    ends: dict[str, int] = {}
    kept: Counter[str] = Counter()
    most_at_once = 0
    created, bound = NOW - timedelta(hours=1), round(UNHEARD_AFTER.total_seconds())
    snapshot = SpotSnapshot(
        quotas=tuple(quota(name, 10) for name in NAMESPACES),
        nodes=(NodeView("n", cards={SPOT_RESOURCE: CardsOnNode(cards, cards)}),),
        spots=tuple(
            SpotView("a", f"u{at}", f"u{at}", 1, created, gates=(SPOT_GATE,), scheduler="nobody")
            for at in range(unserved)
        ),
    )
    for second in range(0, unserved * bound + 600, ROUND_S):
        now = NOW + timedelta(seconds=second)
        left = [one for one in snapshot.spots if one.scheduler == "nobody"]
        running = [one for one in snapshot.spots if one.node and ends[one.uid] > second]
        waiting = [waits(name, second, at, now) for name in NAMESPACES for at in range(cards)]
        spots = promises.dated((*left, *running, *waiting), now)
        snapshot = replace(snapshot, spots=spots, heard=promises.heard)
        plan = plan_spot(snapshot, now)
        promises.note(plan.kept)
        assert not any(isinstance(one, EvictSpot) for one in plan.actions)
        snapshot = applied(snapshot, plan, now)
        holds = [one.uid for one in snapshot.spots if one.promised and one.scheduler == "nobody"]
        holds = [uid for uid in holds if uid in plan.kept or uid in opened(plan)]
        kept.update(holds)
        most_at_once = max(most_at_once, len(holds)) if second > 600 else 0
        ends |= {uid: second + chance.randrange(10, longest + 1) for uid in opened(plan)}
        snapshot = replace(
            snapshot,
            spots=tuple(
                replace(one, node="n") if one.promised and one.scheduler != "nobody" else one
                for one in snapshot.spots
            ),
        )
    # Their gate is opened in one round and seen to be open in the next.
    assert all(ROUND_S * rounds <= bound + ROUND_S for rounds in kept.values())
    assert most_at_once <= 1


def waits(namespace: str, second: int, at: int, now: datetime) -> SpotView:
    uid = f"{namespace}-{second}-{at}"
    return SpotView(namespace, uid, uid, 1, now, gates=(SPOT_GATE,))
